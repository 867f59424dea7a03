"""This process's settings, and whether a computation may meet those of processes with others.

JAX takes for granted that all processes have the same. Where one has not, the same line compiles
into another program, and collectives of other sizes abort gloo, and the process with it.
"""

from __future__ import annotations

import json
import operator
import os
import platform
import threading
from collections import deque
from collections.abc import Callable
from enum import Enum
from multiprocessing.connection import Connection
from typing import Any

import jax
import ml_dtypes
import numpy as np

from jaxnb.engine.agreement import Agreement
from jaxnb.errors import DivergenceError
from jaxnb.model import CellRequest, Dispatch
from jaxnb.model.dispatches import Processes
from jaxnb.model.settings import (
    ENVIRONMENT,
    HARMLESS,
    OTHER_SETTINGS,
    PROGRAM_SETTINGS,
    Settings,
)
from jaxnb.settings import differences, refusal

PAST_RUNS = 64
"""So many cells are remembered to have ended: somebody may still ask about the last one."""

_PROGRAM = tuple(name for name in PROGRAM_SETTINGS if hasattr(jax.config, name))
_read = operator.attrgetter(*_PROGRAM)
_VARIABLES = frozenset(ENVIRONMENT)


def _text(value: Any) -> str:
    return str(value.value) if isinstance(value, Enum) else str(value)


def at_start() -> dict[str, str]:
    """Returns what this process has from its start on: its environment, and versions."""
    variables = {name: os.environ.get(name, "") for name in ENVIRONMENT}
    modules = {"jax": jax, "jaxlib": jax.lib, "numpy": np, "ml_dtypes": ml_dtypes}
    versions = {f"version of {name}": module.__version__ for name, module in modules.items()}
    return variables | versions | {"version of Python": platform.python_version()}


def environment() -> dict[str, str]:
    """Returns the variables that are set, of those that JAX and XLA read as a process starts."""
    return {name: os.environ[name] for name in _VARIABLES.intersection(os.environ)}


def current() -> dict[str, str]:
    """Returns the settings of ``jax.config`` as they are in this thread, and change something."""
    values = jax.config.values
    found = {name: _text(values[name]) for name in PROGRAM_SETTINGS if name in values}
    for name in OTHER_SETTINGS:
        if name in values:
            text = _text(values[name])
            found[name] = "allow" if text in HARMLESS else text
    return found


class SettingsCheck:
    """Compares settings before a dispatch, if this process's may not be those of the others.

    As a cell begins, the notebook knows whether all processes have the same. If they have, and this
    process's have not changed since, nothing is asked: this takes a microsecond. Else it asks the
    other processes of the dispatch what they dispatch there, and with which settings; a thread of
    theirs answers, once they have come to it or left the cell. If programs and settings differ,
    nothing is dispatched. The other processes may have dispatched by then, as they know of nothing:
    they are freed as ever.

    Args:
        process_index: This process.
        agreement: Reaches the other processes.
        made: Returns the dispatch over some processes with some number, if it was made.
    """

    def __init__(
        self,
        process_index: int,
        agreement: Agreement,
        made: Callable[[Processes, int], Dispatch | None],
    ) -> None:
        self._me = process_index
        self._agreement = agreement
        self._made = made
        self._start = current()
        self._variables = environment()
        self.report: Settings = tuple({**self._start, **at_start()}.items())
        self._changed = threading.Condition()
        self._waiting = 0
        self._run, self._has_ended = "", True
        self._ranks: frozenset[int] = frozenset()
        self._past: deque[str] = deque(maxlen=PAST_RUNS)
        self._begin: tuple[Any, ...] | None = None  # what all have, as far as is known
        self._first = _read(jax.config)
        self._agreed: dict[Processes, tuple[Any, ...]] = {}  # what they have come to have since
        self._changes: dict[Processes, list[tuple[int, tuple[Any, ...]]]] = {}
        self._attempts: dict[Processes, Dispatch] = {}
        agreement.answer = self._answer

    def changes(self) -> Settings:
        """Returns the settings that are not what they were as this process joined."""
        variables = environment()
        if variables != self._variables:  # those that were deleted count as empty
            variables = dict.fromkeys(self._variables, "") | variables
        now = (*current().items(), *variables.items())
        return tuple((n, v) for n, v in now if self._before(n) != v)

    def _before(self, name: str) -> str | None:
        return self._variables.get(name, "") if name in _VARIABLES else self._start.get(name)

    def begin(self, request: CellRequest) -> None:
        """Begins a cell."""
        if request.check != "off" and len(request.ranks) > 1:
            self._agreement.be_reachable()
        with self._changed:
            self._run, self._has_ended = request.request_id, False
            self._ranks = frozenset(request.ranks)
            self._first = _read(jax.config)
            self._begin = None if request.settings_differ else self._first
            self._agreed, self._changes, self._attempts = {}, {}, {}
            self._changed.notify_all()

    def end(self) -> None:
        """Ends a cell: who waits to be answered is told so."""
        with self._changed:
            self._has_ended = True
            self._past.append(self._run)
            self._changed.notify_all()

    def may_differ(self, processes: Processes) -> bool:
        """Whether this thread's settings may not be those of the others."""
        if self._has_ended:  # it is the trial at a start: there is nobody to ask
            return False
        return bool(_read(jax.config) != self._agreed.get(processes, self._begin))

    def made(self) -> None:
        """Has who waits for a dispatch look again."""
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    def come_to(self, attempt: Dispatch) -> None:
        """Notes what this process is about to dispatch: who asks for it need not wait longer."""
        self._attempts[attempt.processes] = attempt
        self.made()

    def compare(self, attempt: Dispatch) -> None:
        """Asks the other processes of a dispatch what they have, and do.

        Waits until they have come to it, or left the cell.

        Args:
            attempt: What this process is about to dispatch.

        Raises:
            DivergenceError: It would be different programs, and settings differ.
        """
        values = _read(jax.config)
        # Before others can see the attempt, which they take to have been made with these.
        self._changes.setdefault(attempt.processes, []).append((attempt.number, values))
        self.come_to(attempt)
        mine: dict[str, Any] = {"fingerprint": attempt.fingerprint, "settings": _named(values)}
        question = {
            "run": self._run,
            "processes": attempt.processes,
            "number": attempt.number,
        }
        answers = {self._me: mine}
        for peer in attempt.processes:
            if peer != self._me and peer in self._ranks:
                answer = self._agreement.ask(peer, question)
                if answer is not None:
                    answers[peer] = answer
        found = differences({i: each["settings"] for i, each in answers.items()})
        if not found:
            self._agreed[attempt.processes] = values
        elif len({each["fingerprint"] for each in answers.values()}) > 1:
            raise DivergenceError(refusal(found, attempt.name))

    def _answer(self, question: dict[str, Any], connection: Connection) -> None:
        """Answers another process's question; in a thread of its own."""
        with self._changed:
            self._waiting += 1
            try:
                while (answer := self._known(question)) is None:
                    self._changed.wait()
            finally:
                self._waiting -= 1
        connection.send_bytes(json.dumps(answer).encode())

    def _known(self, question: dict[str, Any]) -> dict[str, Any] | None:
        """Returns the answer; None as long as this process has not come to the dispatch."""
        run, number = question["run"], question["number"]
        processes = tuple(question["processes"])
        if run != self._run:
            return {} if run in self._past else None
        made = self._attempts.get(processes)
        if made is None or made.number != number:
            made = self._made(processes, number)
        if made is not None:
            values = self._first
            for since, each in self._changes.get(processes, ()):
                values = each if since <= number else values
            return {"fingerprint": made.fingerprint, "settings": _named(values)}
        return {} if self._has_ended else None


def _named(values: tuple[Any, ...]) -> dict[str, str]:
    return {name: _text(value) for name, value in zip(_PROGRAM, values, strict=True)}
