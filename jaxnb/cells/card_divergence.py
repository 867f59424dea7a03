"""What differs between programs that processes dispatched in place of one another."""

from __future__ import annotations

from jaxnb.cells.result import CellResult
from jaxnb.display.card import NOTHING, Card, render
from jaxnb.lockstep import programs


def divergence_card(result: CellResult) -> Card:
    """The difference as a sentence, and a short diff below it, folded; nothing if there is none."""
    parted = result.divergence
    if parted is None or parted.program is None:
        return NOTHING
    found = parted.program
    diff = programs.text_of(found)
    return Card(render("divergence", summary=found.summary, diff=diff), f"{found.summary}\n{diff}")
