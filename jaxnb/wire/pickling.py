"""Pickling for a reader elsewhere: large buffers are left out of the pickle."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np

MIN_OUT_OF_BAND_BYTES = 64 << 10
"""Larger buffers (NumPy arrays) are left out of the pickle."""


class OutOfBand:
    """Takes large buffers out of a pickle: a ``buffer_callback`` for it.

    Attributes:
        buffers: What was left out, in order, as bytes. They are the memory of what was pickled,
            not a copy.
    """

    def __init__(self) -> None:
        self.buffers: list[np.ndarray[Any, Any]] = []

    def __call__(self, buffer: pickle.PickleBuffer) -> bool:
        """Takes a buffer if it is large; returns whether it stays in the pickle."""
        raw = buffer.raw()
        if raw.nbytes < MIN_OUT_OF_BAND_BYTES:
            return True
        self.buffers.append(np.frombuffer(raw, dtype=np.uint8))
        return False


def adjacent(value: Any) -> Any:
    """Tells how to pickle an array of NumPy's whose elements do not lie side by side.

    Out of band go adjacent bytes only, and pickle would copy such an array into the pickle. What
    repeats its elements (``np.broadcast_to``) is carried as what it repeats.

    Returns:
        What a ``reducer_override`` returns; NotImplemented for whatever else.
    """
    if type(value) is np.ndarray and value.size and any(_repeats(value)):
        once = value[tuple(slice(0, 1) if each else slice(None) for each in _repeats(value))]
        return np.broadcast_to, (np.array(once), value.shape)
    if type(value) is np.ndarray and not (value.flags.forc or value.dtype.hasobject):
        return np.ascontiguousarray(value).__reduce_ex__(5)
    return NotImplemented


def _repeats(array: np.ndarray[Any, Any]) -> list[bool]:
    """Returns for each dimension whether all that is along it is the same element in memory."""
    return [step == 0 and size > 1 for step, size in zip(array.strides, array.shape, strict=True)]
