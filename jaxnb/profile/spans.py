"""Pure: intervals that overlap and nest, to what a thread did when."""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import NamedTuple

from jaxnb.model.insight import Span, SpanKind


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
