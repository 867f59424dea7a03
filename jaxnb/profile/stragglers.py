"""Pure: when each process came to each dispatch, to who came last and who waited."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from jaxnb.model.insight import CallSite, Late, Straggler
from jaxnb.profile.spans import union_seconds

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
