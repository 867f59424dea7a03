"""Agrees with the other processes on what this one is about to dispatch."""

from __future__ import annotations

import contextlib
import linecache
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from jaxnb.errors import DivergenceError
from jaxnb.labels import one_line
from jaxnb.lockstep import process_inputs
from jaxnb.lockstep.messages import Word
from jaxnb.lockstep.process_ask_conductor import Intent, as_digest, as_intent, replicas_as_text
from jaxnb.lockstep.process_cell import InLockstep
from jaxnb.lockstep.process_interrupts import TYPED, is_typed
from jaxnb.lockstep.process_origins import line_in, number_of
from jaxnb.lockstep.process_recorded import CellSoFar, Entry, Launches, Making, as_dispatch
from jaxnb.model.dispatches import Dispatch

if TYPE_CHECKING:
    from jaxnb.arrays.process_replicas import Replicas


MOST_SOURCE_CHARS = 60
"""So much of a line of code is told to other processes."""


class Agreement:
    """Lets a dispatch, or a barrier, be made once all processes that it spans are about to make it.

    Args:
        process_index: This process.
        lockstep: Asks the conductor.
        replicas: Digests replicas that nothing has compared yet.
        making: What this thread is dispatching.
        launches: Knows what has failed of what was dispatched.

    Attributes:
        waited: Takes since when the main thread has waited for others, where that was in vain.
    """

    def __init__(
        self,
        process_index: int,
        lockstep: InLockstep,
        replicas: Replicas,
        making: Making,
        launches: Launches,
    ) -> None:
        self._process_index, self._lockstep = process_index, lockstep
        self._replicas, self._making, self._launches = replicas, making, launches
        self.waited: Callable[[float], None] = lambda _: None

    def reach(self, cell: CellSoFar, entry: Entry, arguments: Sequence[Any], depth: int) -> None:
        """Returns once all of a dispatch's processes are about to make it; no other one waits.

        Args:
            cell: The cell.
            entry: The dispatch, which spans this process.
            arguments: What it is given.
            depth: How many dispatches this thread is making.

        Raises:
            DivergenceError: They are about to make another, or none.
            KeyboardInterrupt: The cell is interrupted.
        """
        if self._making.is_main:
            self._launches.settle()
        process_inputs.require_there(arguments)
        # A signal's handler may dispatch, too, while this one waits.
        outer, self._making.attempt = self._making.attempt, entry
        known, is_main = entry.known, self._making.is_main
        if is_main:
            entry.number = cell.count(known.processes) + 1
            cell.refused = entry
        if unseen := self._replicas.unseen(entry.origins):  # that nothing has compared yet
            dispatch = known.processes, entry.number, known.name, entry.line
            entry.replicas = self._replicas.digest(unseen, arguments, entry.origins, dispatch)
        program, failed = known.program, self._launches.failures(known.processes)
        if failed.keys:
            program = as_digest(hash((known.fingerprint, failed.number)))
        word = Word(known.processes, program, as_digest(entry.inputs), entry.line or 0)
        intent = Intent(word, partial(self._as_told, cell, entry), replicas_as_text(entry.replicas))
        try:
            self._lockstep.agree(intent, depth, is_main=is_main)
        except BaseException as error:
            if is_main:
                cell.refused = entry
                self.waited(cell.started + entry.seconds)
            if isinstance(error, DivergenceError) and is_main:
                cell.refused_at[entry.line] = None
            if entry.replicas:
                self._replicas.forget(known.processes, entry.number)
            raise
        finally:
            self._making.attempt = outer
        if is_main:
            cell.refused = outer
            self._launches.let_go()  # what comes is computed after them, and takes their place

    def _as_told(self, cell: CellSoFar, entry: Entry) -> Dispatch:
        """Returns what this thread is about to dispatch, with the number that it has now."""
        if self._making.is_main:
            entry.number = cell.count(entry.known.processes) + 1
        failed = self._launches.failures(entry.known.processes)
        line = linecache.getline(cell.name, entry.line or 0).strip()
        source = TYPED if is_typed(sys._getframe()) else one_line(line, MOST_SOURCE_CHARS)
        told = as_dispatch(entry)
        return replace(told, failed=failed.last, failures=len(failed.keys), source=source)

    @contextlib.contextmanager
    def barrier(
        self, cell: CellSoFar, name: str, processes: Sequence[int] | None, depth: int
    ) -> Iterator[None]:
        """Agrees on a barrier that the cell's own code comes to, as on a dispatch.

        Args:
            cell: The cell.
            name: The barrier's.
            processes: Who takes part; None for all.
            depth: How many dispatches this thread is making.
        """
        who = tuple(sorted(processes or range(self._lockstep.num_processes)))
        takes_part = self._process_index in who and len(who) > 1
        if not (self._making.is_main and self._lockstep.is_in_cell and takes_part):
            yield
            return
        self._launches.settle()
        line = line_in(sys._getframe(1), cell.name)
        said = f"the barrier {name!r} of the coordination service"
        number, seconds = cell.count(who) + 1, time.monotonic() - cell.started
        key = number_of(f"barrier {name}")
        what = Dispatch(number, said, key, None, None, who, line, seconds)
        try:
            self._lockstep.agree(as_intent(what), depth, is_main=True)
            yield
        finally:
            self._lockstep.done(depth)
