"""Pure: a timeline's spans to bars, for text and for the SVG template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

from jaxnb.labels import format_precisely, ranks_label
from jaxnb.model.timeline import Late, ProcessTimeline, SpanKind, Timeline

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
    "waiting": "#888888",
}

MAX_LINES = 60
"""So many collectives with a wait have a line in the picture, those with the longest."""

_WIDTH, _HEIGHT, _GAP, _LEFT, _TOP, _AXIS = 680, 16, 6, 76, 6, 22


@dataclass(frozen=True, slots=True)
class Block:
    """A rectangle of one kind."""

    x: float
    y: int
    width: float
    kind: SpanKind
    color: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """A collective at which others waited."""

    x: float
    y: int
    height: int
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A mark of the axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Bars:
    """The picture of a timeline.

    Attributes:
        width: Of all.
        height: Of all.
        bar_height: Of a bar.
        bottom: Where the axis is.
        left: Where the bars begin.
        right: Where they end.
        labels: Their names, with the height of each.
        blocks: What fills them.
        lines: Collectives at which others waited.
        ticks: The axis.
        legend: Names and colours of the kinds that there are.
        summary: For those who cannot see it.
    """

    width: int
    height: int
    bar_height: int
    bottom: int
    left: int
    right: int
    labels: tuple[tuple[str, int], ...]
    blocks: tuple[Block, ...]
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    legend: tuple[tuple[str, str], ...]
    summary: str


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


def bars(timeline: Timeline, shown: Sequence[ProcessTimeline]) -> Bars:
    """Returns the picture of a timeline.

    Args:
        timeline: It.
        shown: The processes that are in the picture.
    """
    scale = _WIDTH / timeline.seconds
    rows = {each.process_index: _TOP + i * (_HEIGHT + _GAP) for i, each in enumerate(shown)}
    bottom = _TOP + len(shown) * (_HEIGHT + _GAP) - _GAP + 4
    kinds = {span.kind for each in shown for span in each.spans}
    return Bars(
        width=_LEFT + _WIDTH + 24,
        height=bottom + _AXIS,
        bar_height=_HEIGHT,
        bottom=bottom,
        left=_LEFT,
        right=_LEFT + _WIDTH,
        labels=tuple((f"process {index}", y + _HEIGHT - 4) for index, y in rows.items()),
        blocks=tuple(block for each in shown for block in _blocks(each, rows, timeline.seconds)),
        lines=tuple(_line(late, rows, scale) for late in _longest(timeline, rows)),
        ticks=tuple(Tick(_LEFT + at * scale, label) for at, label in ticks(timeline.seconds, 8)),
        legend=tuple((KIND_LABELS[k], _COLORS[k]) for k in KIND_LABELS if k in kinds),
        summary=f"what processes {ranks_label(rows)} did in cell [{timeline.cell}], over time",
    )


def _blocks(process: ProcessTimeline, rows: dict[int, int], seconds: float) -> list[Block]:
    """Returns a bar's rectangles, no finer than a pixel: there may be thousands of spans."""
    columns = dominant(process, seconds, _WIDTH)
    y, found, start = rows[process.process_index], [], 0
    for i in range(1, _WIDTH + 1):
        if i < _WIDTH and columns[i] == columns[start]:
            continue
        kind = columns[start]
        if kind is not None:
            began, ended = (format_precisely(x * seconds / _WIDTH) for x in (start, i))
            title = f"process {process.process_index}: {KIND_LABELS[kind]}, {began} to {ended}"
            found.append(Block(_LEFT + start, y, i - start, kind, _COLORS[kind], title))
        start = i
    return found


def _longest(timeline: Timeline, rows: dict[int, int]) -> list[Late]:
    there = [late for late in timeline.lates if late.last in rows]
    there.sort(key=lambda late: -max(late.waited.values()))
    return there[:MAX_LINES]


def _line(late: Late, rows: dict[int, int], scale: float) -> Line:
    ys = [rows[index] for index in (*late.waited, late.last) if index in rows]
    waited = format_precisely(max(late.waited.values()))
    title = (
        f"{late.site}, collective {late.number} over processes {ranks_label(late.site.processes)}: "
        f"process {late.last} came last; others waited up to {waited}"
    )
    return Line(_LEFT + late.at * scale, min(ys) - 3, max(ys) - min(ys) + _HEIGHT + 6, title)
