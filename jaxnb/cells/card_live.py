"""Cards of a cell that is still running: lines being rewritten, and background cells."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from jaxnb.cells.card_cell import cell_card
from jaxnb.cells.card_error import error_card
from jaxnb.cells.merge_output import MergedLine
from jaxnb.cells.result import CellResult
from jaxnb.display.blocks import Pre
from jaxnb.display.card import NOTHING, Card, card_of, stacked
from jaxnb.labels import processes_label
from jaxnb.launch.card_group import progress_card

BAR = re.compile(r"(.*?)(\d+)%\|.*?\|\s*(\d+)?")
"""What tqdm writes: a description, how far it is, a bar, and a count."""


def bars_as_one(lines: Sequence[MergedLine]) -> list[MergedLine]:
    """Returns lines with those bars as one that differ only in how far each process is.

    It is the bar of the slowest, and names that and the fastest.
    """
    bars: dict[object, list[tuple[tuple[int, int], MergedLine]]] = {}
    for i, line in enumerate(lines):
        bar = BAR.match(line.text)
        at = (int(bar[2]), int(bar[3] or 0)) if bar else (0, 0)
        bars.setdefault((line.name, bar[1].rstrip()) if bar else i, []).append((at, line))
    return [_one_bar(those) for those in bars.values()]


def _one_bar(bars: Sequence[tuple[tuple[int, int], MergedLine]]) -> MergedLine:
    (least, slowest), (most, fastest) = (f(bars, key=lambda bar: bar[0]) for f in (min, max))
    who = frozenset().union(*(line.processes for _, line in bars))
    if least == most:
        return replace(slowest, processes=who)
    told = (
        f" · slowest {processes_label(sorted(slowest.processes))}, "
        f"fastest {processes_label(sorted(fastest.processes))} at {most[0]}%"
    )
    return replace(slowest, processes=who, text=slowest.text + told)


def live_card(lines: Sequence[MergedLine]) -> Card:
    """Progress bars and unfinished lines, as they are now."""
    lines = bars_as_one(lines)
    # One width for all labels, or bars that should be compared do not begin below each other.
    width = max((len(line.label) for line in lines), default=0)
    return output_card([replace(line, label_width=width) for line in lines])


def output_card(lines: Sequence[MergedLine]) -> Card:
    """Lines of output as a block; nothing at all for no lines."""
    return card_of(output_block(lines)) if lines else NOTHING


def output_block(lines: Sequence[MergedLine]) -> Pre:
    """Returns lines of output as they are."""
    return Pre("\n".join(line.labelled() for line in lines))


def background_card(
    cell: int,
    since: str,
    lines: Sequence[MergedLine],
    displays: Card,
    result: CellResult | None,
    trouble: str | None,
) -> Card:
    """A cell that runs in the background, up to its end.

    Args:
        cell: Its number.
        since: When it began, as a time of day.
        lines: The last lines of its output.
        displays: Its rich outputs.
        result: What it did, once it has ended.
        trouble: Why it ended without a result, or beside it.
    """
    parts = [output_card(lines), displays]
    if result is not None:
        parts += [error_card(result), cell_card(result)]
    if trouble is not None:
        parts.append(card_of(Pre(trouble), tone="error"))
    if result is None and trouble is None:
        parts.append(progress_card(f"cell [{cell}]", f"in the background since {since}", None))
    return stacked(parts)
