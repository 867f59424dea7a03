"""This process's part in lockstep: what the conductor's line is told of JAX and of the cell."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from jaxnb.compat import jax_runtime
from jaxnb.errors import DivergenceError
from jaxnb.labels import processes_label
from jaxnb.lockstep import process_connection, process_interrupts
from jaxnb.lockstep.process_ask_conductor import Intent, Lockstep
from jaxnb.lockstep.process_inputs import current
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.lockstep.wire import InterruptRaised
from jaxnb.model.dispatches import Argument, Dispatch
from jaxnb.model.scripts import in_notebook

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
