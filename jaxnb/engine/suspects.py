"""Suspects: arrays that rest on unequal inputs, followed through all that is computed of them.

A cell's inputs are compared when it has ended. If some were unequal, the notebook tells which, and
what the cell computed of them is marked then; from there on each recorded dispatch hands the mark
on. An array is known by what made it (its origin), so the mark costs nothing where nothing is wrong
and ends when a name is bound to something made anew. JAX's values that left for the host are
followed to the end of the cell that read them: a number of Python's has no place for a mark.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxnb.engine._jax_internals.arrays import hook_reads
from jaxnb.engine.origins import ORIGINS, origin_of
from jaxnb.model.origins import Origin

MAX_CAUSES = 1 << 17
"""Of more, those are forgotten that no live array has."""


class Suspects:
    """Why arrays of this process rest on unequal inputs, by what made them."""

    def __init__(self) -> None:
        self._causes: dict[int, str] = {}
        self._touched: dict[str, None] = {}
        self._lock = threading.Lock()
        self._sees_reads = False

    def __bool__(self) -> bool:
        return bool(self._causes)

    def begin(self) -> None:
        """Begins a cell."""
        self._touched.clear()

    @property
    def touched(self) -> tuple[str, ...]:
        """Why what the cell computed or read is suspect; empty if it is not."""
        return tuple(self._touched)

    def cause_of(self, value: Any) -> str:
        """Returns why an array is suspect; empty if it is not."""
        if not self._causes:
            return ""
        origin = origin_of(ORIGINS.array_of(value))
        return "" if origin is None else self._causes.get(origin[1].base, "")

    def hand_on(self, origins: Sequence[Origin], made: int) -> None:
        """Marks the results of a dispatch if one of its arguments is marked."""
        causes = self._causes
        for _, each in origins:
            if (cause := causes.get(each[0])) is not None:
                self._touched[cause] = None
                causes[made] = cause
                return

    def mark(
        self,
        roots: Mapping[int, str],
        since: Mapping[tuple[int, ...], tuple[int, str]],
        dispatches: Iterable[tuple[tuple[int, ...], int, Sequence[Origin], int]],
    ) -> None:
        """Marks what the last cell has computed.

        Args:
            roots: What made unequal arrays, to why they are.
            since: Processes to the first dispatch over them that differed, and how: its results
                and all later ones are marked.
            dispatches: The cell's, in order: the processes, the number, the origins of its
                arguments (empty if they were forgotten), and what made its results.
        """
        with self._lock:
            causes = dict(self._causes)
            causes.update(roots)
            last = ""
            for processes, number, origins, made in dispatches:
                first, why = since.get(processes, (0, ""))
                found = next((causes[o[1][0]] for o in origins if o[1][0] in causes), "")
                if not found and why and number >= first:
                    found = why
                if not found and not origins:
                    found = last  # nobody knows any more what it was given
                if found:
                    causes[made] = last = found
                    self._touched[found] = None
            self._causes = causes if len(causes) < MAX_CAUSES else _of_live(causes)
            if self._causes and not self._sees_reads:
                self._sees_reads = True
                hook_reads(self._read)

    def all(self) -> dict[int, str]:
        """Returns all marks."""
        with self._lock:
            return dict(self._causes)

    def _read(self, array: Any) -> None:
        if cause := self.cause_of(array):
            self._touched[cause] = None


def _of_live(causes: Mapping[int, str]) -> dict[int, str]:
    import jax

    live = {origin[1].base for array in jax.live_arrays() if (origin := origin_of(array))}
    return {made: cause for made, cause in causes.items() if made in live}


SUSPECTS = Suspects()
"""This process's."""
