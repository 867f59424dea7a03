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


_PLAIN = frozenset((bool, int, float, complex, str, bytes, bytearray, range, slice, type(None)))

_CONTAINERS = (list, tuple, set, frozenset)

MOST_PLAIN = 10_000
"""A value of more parts is not looked through."""


def is_plain(value: Any, *arrays: type) -> bool:
    """Whether a value is pickled and unpickled without code of the user's.

    It has plain data and arrays then. Types are compared and no object is asked, so none of that
    code is run here either.

    Args:
        value: The value.
        arrays: The classes of arrays that it may have beside NumPy's.
    """
    left = [value]
    for _ in range(MOST_PLAIN):
        if not left:
            return True
        part = left.pop()
        kind = type(part)
        if kind in _CONTAINERS:
            left += part
        elif kind is dict:
            left += [*part, *part.values()]
        elif kind is np.ndarray or (kind.__module__ == "numpy" and issubclass(kind, np.generic)):
            if part.dtype.hasobject:
                return False
        elif kind not in _PLAIN and not issubclass(kind, arrays):
            return False
    return False
