"""The card of what a cell did that JAX says nothing of."""

from __future__ import annotations

from jaxnb.cells.result import CellResult
from jaxnb.display.blocks import Block, Facts, Note
from jaxnb.display.card import NOTHING, Card, card_of
from jaxnb.display.text import middle
from jaxnb.model.scripts import in_notebook
from jaxnb.pitfalls.already_told import who

_MAX_SOURCE = 60


def pitfalls_card(result: CellResult) -> Card:
    """Pitfalls, each with its line, what it does, what to type instead, and its page."""
    blocks: list[Block] = []
    for each in result.pitfalls:
        place = f"line {each.line}" if each.line is not None else ""
        if source := middle(each.source, _MAX_SOURCE):
            place += f": `{source}`"
        seen_by = who(each, len(result.per_process))
        head = Facts([*filter(None, [seen_by])], place, before="⚠ ")
        more = in_notebook(f"`{each.page}` says more.")
        body = " ".join(filter(None, [each.message, each.advice, more]))
        before = "  " if place or seen_by else "⚠ "
        blocks += [head, Note(body, before=before)]
    return card_of(*blocks, tone="warn") if blocks else NOTHING
