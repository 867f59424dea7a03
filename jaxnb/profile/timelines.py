"""The timelines of a session's last cells."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

from jaxnb.errors import UsageError
from jaxnb.labels import ranks_label
from jaxnb.model import insight


class Interval(NamedTuple):
    """A stretch of time in which the main thread did one thing.

    Attributes:
        layer: If two overlap, the higher layer wins; within a layer, the one that began later,
            which is nested in the other.
        start: Seconds.
        stop: Seconds.
        kind: What the thread did.
    """

    layer: int
    start: float
    stop: float
    kind: insight.SpanKind


def painted(intervals: Iterable[Interval]) -> list[insight.Span]:
    """Returns what was done when: spans that do not overlap, in order, equal neighbours as one.

    What no interval covers is in no span.
    """
    coming = sorted((i for i in intervals if i.stop > i.start), key=lambda each: -each.start)
    spans: list[insight.Span] = []
    going: list[Interval] = []  # few: as many as are within each other
    edges = sorted({at for each in coming for at in (each.start, each.stop)})
    for now, until in pairwise(edges):
        while coming and coming[-1].start <= now:
            going.append(coming.pop())
        going = [each for each in going if each.stop > now]
        if not going:
            continue
        kind = max(going, key=lambda each: (each.layer, each.start)).kind
        if spans and spans[-1].kind == kind and spans[-1].stop == now:
            spans[-1] = insight.Span(spans[-1].start, until, kind)
        else:
            spans.append(insight.Span(now, until, kind))
    return spans


def union_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns how much time intervals cover together, counting overlaps once."""
    total, until = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        if stop > until:
            total += stop - max(start, until)
            until = stop
    return total


LATE_SECONDS = 1e-4
"""A process that comes later by less than this does not count as late: clocks are read some
microseconds after the call, and processes may share a core."""

LATE_BETWEEN_HOSTS = 1e-2
"""The same for processes of several hosts, whose clocks are aligned by when a cell began."""

Key = tuple[tuple[int, ...], int]
"""The processes of a computation, and the dispatch's number over them."""


class Arrival(NamedTuple):
    """When a process came to a dispatch, and when the call returned; equal if not known."""

    start: float
    stop: float
    site: insight.CallSite


def compared(
    arrivals: Mapping[int, Mapping[Key, Arrival]],
    least: float = LATE_SECONDS,
) -> tuple[int, list[insight.Late], dict[int, list[tuple[float, float]]]]:
    """Compares when the processes came to each dispatch that all of its processes recorded.

    The processes have agreed on each of these first, so a call waits until all have come, whatever
    it computes.

    Args:
        arrivals: Process index to its dispatches.
        least: By how many seconds one comes clearly last.

    Returns:
        How many were compared; those to which one came clearly last, in order; and process index
        to when it was held in a call by one that had not come.
    """
    by_key: dict[Key, dict[int, Arrival]] = defaultdict(dict)
    for process, found in arrivals.items():
        for key, arrival in found.items():
            by_key[key][process] = arrival
    count, lates = 0, []
    held: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for (processes, number), there in by_key.items():
        if any(each not in there for each in processes):
            continue
        count += 1
        *_, second, last = sorted(there, key=lambda each: there[each].start)
        came = there[last]
        for process, arrival in there.items():
            # A call that has returned by then does not wait.
            until = min(came.start, arrival.stop)
            if until > arrival.start:
                held[process].append((arrival.start, until))
        if came.start - there[second].start >= least:
            waited = {p: came.start - a.start for p, a in there.items() if p != last}
            lates.append(insight.Late(number, came.site, last, came.start, waited))
    lates.sort(key=lambda late: late.at)
    return count, lates, held


def stragglers(lates: Iterable[insight.Late]) -> list[insight.Straggler]:
    """Returns who kept others waiting; whom they waited for longest comes first."""
    by_last: dict[int, list[insight.Late]] = defaultdict(list)
    for late in lates:
        by_last[late.last].append(late)
    found: list[insight.Straggler] = []
    for process, mine in by_last.items():
        waits: dict[int, list[tuple[float, float]]] = defaultdict(list)
        sites: dict[insight.CallSite, float] = defaultdict(float)
        for late in mine:
            sites[late.site] += max(late.waited.values())
            for other, seconds in late.waited.items():
                waits[other].append((late.at - seconds, late.at))
        waited = {other: union_seconds(each) for other, each in sorted(waits.items())}
        site = max(sites, key=lambda site, of=sites: of[site])  # type: ignore[misc]
        found.append(insight.Straggler(process, len(mine), waited, site))
    return sorted(found, key=lambda each: -each.seconds)


MAX_CELLS = 200
"""The timelines of the last so many cells are kept."""

MAX_BYTES = 64 << 20
"""What they take in this process's memory, about; then fewer are kept."""

_DISPATCH_BYTES, _SPAN_BYTES = 24, 130

# Layers of intervals, the lowest first: the whole cell; calls of computations over several
# processes; waits that a process told of; what its other threads computed; tracing and compiling;
# and the time for which a late process held it in a call.
_PYTHON, _DISPATCHING, _WAITS, _COMPUTING, _EVENTS, _HELD = range(6)


class CellTimeline(insight.Timeline):
    """A :class:`~jaxnb.model.insight.Timeline`; a notebook shows a picture, ``print`` text."""

    def __str__(self) -> str:
        from jaxnb.profile import card_timeline

        return card_timeline.timeline_card(self).text

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from jaxnb.profile import card_timeline

        card = card_timeline.timeline_card(self)
        return {"text/plain": card.text, "text/html": card.html}


@dataclass(frozen=True, slots=True)
class Told:
    """What one process told of a cell.

    Attributes:
        activity: What its main thread did; None if it did not come back to tell.
        seconds: How long the cell took there.
        host: The host that it is on.
        ending: How the cell ended on it; empty if it finished.
    """

    activity: insight.Activity | None
    seconds: float
    host: str
    ending: str = ""


class Timelines:
    """What the processes told of the last cells; timelines are made when they are asked for."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, Mapping[int, Told], int]] = deque()  # and the bytes of each
        self._nbytes = 0

    def note(self, cell: int, told: Mapping[int, Told]) -> None:
        """Keeps what the processes told of a cell."""
        known = [each.activity for each in told.values() if each.activity is not None]
        size = sum(_DISPATCH_BYTES * each.known + _SPAN_BYTES * len(each.spans) for each in known)
        self._kept.append((cell, told, size))
        self._nbytes += size
        while len(self._kept) > MAX_CELLS or (self._nbytes > MAX_BYTES and len(self._kept) > 1):
            self._nbytes -= self._kept.popleft()[2]

    def timeline(self, cell: int | None = None) -> CellTimeline:
        """Returns a cell's timeline.

        Args:
            cell: The cell's number; the last of that number is meant. None for the last cell.

        Raises:
            UsageError: No timeline of that cell is kept.
        """
        for number, told, _ in reversed(self._kept):
            if cell in (None, number):
                return timeline_of(number, told)
        if not self._kept:
            raise UsageError("No cell has been run yet. Run one with `%%spmd`.")
        known = ranks_label(number for number, _, _ in self._kept)
        raise UsageError(
            f"There is no timeline of cell [{cell}]. The last {MAX_CELLS} cells' timelines are "
            f"kept (fewer if they are large): now those of {known}. `%spmd_history` lists what was "
            "run."
        )


def timeline_of(cell: int, told: Mapping[int, Told]) -> CellTimeline:
    """Returns the timeline of a cell.

    Args:
        cell: Its number.
        told: Process index to what it told.
    """
    known = {i: each.activity for i, each in told.items() if each.activity is not None}
    begins: dict[str, float] = {}  # by host, on the host's own clock
    for index, activity in known.items():
        host = told[index].host
        begins[host] = min(begins.get(host, activity.started), activity.started)
    starts = {i: each.started - begins[told[i].host] for i, each in known.items()}
    arrivals = {i: _arrivals(each, starts[i]) for i, each in known.items()}
    hosts = len({each.host for each in told.values()})
    least = LATE_SECONDS if hosts == 1 else LATE_BETWEEN_HOSTS
    dispatches, lates, held = compared(arrivals, least)
    return CellTimeline(
        cell=cell,
        processes={
            i: _process(i, told[i], each, starts[i], held.get(i, [])) for i, each in known.items()
        },
        missing={i: "it did not come back from the cell" for i in told if i not in known},
        dispatches=dispatches,
        forgotten=max((each.dispatches - each.known for each in known.values()), default=0),
        lates=tuple(lates),
        stragglers=tuple(stragglers(lates)),
        hosts=hosts,
    )


def _arrivals(activity: insight.Activity, offset: float) -> dict[Key, Arrival]:
    return {
        (site.processes, number): Arrival(start + offset, max(start, stop) + offset, site)
        for number, site, start, stop in activity.calls()
    }


def _computing(activity: insight.Activity, seconds: float) -> Iterator[tuple[float, float]]:
    """Yields when other threads computed: what they used from one dispatch to the next, at once.

    They may have been slower, or later: what is known is how much it was until the next dispatch,
    or until something was lowered or compiled.
    """
    began, before = 0.0, 0.0
    used = memoryview(activity.used).cast("d")
    calls = [(start, cpu) for (_, _, start, _), cpu in zip(activity.calls(), used, strict=True)]
    for at, cpu in [*sorted([*calls, *activity.compiled]), (seconds, activity.used_at_end)]:
        if cpu and at > began:
            yield began, began + min(at - began, max(0.0, cpu - before))
            began, before = at, cpu


def _process(
    index: int,
    told: Told,
    activity: insight.Activity,
    start: float,
    held: Sequence[tuple[float, float]],
) -> insight.ProcessTimeline:
    stop = start + told.seconds
    intervals = [Interval(_HELD, *each, "waiting") for each in held]
    intervals.append(Interval(_PYTHON, start, stop, "python"))
    for span in activity.spans:
        # An event may have begun before the cell, when it waited for another thread's lock: clip
        # it.
        began, ended = max(start, start + span.start), min(stop, start + span.stop)
        layer = _WAITS if span.kind == "waiting" else _EVENTS
        intervals.append(Interval(layer, began, ended, span.kind))
    intervals += [Interval(_COMPUTING, start + a, start + b, "computing")
                  for a, b in _computing(activity, told.seconds)]  # fmt: skip
    for _, _, began, ended in activity.calls():
        if ended:
            until = min(stop, start + ended)
            intervals.append(Interval(_DISPATCHING, start + began, until, "dispatching"))
    return insight.ProcessTimeline(
        process_index=index,
        start=start,
        stop=stop,
        spans=tuple(painted(intervals)),
        dropped=activity.dropped,
        ending=told.ending,
    )
