"""What differs between programs that processes dispatched in place of one another."""

from __future__ import annotations

from jaxnb.cells.result import CellResult
from jaxnb.display.blocks import Facts, Fold, Pre
from jaxnb.display.card import NOTHING, Card, card_of
from jaxnb.lockstep import divergence


def divergence_card(result: CellResult) -> Card:
    """The difference as a sentence, and a short diff below it, folded; nothing if there is none."""
    parted = result.divergence
    if parted is None or parted.program is None:
        return NOTHING
    summary = Facts([parted.program.summary], wrap=False)
    return card_of(Fold(summary, [Pre(divergence.text_of(parted.program))]), tone="warn")
