"""Arrays that the notebook knows of: found again for as long as the process has them."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence

import jax

from jaxnb.errors import JaxnbError
from jaxnb.labels import gone_label
from jaxnb.model.arrays import GoneReason


def _nothing() -> None:
    """Refers to an array that is gone."""


MAX_HOLDERS = 10_000
"""Pulls and cells whose arrays are remembered; each takes some 100 bytes."""


class GoneError(JaxnbError):
    """An array is not here any more, or nobody has its elements.

    Attributes:
        reason: Why.
        axes: The mesh axes over which it is to be summed, of one that is unreduced.
    """

    def __init__(self, reason: GoneReason, axes: tuple[str, ...] = ()) -> None:
        super().__init__(gone_label(reason, axes))
        self.reason, self.axes = reason, axes


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

    def get(self, holder: str, index: int) -> jax.Array:
        """Returns an array.

        Raises:
            GoneError: The process has dropped or deleted it.
        """
        references = self._holders.get(holder, ())
        array = references[index]() if index < len(references) else None
        if array is None:
            raise GoneError("dropped")
        if array.is_deleted():
            raise GoneError("deleted")
        return array

    def alive(self) -> dict[str, tuple[jax.Array | None, ...]]:
        """Returns the arrays that the process still has, each in its place."""
        found = {
            holder: tuple(reference() for reference in references)
            for holder, references in [*self._holders.items()]
        }
        return {
            holder: arrays
            for holder, arrays in found.items()
            if any(each is not None for each in arrays)
        }

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
