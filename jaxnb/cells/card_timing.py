"""The card of a timed cell: how long its calls took, on each process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxnb.display.card import Card, render
from jaxnb.display.text import text_table, wrapped
from jaxnb.labels import format_precisely, plural
from jaxnb.model.timing import CellTiming, ProcessTiming

_TITLES = ("process", "first call", "median", "middle half", "fastest", "slowest")
_ALIGN = ">>>>>>"
_MAX_ROWS = 64
_NOTE = (
    "The first call traces and compiles. Middle half: a quarter of the other calls was faster, a "
    "quarter slower."
)
_SCALE = (
    "Bars: from 0 to {}; the thin one from the fastest to the slowest, the broad one the middle "
    "half, the line the median."
)


@dataclass(frozen=True, slots=True)
class _Range:
    """A picture of a process's calls, in percent of the longest time that is shown."""

    left: float
    width: float
    box_left: float
    box_width: float
    middle: float


def timing_card(timing: CellTiming) -> Card:
    """Median and spread of a timed cell's calls on each process, with the first call apart."""
    known = sorted(timing.per_process.items())
    rows = [_row(each) for _, each in known[:_MAX_ROWS]]
    more = max(0, len(known) - _MAX_ROWS)
    counts = {len(each.repeats) for each in timing.per_process.values()}
    heading = _heading(timing, counts)
    scale = _scale(timing)
    ranges = [_range(each, scale) for _, each in known[:_MAX_ROWS]]
    has_bars = any(each is not None for each in ranges)
    html = render(
        "timing",
        heading=heading,
        titles=_TITLES,
        rows=list(zip(rows, ranges, strict=True)),
        more=more,
        note=_NOTE,
        scale=_scale_note(timing, scale) if has_bars else "",
    )
    parts = [heading, text_table([_TITLES, *rows], _ALIGN)]
    if more:
        parts.append(f"  … {plural(more, 'more row')}")
    return Card(html, "\n".join([*parts, wrapped(_NOTE)]))


def _heading(timing: CellTiming, counts: set[int]) -> str:
    if not any(counts):
        return "timed · no call after the first"
    shown = plural(max(counts), "call") + " after the first"
    if len(counts) > 1:
        shown = f"{min(counts)} to {shown}, as not all ended"
    median = timing.median
    return f"timed · {shown}" + (
        f" · {format_precisely(median)} on the slowest process" if median is not None else ""
    )


def _row(timing: ProcessTiming) -> list[str]:
    return [
        str(timing.process_index),
        _time(timing.first),
        _time(timing.median),
        "–" if timing.spread is None else " – ".join(map(format_precisely, timing.spread)),
        _time(timing.fastest),
        _time(timing.slowest),
    ]


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else format_precisely(seconds)


def _scale(timing: CellTiming) -> float:
    """Returns the time at the bars' right end: one slow call must not make them all short."""
    slowest = max((each.slowest or 0.0 for each in timing.per_process.values()), default=0.0)
    spreads = [each.spread for each in timing.per_process.values() if each.spread is not None]
    highest = max((high for _, high in spreads), default=slowest)
    return min(slowest, 2.0 * highest)


def _scale_note(timing: CellTiming, scale: float) -> str:
    note = _SCALE.format(format_precisely(scale))
    is_cut = any((each.slowest or 0.0) > scale for each in timing.per_process.values())
    return (
        f"{note} A bar that ends at the right goes on: the table has the slowest."
        if is_cut
        else note
    )


def _range(timing: ProcessTiming, scale: float) -> _Range | None:
    times: Sequence[float | None] = (timing.fastest, timing.slowest, timing.median)
    if timing.spread is None or None in times or not scale:
        return None
    low, high, fast, slow, middle = (
        min(100.0, 100.0 * (each or 0.0) / scale) for each in (*timing.spread, *times)
    )
    return _Range(fast, slow - fast, low, max(0.8, high - low), middle)
