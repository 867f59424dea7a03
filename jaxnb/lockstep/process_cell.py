"""This process's part in lockstep: what the conductor's line is told of JAX and of the cell."""

from __future__ import annotations

import contextlib
import json
import linecache
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxnb.compat import jax_runtime
from jaxnb.errors import DivergenceError
from jaxnb.labels import one_line, processes_label
from jaxnb.lockstep import process_connection, process_inputs, process_interrupts
from jaxnb.lockstep.messages import Word
from jaxnb.lockstep.process_ask_conductor import (
    Intent,
    Lockstep,
    as_digest,
    as_intent,
    replicas_as_text,
)
from jaxnb.lockstep.process_inputs import current
from jaxnb.lockstep.process_interrupts import TYPED, is_typed
from jaxnb.lockstep.process_origins import ORIGINS, calls_jax, is_of_jax, line_in, number_of
from jaxnb.lockstep.process_recorded import CellSoFar, Entry, Known, Launches, Making, as_dispatch
from jaxnb.lockstep.wire import InterruptRaised
from jaxnb.model.dispatches import Argument, Dispatch
from jaxnb.model.scripts import in_notebook

if TYPE_CHECKING:
    from jaxnb.arrays.process_replicas import Replicas


WAIT_SECONDS = 5.0
"""Who does not tell by then was interrupted, or has died: then it is told of who did."""


class InLockstep(Lockstep):
    """Has this process agree with the others before each dispatch over several of them.

    Args:
        process_index: This process.
        num_processes: Size of the group.
        conductor: Returns where the conductor listens.

    Attributes:
        arguments: Returns the global arrays that a dispatch is to be given here.
        is_in_cell: The main thread runs a cell, or answers what several processes were asked.
    """

    def __init__(
        self, process_index: int, num_processes: int, conductor: Callable[[], Path]
    ) -> None:
        super().__init__(process_index, num_processes, conductor)
        self.is_in_cell = self._is_leaving = False
        self.arguments: Callable[[tuple[int, ...], int], list[Argument]] = lambda _, __: []
        process_interrupts.tell(self.signals.keeps, self._took)
        process_connection.install(self.signals.puts_off)

    def begin(self, serial: int, ranks: Sequence[int]) -> None:
        """Begins a cell, or the answer to something else that these processes were asked.

        Raises:
            OSError: The conductor has ended.
        """
        super().begin(serial, ranks)
        self._is_leaving = False
        self.is_in_cell = True

    def end(self, note: str) -> None:
        """Tells who still waits for this process that it has left the cell, and how; once.

        A signal's handler may raise meanwhile: then it is told, or the next call tells it.
        """
        if self.is_in_cell:
            self._is_leaving = True  # what a handler dispatches from here on nobody waits for
            super().end(note)
            self.is_in_cell = False

    def _took(self) -> None:
        """Tells of a signal that strikes a cell: the conductor of another one may be no more."""
        if self.is_in_cell:
            self.tell(InterruptRaised())

    def agree(self, intent: Intent, depth: int, *, is_main: bool) -> None:
        """Waits until all processes of a dispatch are about to make it, and it is its turn.

        Raises:
            DivergenceError: They are about to make another, or none; or it is the main thread's
                and no cell runs in it, so nobody knows what the others do.
            KeyboardInterrupt: The cell is interrupted.
        """
        if is_main and (self._is_leaving or not self.is_in_cell):
            dispatch, what = intent.describe(), in_notebook("cell") or "script"
            raise DivergenceError(
                f"{dispatch} over {processes_label(dispatch.processes)} was to be dispatched while "
                f"no {what} runs here: by a callback of the event loop, a signal's handler, a "
                "finalizer, or as the process ends. Where the other processes are then is not "
                f"known, and nothing of it has run. Dispatch it in a {what} (`await` a task there)."
            )
        super().agree(intent, depth, is_main=is_main)

    def settings(self) -> Mapping[str, str]:
        """Returns the settings that change programs, as they are now."""
        return current()

    def exchanged(
        self, stop: int, dispatch: Dispatch, others: Mapping[int, Dispatch]
    ) -> tuple[dict[int, list[Argument]], bool]:
        """Has processes that are about to make one dispatch tell each other what they give to it.

        That goes over the coordination service: to be refused is rare, and what is said before
        each dispatch stays short.
        """
        client = jax_runtime.coordination_client()
        name = f"jaxnb/arguments/{stop}"
        given = {self._me: self.arguments(dispatch.processes, dispatch.number)}
        mine = [asdict(each) for each in given[self._me]]
        plain = json.dumps([dispatch.inputs, dispatch.host, mine])
        client.key_value_set(f"{name}/{self._me}", plain, allow_overwrite=True)
        is_same = True
        for peer, its in others.items():
            try:
                said = client.blocking_key_value_get(f"{name}/{peer}", int(WAIT_SECONDS * 1e3))
            except Exception:  # it has not told, or the service has gone
                is_same = False
                continue
            inputs, host, arguments = json.loads(said)
            # What an interrupt has kept from being made may have left other inputs there.
            is_same &= inputs == its.inputs and host == dispatch.host
            given[peer] = [Argument.from_plain(each) for each in arguments]
        return given, is_same

    def are_one(self, given: Mapping[int, Sequence[Argument]]) -> None:
        """Takes which arrays that processes give are parts of the same ones."""
        ORIGINS.agree(given, self._me)

    def interrupted(self) -> BaseException | None:
        """Returns what an interrupt raises in the main thread now.

        None where a handler of the user's own has taken it, and where their code ignores it.
        """
        handler = signal.getsignal(signal.SIGINT)
        if handler is signal.SIG_IGN:
            return None
        if process_connection.is_own(handler) or not callable(handler):
            return process_interrupts.strike()
        handler(signal.SIGINT, sys._getframe(1))
        return None


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
            entry.times = cell.times(entry)
        failed = self._launches.failures(entry.known.processes)
        line = linecache.getline(cell.name, entry.line or 0).strip()
        if not (calls_jax(sys._getframe()) or is_of_jax(entry.known.name)):
            entry.names = entry.known.names
        entry.source = TYPED if is_typed(sys._getframe()) else one_line(line, MOST_SOURCE_CHARS)
        return replace(as_dispatch(entry), failed=failed.last, failures=len(failed.keys))

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
        known = Known(said, who, number_of(f"barrier {name}"))
        entry = Entry(0, known, line, time.monotonic() - cell.started, 0, 0)
        outer, cell.refused = cell.refused, entry
        try:
            self._lockstep.agree(as_intent(self._as_told(cell, entry)), depth, is_main=True)
            cell.refused = outer
            yield
        finally:
            self._lockstep.done(depth)
