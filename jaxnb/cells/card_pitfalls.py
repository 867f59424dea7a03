"""The card of what a cell did that JAX says nothing of."""

from __future__ import annotations

from jaxnb.cells.result import CellResult
from jaxnb.display.card import NOTHING, Card, render
from jaxnb.display.text import joined, middle, wrapped
from jaxnb.pitfalls.already_told import who

_MAX_SOURCE = 60


def pitfalls_card(result: CellResult) -> Card:
    """Pitfalls, each with its line, what it does, what to type instead, and its page."""
    if not result.pitfalls:
        return NOTHING
    rows, texts = [], []
    for each in result.pitfalls:
        where = f"line {each.line}" if each.line is not None else ""
        seen_by = who(each, len(result.per_process))
        source = middle(each.source, _MAX_SOURCE)
        rows.append(
            {
                "where": where,
                "source": source,
                "who": seen_by,
                "message": each.message,
                "advice": each.advice,
                "page": each.page,
            }
        )
        place = f"{where}: `{source}`" if source else where
        heading = joined([part for part in (f"⚠ {place}".strip(), seen_by) if part])
        body = " ".join(filter(None, [each.message, each.advice]))
        texts.append(f"{heading}\n{wrapped(body, indent=2)}\n  {each.page}")
    return Card(render("pitfalls", rows=rows), "\n".join(texts))
