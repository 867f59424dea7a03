"""The timelines of a session's last cells."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxnb.errors import UsageError
from jaxnb.labels import ranks_label
from jaxnb.model.insight import Activity, CallSite, Late, ProcessTimeline, Straggler, Timeline
from jaxnb.profile.spans import Interval, painted, union_seconds

LATE_SECONDS = 1e-4
"""Who comes later than the others by less is not late: clocks are read some microseconds after
the call, and two cores take turns."""

Key = tuple[int, tuple[int, ...], int]
"""Which request of the cell, the processes of the computation, the dispatch's number over them."""


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
    for (_, processes, number), there in by_key.items():
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
    """What one process told of one request of a cell.

    Attributes:
        activity: What its main thread did; None if it did not come back to tell.
        seconds: How long the request took there.
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
    requests: Sequence[Mapping[int, Told]]
    nbytes: int


def _nbytes(requests: Sequence[Mapping[int, Told]]) -> int:
    told = [each.activity for request in requests for each in request.values()]
    known = [each for each in told if each is not None]
    return sum(_DISPATCH_BYTES * each.known + _SPAN_BYTES * len(each.spans) for each in known)


class Timelines:
    """What the processes told of the last cells; timelines are made when they are asked for."""

    def __init__(self) -> None:
        self._kept: deque[_Kept] = deque()
        self._nbytes = 0

    def note(self, cell: int, requests: Sequence[Mapping[int, Told]]) -> None:
        """Keeps what the processes told of a cell: of one request, of several if it was timed."""
        kept = _Kept(cell, requests, _nbytes(requests))
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
                return made(kept.cell, kept.requests)
        if not self._kept:
            raise UsageError("No cell has been run yet. Run one with `%%spmd`.")
        known = ranks_label(kept.cell for kept in self._kept)
        raise UsageError(
            f"There is no timeline of cell [{cell}]: those of the last {MAX_CELLS} cells are kept "
            f"(fewer, where they are large), now of {known}. `%spmd_history` lists what was run."
        )


def made(cell: int, requests: Sequence[Mapping[int, Told]]) -> CellTimeline:
    """Returns the timeline of a cell.

    Args:
        cell: Its number.
        requests: For each of its requests, process index to what it told.
    """
    begins = _begins(requests)
    found = compared(_arrivals(requests, begins))
    processes, missing = {}, {}
    for index in requests[-1]:
        told = [request[index] for request in requests if index in request]
        if all(each.activity is None for each in told):
            missing[index] = "it did not come back from the cell"
        else:
            processes[index] = _process(index, told, begins, found.held.get(index, []))
    hosts = {told.host for request in requests for told in request.values()}
    forgotten = max((_forgotten(request) for request in requests), default=0)
    return CellTimeline(
        cell=cell,
        processes=processes,
        missing=missing,
        dispatches=found.dispatches,
        forgotten=forgotten,
        lates=tuple(found.lates),
        stragglers=tuple(stragglers(found.lates)),
        hosts=len(hosts),
    )


def _begins(requests: Sequence[Mapping[int, Told]]) -> dict[str, float]:
    """Returns when the cell began on each host, on the host's own clock."""
    begins: dict[str, float] = {}
    for request in requests[:1]:
        for told in request.values():
            if told.activity is not None:
                began = begins.get(told.host, told.activity.started)
                begins[told.host] = min(began, told.activity.started)
    return begins


def _offset(told: Told, begins: Mapping[str, float]) -> float:
    assert told.activity is not None
    return told.activity.started - begins.get(told.host, told.activity.started)


def _arrivals(
    requests: Sequence[Mapping[int, Told]], begins: Mapping[str, float]
) -> dict[int, dict[Key, Arrival]]:
    found: dict[int, dict[Key, Arrival]] = {}
    for place, request in enumerate(requests):
        for index, told in request.items():
            activity = told.activity
            if activity is None:
                continue
            offset = _offset(told, begins)
            mine = found.setdefault(index, {})
            for number, site, start, stop in activity.calls():
                key = (place, site.processes, number)
                mine[key] = Arrival(start + offset, max(start, stop) + offset, site)
    return found


def _process(
    index: int,
    told: Sequence[Told],
    begins: Mapping[str, float],
    held: Sequence[tuple[float, float]],
) -> ProcessTimeline:
    intervals = [Interval(_HELD, start, stop, "waiting") for start, stop in held]
    starts, stops = [], []
    for each in told:
        activity = each.activity
        if activity is None:
            continue
        start = _offset(each, begins)
        stop = start + each.seconds
        starts.append(start)
        stops.append(stop)
        intervals.append(Interval(_PYTHON, start, stop, "python"))
        for span in activity.spans:
            # An event may have begun before the cell: another thread's lock was waited for.
            one, other = max(start, start + span.start), min(stop, start + span.stop)
            intervals.append(Interval(_TOLD, one, other, span.kind))
        for _, _, began, ended in activity.calls():
            if ended:
                intervals.append(
                    Interval(_DISPATCHING, start + began, min(stop, start + ended), "dispatching")
                )
    return ProcessTimeline(
        process_index=index,
        start=min(starts),
        stop=max(stops),
        spans=tuple(painted(intervals)),
        dropped=sum(each.activity.dropped for each in told if each.activity is not None),
        ending=told[-1].ending,
    )


def _forgotten(request: Mapping[int, Told]) -> int:
    activities = [told.activity for told in request.values() if told.activity is not None]
    return max((each.dispatches - each.known for each in activities), default=0)
