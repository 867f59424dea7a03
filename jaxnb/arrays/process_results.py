"""Results that a program declares replicated, and that may be unequal all the same.

A ``shard_map`` without ``check_vma`` that forgets a reduction, a ``pmap`` with ``out_axes=None``, a
callback that returns something else on each process: the processes agree on the program and on its
inputs, and their replicas differ. So the results of such a program's first run in a cell are
digested. Nothing waits for them, as they may never come: they are looked at after later dispatches
and as the cell ends, else as the next one begins. So which results are looked at must not depend on
when they are there: those of the run are, unless a later dispatch was given their memory. Then they
are followed to its results, up to those that are left as the cell ends.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from jaxnb.compat.jax_arrays import is_deleted
from jaxnb.lockstep.process_recorded import Entry
from jaxnb.model.dispatches import Processes

_Dispatch = tuple[Processes, int, str, int | None]


@dataclass(slots=True)
class _Followed:
    """Results of one program, or what was made in their memory."""

    dispatch: _Dispatch
    axes: tuple[str, ...]
    results: list[tuple[int, Callable[[], Any]]]
    is_digested: bool = False
    is_later: bool = False  # made in the memory of others: looked at as the cell ends

    def there(self) -> list[tuple[int, Any]]:
        """Returns those that are still held by somebody, and their places among the results."""
        found = [(i, get()) for i, get in self.results]
        return [(i, each) for i, each in found if each is not None]

    def let_go(self) -> None:
        """Follows them only as long as somebody else holds them."""
        self.results = [(i, weakref.ref(each)) for i, each in self.there()]


class UncheckedResults:
    """Follows results that may be unequal until they are there, and has them digested once.

    Args:
        replicated: Returns the array that holds a value, if it has replicas; else None.
        digest: Digests one: its place among the results, itself, the axes, and the dispatch.
    """

    def __init__(
        self,
        replicated: Callable[[Any], Any],
        digest: Callable[[int, Any, tuple[str, ...], _Dispatch], None],
    ) -> None:
        self._replicated, self._digest = replicated, digest
        self._followed: list[_Followed] = []
        self._seen: set[tuple[int, Processes]] = set()

    def begin(self) -> None:
        """Begins a cell: each program is looked at once more."""
        self._seen.clear()
        self.look()
        self._followed = [each for each in self._followed if not each.is_digested]

    def made(self, entry: Entry, results: Sequence[Any]) -> None:
        """Takes the results of a dispatch of the main thread.

        Args:
            entry: The dispatch.
            results: What it results in, which may not be there yet.
        """
        known = entry.known
        if self._followed:
            self._followed = [e for e in self._followed if self._follow(e, entry, results)]
        key = known.fingerprint, known.processes
        if (known.axes or known.calls_back) and key not in self._seen:
            self._seen.add(key)
            dispatch = known.processes, entry.number, known.name, entry.line
            # Held, not only followed: `w = step(w)` lets go of them before they are there.
            if here := self._here(results):
                held = [(i, partial(_same, array)) for i, array in here]
                self._followed.append(_Followed(dispatch, known.axes, list(held)))

    def _here(self, results: Sequence[Any]) -> list[tuple[int, Any]]:
        found = [(i, self._replicated(each)) for i, each in enumerate(results)]
        return [(i, array) for i, array in found if array is not None]

    def _follow(self, each: _Followed, entry: Entry, results: Sequence[Any]) -> bool:
        """Looks at results after a dispatch; returns whether they are to be followed further."""
        there = each.there()
        if any(array.is_deleted() for _, array in there):
            processes, _, name, line = each.dispatch
            each.dispatch = processes, entry.number, name, line
            each.results = [(i, weakref.ref(array)) for i, array in self._here(results)]
            each.is_digested, each.is_later = False, True
            return bool(each.results)
        if not (each.is_digested or each.is_later):
            self._look_at(each, there)
        return bool(there)

    def look(self) -> None:
        """Digests the results that are there; a cell begins, or ends."""
        for each in self._followed:
            if not each.is_digested:
                self._look_at(each, each.there())

    def _look_at(self, each: _Followed, there: Sequence[tuple[int, Any]]) -> None:
        arrays = [(i, array) for i, array in there if not is_deleted(array)]
        if not all(array.is_ready() for _, array in arrays):
            return
        each.is_digested = True
        with contextlib.suppress(RuntimeError):  # it has failed: whoever reads it is told
            for i, array in arrays:
                self._digest(i, array, each.axes, each.dispatch)
        each.let_go()


def _same(value: Any) -> Any:
    return value
