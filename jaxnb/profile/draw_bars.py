"""Pure: a timeline's spans to bars, for text and for HTML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import floor, log10

from jaxnb.display.blocks import MARK_COLOR, Lanes, Length, Mark
from jaxnb.labels import format_precisely, ranks_label
from jaxnb.model.insight import Late, ProcessTimeline, SpanKind, Timeline

KIND_LABELS: dict[SpanKind, str] = {
    "python": "Python",
    "tracing": "tracing",
    "compiling": "compiling",
    "dispatching": "dispatching",
    "waiting": "waiting",
}

# Of Okabe and Ito's palette, as the processes' own colours: it stands out from white and black.
_COLORS: dict[SpanKind, str] = {
    "python": "#56B4E9",
    "tracing": "#CC79A7",
    "compiling": "#E69F00",
    "dispatching": "#009E73",
    "waiting": "rgba(136,136,136,.5)",
}

MAX_LINES = 60
"""So many collectives with a wait have a line in the picture, those with the longest."""

_COLUMNS = 680
"""How fine the bars are: there may be thousands of spans."""


def dominant(process: ProcessTimeline, seconds: float, columns: int) -> list[SpanKind | None]:
    """Returns for each of equal columns of time what took most of it; None where it was idle.

    Args:
        process: What one process did.
        seconds: The time that all columns make.
        columns: How many.
    """
    size = seconds / columns
    shares: list[dict[SpanKind, float]] = [{} for _ in range(columns)]
    for span in process.spans:
        first = min(columns - 1, int(span.start / size))
        last = min(columns - 1, int(span.stop / size))
        for column in range(first, last + 1):
            overlap = min(span.stop, (column + 1) * size) - max(span.start, column * size)
            share = shares[column]
            share[span.kind] = share.get(span.kind, 0.0) + overlap
    return [
        max(share, key=lambda kind, of=share: of[kind])  # type: ignore[misc]
        if share and sum(share.values()) >= size / 2
        else None
        for share in shares
    ]


def ticks(seconds: float, about: int) -> list[tuple[float, str]]:
    """Returns places on an axis from 0 to ``seconds``, and their labels, some ``about`` of them."""
    rough = seconds / about
    power = 10.0 ** floor(log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    unit, name = (1.0, "s") if seconds >= 1 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "µs")
    digits = max(0, -floor(log10(step / unit) + 1e-9))
    count = floor(seconds / step + 1e-9)
    return [
        (i * step, f"{i * step / unit:.{digits}f} {name}" if i else "0") for i in range(count + 1)
    ]


def lanes(timeline: Timeline, shown: Sequence[ProcessTimeline]) -> Lanes:
    """Returns the picture of a timeline.

    Args:
        timeline: It.
        shown: The processes that are in the picture.
    """
    places = {each.process_index: place for place, each in enumerate(shown)}
    kinds = {span.kind for each in shown for span in each.spans}
    marks = [_mark(late, places, timeline.seconds) for late in _longest(timeline, places)]
    legend = [(KIND_LABELS[k], _COLORS[k]) for k in KIND_LABELS if k in kinds]
    return Lanes(
        [f"process {index}" for index in places],
        [_lengths(each, timeline.seconds) for each in shown],
        marks,
        [(100 * at / timeline.seconds, label) for at, label in ticks(timeline.seconds, 5)],
        [*legend, ("last arrival", MARK_COLOR)] if marks else legend,
    )


def _lengths(process: ProcessTimeline, seconds: float) -> list[Length]:
    found: list[Length] = []
    start = 0
    for kind, group in groupby(dominant(process, seconds, _COLUMNS)):
        stop = start + len(list(group))
        if kind is not None:
            began, ended = (format_precisely(x * seconds / _COLUMNS) for x in (start, stop))
            title = f"process {process.process_index}: {KIND_LABELS[kind]}, {began} to {ended}"
            place = (100 * start / _COLUMNS, 100 * (stop - start) / _COLUMNS)
            found.append(Length(*place, _COLORS[kind], title))
        start = stop
    return found


def _longest(timeline: Timeline, places: Mapping[int, int]) -> list[Late]:
    there = [late for late in timeline.lates if late.last in places]
    there.sort(key=lambda late: -max(late.waited.values()))
    return there[:MAX_LINES]


def _mark(late: Late, places: Mapping[int, int], seconds: float) -> Mark:
    crossed = [places[index] for index in (*late.waited, late.last) if index in places]
    waited = format_precisely(max(late.waited.values()))
    title = (
        f"{late.site}, collective {late.number} over processes {ranks_label(late.site.processes)}: "
        f"process {late.last} came last; others waited up to {waited}"
    )
    return Mark(100 * late.at / seconds, min(crossed), max(crossed), title)
