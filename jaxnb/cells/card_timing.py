"""The card of a timed cell: how long its calls took, on each process."""

from __future__ import annotations

from jaxnb.display.blocks import Cell, Column, Either, Facts, Length, Note, Row, Strip, Table
from jaxnb.display.card import Card, card_of
from jaxnb.labels import format_precisely, plural
from jaxnb.model.cells import CellTiming, ProcessTiming

_TITLES = ("process", "first call", "median", "middle half", "fastest", "slowest")
_MAX_ROWS = 64
_THIN, _BROAD, _LINE = "rgba(128,128,128,.45)", "rgba(59,125,221,.75)", "#D55E00"
_COMPILED = "The first call traces and compiles. "
_NOTE = "Middle half: a quarter of the calls after the first was faster, a quarter slower."
_SCALE = (
    "Bars: from 0 to {}; grey from the fastest to the slowest, blue the middle half, the line the "
    "median."
)


def timing_card(timing: CellTiming, *, compiled: bool = True) -> Card:
    """Median and spread of a timed cell's calls on each process, with the first call apart.

    Args:
        timing: The calls.
        compiled: Whether anything was compiled in them.
    """
    known = sorted(timing.per_process.items())
    scale = _scale(timing)
    bars = [_bar(each, scale) for _, each in known[:_MAX_ROWS]]
    rows: list[Row] = [
        [*_row(each), bar] for (_, each), bar in zip(known[:_MAX_ROWS], bars, strict=True)
    ]
    columns = [*(Column(title, ">") for title in _TITLES), Column(only="html")]
    heading = _heading(timing, {len(each.repeats) for each in timing.per_process.values()})
    legend = [Note(_scale_note(timing, scale), "dim")] if any(bar.strip for bar in bars) else []
    return card_of(
        Facts([], heading, wrap=False),
        Table(columns, rows, more=(len(known) - _MAX_ROWS, "row")),
        Note(f"{_COMPILED if compiled else ''}{_NOTE}", "dim"),
        Either(legend),
    )


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
        _spread(timing),
        _time(timing.fastest),
        _time(timing.slowest),
    ]


def _spread(timing: ProcessTiming) -> str:
    return "–" if timing.spread is None else " – ".join(map(format_precisely, timing.spread))


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


def _bar(timing: ProcessTiming, scale: float) -> Cell:
    """Returns the picture of a process's calls; an empty cell without any."""
    fastest, median, slowest = timing.fastest, timing.median, timing.slowest
    if timing.spread is None or fastest is None or median is None or slowest is None or not scale:
        return Cell()
    fast, low, middle, high, slow = (
        min(99.0, 100.0 * each / scale) for each in (fastest, timing.spread[0], median,
                                                     timing.spread[1], slowest)
    )  # fmt: skip
    after = min(middle + 1, 100.0)
    pieces = ((fast, low, _THIN), (low, middle, _BROAD), (middle, after, _LINE),
              (after, high, _BROAD), (max(after, high), slow, _THIN))  # fmt: skip
    lengths = [Length(start, stop - start, color) for start, stop, color in pieces if stop > start]
    title = (
        f"fastest {_time(fastest)}, middle half {_spread(timing)}, median {_time(median)}, "
        f"slowest {_time(slowest)}"
    )
    return Cell(strip=Strip(lengths, title, 110))
