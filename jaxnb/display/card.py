"""A card: the same content as HTML and as plain text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from jaxnb.display.blocks import Block, Cell, Column, Either, Facts, Fold, Note, Shown, Table
from jaxnb.display.html import Tone, html_of
from jaxnb.display.markup import Said
from jaxnb.display.text import labelled, text_of
from jaxnb.labels import processes_label, ranks_label


@dataclass(frozen=True, slots=True)
class Card:
    """What a cell or a magic shows: blocks, rendered when they are asked for.

    Attributes:
        sections: Blocks from top to bottom, each group with a tone; ``"warn"`` and ``"error"`` have
            a coloured edge in HTML.
    """

    sections: tuple[tuple[tuple[Block, ...], Tone], ...] = ()

    @property
    def html(self) -> str:
        """For front ends that take HTML; safe, as :mod:`jaxnb.display.markup` escapes."""
        return "".join(html_of(blocks, tone) for blocks, tone in self.sections)

    @property
    def text(self) -> str:
        """The same for terminals, at most about 80 columns where its content allows."""
        return text_of(block for blocks, _ in self.sections for block in blocks)

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_kwargs: Any) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


NOTHING = Card()
"""A card that shows nothing."""


def card_of(*blocks: Block, tone: Tone = "") -> Card:
    """Returns the card of blocks, from top to bottom, with a tone."""
    return Card(((blocks, tone),))


def line_card(text: str) -> Card:
    """Returns the card of a sentence, which stays one line."""
    return card_of(Note(text, wrap=False))


def stacked(cards: Iterable[Card]) -> Card:
    """Returns one card with the content of several, from top to bottom."""
    return Card(tuple(section for card in cards for section in card.sections))


def by_process_block(
    rows: Sequence[Said], silent: Sequence[int] = (), *, rich: bool, opened: bool = False
) -> Either:
    """Returns a table of values by process; of rich ones the first, the others a click away.

    Args:
        rows: The values.
        silent: The processes that have none.
        rich: Some are more than text.
        opened: All are shown.
    """
    labels = [(f"[{ranks_label(row.processes)}]", row.view.text) for row in rows]
    labels += [(f"[{ranks_label(silent)}]", "no value")] if silent else []
    shown = _rich(rows, silent, opened) if rich else [_table(rows, silent)]
    return Either(shown, "\n".join(labelled(labels)))


def _rich(rows: Sequence[Said], silent: Sequence[int], opened: bool) -> list[Block]:
    blocks: list[Block] = []
    for i, row in enumerate(rows):
        who, view = processes_label(row.processes), Shown(row.view)
        if i or opened:
            blocks.append(Fold(Facts([who]), [view], opened))
        else:
            blocks += [Note(who, "dim"), view]
    return [*blocks, Note(f"{processes_label(silent)}: no value", "dim")] if silent else blocks


def _table(rows: Sequence[Said], silent: Sequence[int]) -> Table:
    cells: list[list[Cell]] = [
        [Cell(processes_label(row.processes), "head"), Cell(row.view.content, "pre")]
        for row in rows
    ]
    if silent:
        cells.append([Cell(processes_label(silent), "head"), Cell("no value", "dim")])
    return Table([Column(), Column()], cells)
