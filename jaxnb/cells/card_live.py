"""Cards of a cell that is still running: lines being rewritten, and background cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxnb.cells.card_cell import cell_card
from jaxnb.cells.card_error import error_card
from jaxnb.cells.merge_bars import bars_as_one
from jaxnb.cells.merge_output import MergedLine
from jaxnb.cells.result import CellResult
from jaxnb.display.blocks import Pre
from jaxnb.display.card import NOTHING, Card, card_of, stacked
from jaxnb.launch.card_group import progress_card


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
