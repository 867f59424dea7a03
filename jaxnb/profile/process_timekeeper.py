"""The timekeeper: what the main thread of this process did in a cell, as far as that is told."""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import jax

from jaxnb.launch import process_compiling
from jaxnb.lockstep.process_recorded import cpu_of_others
from jaxnb.lockstep.process_recorder import Recorder
from jaxnb.model.insight import Activity, CallSite, Span, SpanKind
from jaxnb.wire.process_features import CellHere, Feature

MAX_TOLD = 1000
"""So many events of a cell are kept, and so many waits: the newest."""

_COMPILED = "/jax/core/compile/backend_compile_duration"

_KINDS: dict[str, SpanKind] = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "compiling",
    _COMPILED: "compiling",
}


@dataclass(slots=True)
class WatchedCell:
    """A cell, as the timekeeper sees it; times are of ``time.monotonic()``.

    Attributes:
        started: When it began.
        has_ended: Whether it has.
        events: What JAX told of.
        waits: When the main thread waited in jaxnb's own code.
        dropped: How many of both were too many.
        compile_seconds: What lowering and compiling took, in all threads; without tracing, whose
            events of a function include those of the functions it calls.
        compiles: How many computations the backend compiled, or loaded.
        loads: How many of them were loaded, as another process has compiled them.
        cpu: What the other threads had used of the processor when it began.
        compiled: What they had when lowering or compiling ended, and when that was.
    """

    started: float
    has_ended: bool = False
    events: deque[Span] = field(default_factory=lambda: deque(maxlen=MAX_TOLD))
    waits: deque[Span] = field(default_factory=lambda: deque(maxlen=MAX_TOLD))
    dropped: int = 0
    compile_seconds: float = 0.0
    compiles: int = 0
    loads: int = 0
    cpu: float = 0.0
    compiled: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=MAX_TOLD))

    def note(self, kept: deque[Span], span: Span) -> None:
        """Keeps an event or a wait."""
        self.dropped += len(kept) == MAX_TOLD
        kept.append(span)


class Timekeeper(Feature):
    """Keeps what the main thread does in a cell, and what JAX tells of it.

    A call that is compiled already costs nothing here: JAX tells of tracing and compiling only.

    Args:
        recorder: Has the cell's dispatches.

    Attributes:
        cell: The last cell.
    """

    def __init__(self, recorder: Recorder) -> None:
        self.cell = WatchedCell(0.0, has_ended=True)
        self._recorder = recorder
        self._activity: Activity | None = None
        self._loaded = 0
        jax.monitoring.register_event_duration_secs_listener(self._on_event)

    def begin(self, cell: CellHere) -> None:
        """Begins a cell."""
        self.cell = WatchedCell(cell.began, cpu=cpu_of_others())
        self._loaded = _loaded()

    def over(self, _: CellHere) -> None:
        """Ends it: to describe its value is not its work."""
        self.cell.has_ended = True
        self.cell.loads = _loaded() - self._loaded
        self._activity = self._activity_of(self.cell)

    def told(self, cell: CellHere) -> dict[str, Any]:
        """Returns what the main thread did, and how long compiling took."""
        kept = self.cell
        return {
            "activity": self._activity,
            "compile_seconds": min(kept.compile_seconds, cell.seconds),
            "compiles": kept.compiles,
            "loads": kept.loads,
        }

    def waited(self, since: float) -> None:
        """Takes that the main thread has waited for results, from ``since`` until now."""
        self.cell.note(self.cell.waits, Span(since, time.monotonic(), "waiting"))

    def _on_event(self, event: str, duration_secs: float, **_: str | int) -> None:
        kind = _KINDS.get(event)
        cell = self.cell
        if kind is None or cell.has_ended:
            return  # to describe a cell's value may compile something, which is not the cell's
        if kind == "compiling":
            cell.compile_seconds += duration_secs
            cell.compiles += event == _COMPILED
        if threading.current_thread() is not threading.main_thread():
            return
        now = time.monotonic()  # JAX tells when it has ended
        cell.note(cell.events, Span(now - duration_secs, now, kind))
        if kind == "compiling":
            cell.compiled.append((now, cpu_of_others()))

    def _activity_of(self, cell: WatchedCell) -> Activity:
        """Returns what the main thread did; the recorder has the computations over processes."""
        recorder, started = self._recorder, cell.started
        spans = (*cell.waits, *cell.events)
        told = tuple(Span(s.start - started, s.stop - started, s.kind) for s in spans)
        activity = Activity(
            started,
            told,
            cell.dropped,
            used_at_end=cpu_of_others() - cell.cpu,
            compiled=tuple((at - started, cpu - cell.cpu) for at, cpu in cell.compiled),
        )
        if not (dispatches := sum(trail.count for trail in recorder.trails())):
            return activity
        offset = recorder.started - started
        sites: dict[tuple[int, int | None], int] = {}
        known: list[CallSite] = []
        numbers, origins = array("I"), array("I")
        starts, stops, used = array("d"), array("d"), array("d")
        for entry in recorder.entries():
            # Every dispatch comes by here: no objects are made but one for each origin.
            key = (id(entry.known), entry.line)
            place = sites.get(key)
            if place is None:
                place = sites[key] = len(known)
                what = entry.known
                known.append(CallSite(what.name, entry.line, what.processes))
            numbers.append(entry.number)
            origins.append(place)
            starts.append(entry.seconds + offset)
            stops.append(entry.stop + offset if entry.stop else 0.0)
            used.append(entry.cpu - cell.cpu if entry.cpu else 0.0)
        return replace(
            activity,
            sites=tuple(known),
            numbers=numbers.tobytes(),
            origins=origins.tobytes(),
            starts=starts.tobytes(),
            stops=stops.tobytes(),
            dispatches=dispatches,
            used=used.tobytes(),
        )


def _loaded() -> int:
    return 0 if process_compiling.programs is None else process_compiling.programs.loaded
