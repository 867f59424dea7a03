"""The timelines of a session's last cells."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxnb.errors import UsageError
from jaxnb.labels import ranks_label
from jaxnb.model.insight import (
    Activity,
    CallSite,
    Late,
    ProcessTimeline,
    Span,
    SpanKind,
    Straggler,
    Timeline,
)


class Interval(NamedTuple):
    """Something that was going on.

    Attributes:
        layer: Of two at a time the one in the higher layer is what the thread did; of two in
            one layer, the one that began later: it is within the other.
        start: Seconds.
        stop: Seconds.
        kind: What it was.
    """

    layer: int
    start: float
    stop: float
    kind: SpanKind


def painted(intervals: Iterable[Interval]) -> list[Span]:
    """Returns what was done when: spans that do not overlap, in order, equal neighbours as one.

    What no interval covers is in no span.
    """
    coming = sorted((i for i in intervals if i.stop > i.start), key=lambda each: each.start)
    spans: list[Span] = []
    going: list[tuple[int, float, float, SpanKind]] = []  # a heap; the topmost first
    place, now = 0, 0.0
    while place < len(coming) or going:
        while going and -going[0][2] <= now:
            heapq.heappop(going)
        if not going:
            if place == len(coming):
                break
            now = max(now, coming[place].start)
        while place < len(coming) and coming[place].start <= now:
            each = coming[place]
            heapq.heappush(going, (-each.layer, -each.start, -each.stop, each.kind))
            place += 1
        if not going or -going[0][2] <= now:
            continue
        until = -going[0][2]
        if place < len(coming):
            until = min(until, coming[place].start)
        kind = going[0][3]
        if spans and spans[-1].kind == kind and spans[-1].stop == now:
            spans[-1] = Span(spans[-1].start, until, kind)
        else:
            spans.append(Span(now, until, kind))
        now = until
    return spans


def union_seconds(intervals: Iterable[tuple[float, float]]) -> float:
    """Returns how much time intervals cover together, what several cover once."""
    total, until = 0.0, float("-inf")
    for start, stop in sorted(intervals):
        if stop > until:
            total += stop - max(start, until)
            until = stop
    return total


LATE_SECONDS = 1e-4
"""Who comes later than the others by less is not late: clocks are read some microseconds after
the call, and two cores take turns."""

Key = tuple[tuple[int, ...], int]
"""The processes of a computation, and the dispatch's number over them."""


class Arrival(NamedTuple):
    """When a process came to a dispatch, and when the call returned; equal if not known."""

    start: float
    stop: float
    site: CallSite


class Compared(NamedTuple):
    """What :func:`compared` found.

    Attributes:
        dispatches: How many were compared.
        lates: Those to which one came clearly last, in order.
        held: Process index to when it was held in a call by one that had not come.
    """

    dispatches: int
    lates: list[Late]
    held: dict[int, list[tuple[float, float]]]


def compared(arrivals: Mapping[int, Mapping[Key, Arrival]]) -> Compared:
    """Compares when the processes came to each dispatch that all of its processes tell of.

    Those that are told of are agreed on: each waits until all have come, whatever it computes.

    Args:
        arrivals: Process index to its dispatches.
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
        if came.start - there[second].start >= LATE_SECONDS:
            waited = {p: came.start - a.start for p, a in there.items() if p != last}
            lates.append(Late(number, came.site, last, came.start, waited))
    lates.sort(key=lambda late: late.at)
    return Compared(count, lates, dict(held))


def stragglers(lates: Iterable[Late]) -> list[Straggler]:
    """Returns who kept others waiting; whom they waited for longest comes first."""
    by_last: dict[int, list[Late]] = defaultdict(list)
    for late in lates:
        by_last[late.last].append(late)
    found = [_straggler(process, mine) for process, mine in by_last.items()]
    return sorted(found, key=lambda each: -each.seconds)


def _straggler(process: int, lates: Sequence[Late]) -> Straggler:
    waits: dict[int, list[tuple[float, float]]] = defaultdict(list)
    sites: Counter[CallSite] = Counter()
    for late in lates:
        sites[late.site] += max(late.waited.values())  # type: ignore[assignment]
        for other, seconds in late.waited.items():
            waits[other].append((late.at - seconds, late.at))
    waited = {other: union_seconds(found) for other, found in sorted(waits.items())}
    return Straggler(process, len(lates), waited, sites.most_common(1)[0][0])


MAX_CELLS = 200
"""The timelines of the last so many cells are kept."""

MAX_BYTES = 64 << 20
"""What they take in this process's memory, about; then fewer are kept."""

_DISPATCH_BYTES, _SPAN_BYTES = 24, 130

_PYTHON, _DISPATCHING, _TOLD, _HELD = range(4)


class CellTimeline(Timeline):
    """A :class:`~jaxnb.model.Timeline` that a notebook shows as a picture, ``print`` as text."""

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

    activity: Activity | None
    seconds: float
    host: str
    ending: str = ""


@dataclass(frozen=True, slots=True)
class _Kept:
    cell: int
    told: Mapping[int, Told]
    nbytes: int


def _nbytes(told: Mapping[int, Told]) -> int:
    known = [each.activity for each in told.values() if each.activity is not None]
    return sum(_DISPATCH_BYTES * each.known + _SPAN_BYTES * len(each.spans) for each in known)


class Timelines:
    """What the processes told of the last cells; timelines are made when they are asked for."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._nbytes = 0

    def note(self, cell: int, told: Mapping[int, Told]) -> None:
        """Keeps what the processes told of a cell."""
        kept = _Kept(cell, told, _nbytes(told))
        self._kept.append(kept)
        self._nbytes += kept.nbytes
        while len(self._kept) > MAX_CELLS or (self._nbytes > MAX_BYTES and len(self._kept) > 1):
            self._nbytes -= self._kept.popleft().nbytes

    def timeline(self, cell: int | None = None) -> CellTimeline:
        """Returns a cell's timeline.

        Args:
            cell: The cell's number; the last of that number is meant. None for the last cell.

        Raises:
            UsageError: None is kept of such a cell.
        """
        for kept in reversed(self._kept):
            if cell is None or kept.cell == cell:
                return made(kept.cell, kept.told)
        if not self._kept:
            raise UsageError("No cell has been run yet. Run one with `%%spmd`.")
        known = ranks_label(kept.cell for kept in self._kept)
        raise UsageError(
            f"There is no timeline of cell [{cell}]: those of the last {MAX_CELLS} cells are kept "
            f"(fewer, where they are large), now of {known}. `%spmd_history` lists what was run."
        )


def made(cell: int, told: Mapping[int, Told]) -> CellTimeline:
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
    found = compared({i: _arrivals(each, starts[i]) for i, each in known.items()})
    return CellTimeline(
        cell=cell,
        processes={
            i: _process(i, told[i], each, starts[i], found.held.get(i, []))
            for i, each in known.items()
        },
        missing={i: "it did not come back from the cell" for i in told if i not in known},
        dispatches=found.dispatches,
        forgotten=max((each.dispatches - each.known for each in known.values()), default=0),
        lates=tuple(found.lates),
        stragglers=tuple(stragglers(found.lates)),
        hosts=len({each.host for each in told.values()}),
    )


def _arrivals(activity: Activity, offset: float) -> dict[Key, Arrival]:
    return {
        (site.processes, number): Arrival(start + offset, max(start, stop) + offset, site)
        for number, site, start, stop in activity.calls()
    }


def _process(
    index: int,
    told: Told,
    activity: Activity,
    start: float,
    held: Sequence[tuple[float, float]],
) -> ProcessTimeline:
    stop = start + told.seconds
    intervals = [Interval(_HELD, *each, "waiting") for each in held]
    intervals.append(Interval(_PYTHON, start, stop, "python"))
    for span in activity.spans:
        # An event may have begun before the cell: another thread's lock was waited for.
        one, other = max(start, start + span.start), min(stop, start + span.stop)
        intervals.append(Interval(_TOLD, one, other, span.kind))
    for _, _, began, ended in activity.calls():
        if ended:
            other = min(stop, start + ended)
            intervals.append(Interval(_DISPATCHING, start + began, other, "dispatching"))
    return ProcessTimeline(
        process_index=index,
        start=start,
        stop=stop,
        spans=tuple(painted(intervals)),
        dropped=activity.dropped,
        ending=told.ending,
    )
