"""Arrays that the notebook knows of: found again for as long as the process has them."""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnb.errors import JaxnbError
from jaxnb.model.arrays import Exposure, MemoryPass


def _nothing() -> None:
    """Refers to an array that is gone."""


MAX_HOLDERS = 10_000
"""Pulls and cells whose arrays are remembered; each takes some 100 bytes."""


class HeldArrays:
    """Weak references to described arrays: being known to the notebook keeps none alive."""

    def __init__(self) -> None:
        self._holders: OrderedDict[str, tuple[Callable[[], jax.Array | None], ...]] = OrderedDict()

    def hold(self, holder: str, arrays: Sequence[jax.Array]) -> None:
        """Remembers the arrays of one pull or cell."""
        if not arrays:
            return
        self._holders[holder] = tuple(map(weakref.ref, arrays))
        while len(self._holders) > MAX_HOLDERS:
            self._holders.popitem(last=False)

    def get(self, holder: str, index: int) -> jax.Array | None:
        """Returns an array, which may be deleted; None if the process has dropped it."""
        references = self._holders.get(holder, ())
        return references[index]() if index < len(references) else None

    def alive(self) -> dict[str, tuple[jax.Array | None, ...]]:
        """Returns the arrays that the process still has, each in its place."""
        found = {h: tuple(each() for each in those) for h, those in [*self._holders.items()]}
        return {h: those for h, those in found.items() if any(x is not None for x in those)}

    def take(self, alive: Mapping[str, Sequence[jax.Array | None]]) -> None:
        """Remembers what :meth:`alive` has returned in a process that this one replaces."""
        for holder, arrays in alive.items():
            self._holders[holder] = tuple(
                _nothing if each is None else weakref.ref(each) for each in arrays
            )


HELD = HeldArrays()
"""The arrays of this process that the notebook knows of."""

LARGE_VALUES: dict[int, str] = {}
"""Which values in ``Out`` were too large to travel with their results: a cell's number, and its
request. ``Out`` alone keeps them, so that a user can free them."""


Buffer = np.ndarray[Any, Any]

ALIGNMENT_BYTES = 4096
"""Whole pages are what the kernel copies best."""

XLA_ALIGNMENT_BYTES = 64
"""JAX's CPU backend takes memory that begins at a multiple as it is, and copies other."""

NUMPY_ALIGNMENT_BYTES = 16
"""What NumPy's dtypes need."""


class Exposures:
    """The open buffers of this process, by transfer."""

    def __init__(self) -> None:
        self._open: dict[str, list[Buffer]] = {}
        self._nonce = np.frombuffer(os.urandom(16), dtype=np.uint8)

    @property
    def access(self) -> MemoryPass:
        """How the notebook finds out whether it reaches this process's memory."""
        return MemoryPass(os.getpid(), self._nonce.ctypes.data, self._nonce.tobytes())

    def expose(self, transfer: str, arrays: Iterable[Any]) -> tuple[Exposure, ...]:
        """Keeps the bytes of arrays in place until the transfer is released.

        Args:
            transfer: The transfer.
            arrays: NumPy arrays; one that is not C-contiguous is copied.
        """
        return self._add(transfer, map(as_bytes, arrays))

    def allocate(
        self, transfer: str, sizes: Iterable[int], *, off: bool = False
    ) -> tuple[Exposure, ...]:
        """Makes room that the notebook fills.

        Args:
            transfer: The transfer.
            sizes: Sizes of the buffers in bytes.
            off: Place them so that JAX's CPU backend copies them: what stays the user's own
                array of NumPy may be written to, and no ``jax.Array`` made of it may change.

        Raises:
            MemoryError: There is not so much.
        """
        alignment, place = (
            (XLA_ALIGNMENT_BYTES, NUMPY_ALIGNMENT_BYTES) if off else (ALIGNMENT_BYTES, 0)
        )
        return self._add(transfer, (_room(size, alignment, place) for size in sizes))

    def _add(self, transfer: str, buffers: Iterable[Buffer]) -> tuple[Exposure, ...]:
        if not (added := [*buffers]):  # nobody releases a transfer that has none
            return ()
        kept = self._open.setdefault(transfer, [])
        first = len(kept)
        kept += added
        return tuple(
            Exposure(i, buffer.ctypes.data, buffer.nbytes)
            for i, buffer in enumerate(kept[first:], start=first)
        )

    def buffer(self, transfer: str, number: int) -> Buffer:
        """Returns a buffer's bytes.

        Raises:
            JaxnbError: The transfer has been released.
        """
        try:
            return self._open[transfer][number]
        except (KeyError, IndexError):
            raise JaxnbError("the transfer has ended") from None

    def release(self, transfer: str) -> None:
        """Drops the buffers of a transfer."""
        self._open.pop(transfer, None)


def _room(size: int, alignment: int, place: int) -> Buffer:
    """Returns room that begins ``place`` bytes after a multiple of ``alignment``.

    What is not written to takes no memory. JAX's CPU backend takes an aligned buffer as it is, and
    copies others: NumPy's large ones, which begin 16 bytes into a page, among them.
    """
    room = np.empty(size + alignment, dtype=np.uint8)
    start = (place - room.ctypes.data) % alignment
    return room[start : start + size]


def as_bytes(array: Any) -> Buffer:
    """Returns an array's bytes in C order, as a view where it is contiguous."""
    contiguous = np.ascontiguousarray(array)
    return contiguous.reshape(-1).view(np.uint8)
