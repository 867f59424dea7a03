"""What the recorder remembers of a cell."""

from __future__ import annotations

import functools
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from jaxnb.lockstep.process_executables import Known
from jaxnb.lockstep.process_inputs import HostInput, arguments_of_host
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.model.dispatches import (
    Argument,
    CheckMode,
    Dispatch,
    DispatchEnd,
    Made,
    Origin,
    Processes,
)

RING = 4096
"""So many dispatches of a cell are remembered one by one; all are in its trails."""


@dataclass(slots=True)
class TrailSoFar:
    """What was dispatched over some processes, in short."""

    count: int = 0
    sites: int = 0  # the lines that dispatched, in order
    site_sum: int = 0  # the same in any order


@dataclass(slots=True)
class Entry:
    """One dispatch."""

    number: int
    known: Known
    line: int | None
    seconds: float
    inputs: int
    host: int  # of these, what does not span processes
    site: int = 0
    origins: tuple[Origin, ...] = ()  # of its arguments, until it is made
    of_host: tuple[HostInput, ...] = ()  # those that do not span processes, likewise
    made: Made | None = None
    replicas: tuple[tuple[Processes, int], ...] = ()  # of its arguments that are new
    end: DispatchEnd = ""
    stop: float = 0.0  # when the call has returned, if it is the main thread's
    is_made: bool = False


@dataclass(slots=True)
class CellSoFar:
    """What a cell has dispatched."""

    mode: CheckMode = "off"
    name: str = ""
    started: float = 0.0
    has_ended: bool = False
    trails: dict[Processes, TrailSoFar] = field(default_factory=dict)
    ring: deque[Entry] = field(default_factory=lambda: deque(maxlen=RING))
    number: int = 0
    run: int = 0
    refused: Entry | None = None  # what strict mode has not let run
    refused_at: dict[int | None, None] = field(default_factory=dict)  # the lines
    is_agreed: bool = True  # with the other processes, before it is made

    def count(self, processes: Processes) -> int:
        """Returns how many the main thread has dispatched over these processes."""
        trail = self.trails.get(processes)
        return 0 if trail is None else trail.count


_UNCHECKED: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def note_starts(is_off: Callable[[], bool]) -> None:
    """Has a thread that code starts while nothing is checked stay unchecked as long as it runs.

    In a later cell, or a pull, it would begin to ask at another dispatch on each process.
    """
    start = threading.Thread.start

    @functools.wraps(start)
    def noted(thread: threading.Thread) -> None:
        if is_off():
            _UNCHECKED.add(thread)
        start(thread)

    threading.Thread.start = noted  # type: ignore[method-assign, assignment]


class Making(threading.local):
    """What a thread is dispatching; something may be dispatched within a dispatch."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.attempt: Entry | None = None  # what it waits to be let dispatch
        self.noted: Any = None  # the executable that JAX's Python path need not tell of
        self.is_main = threading.current_thread() is threading.main_thread()
        self.is_unchecked = threading.current_thread() in _UNCHECKED


def as_dispatch(entry: Entry, *, is_one_of_many: bool = False) -> Dispatch:
    """Returns a dispatch as other processes are told of it; one of many with fewer shapes."""
    known = entry.known
    return Dispatch(
        number=entry.number,
        name=known.name,
        fingerprint=known.fingerprint,
        arguments=known.arguments.few() if is_one_of_many and known.arguments else known.arguments,
        results=known.results.few() if is_one_of_many and known.results else known.results,
        processes=known.processes,
        line=entry.line,
        seconds=entry.seconds,
        inputs=entry.inputs,
        host=entry.host,
        site=entry.site,
        replicas=entry.replicas,
        end=entry.end,
        collectives=known.collectives,
    )


def arguments_given(entry: Entry) -> list[Argument]:
    """Returns what a dispatch is given, with the names that arrays have now."""
    return [*ORIGINS.described(entry.origins), *arguments_of_host(entry.origins, entry.of_host)]
