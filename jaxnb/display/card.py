"""A card: the same content as HTML and as plain text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from jaxnb.display.blocks import Block, Note
from jaxnb.display.html import Tone, html_of
from jaxnb.display.plain import text_of


@dataclass(frozen=True, slots=True)
class Card:
    """What a cell or a magic shows.

    Attributes:
        html: For front ends that take HTML; safe, as :mod:`jaxnb.display.markup` escapes.
        text: The same for terminals, at most about 80 columns where its content allows.
    """

    html: str
    text: str

    def __str__(self) -> str:
        return self.text

    def _repr_mimebundle_(self, **_kwargs: Any) -> dict[str, str]:
        return {"text/html": self.html, "text/plain": self.text}


NOTHING = Card("", "")
"""A card that shows nothing."""


def card_of(*blocks: Block, tone: Tone = "") -> Card:
    """Returns the card of blocks, from top to bottom.

    Args:
        *blocks: The blocks.
        tone: In HTML it has a coloured edge: ``"warn"`` or ``"error"``.
    """
    return Card(html_of(blocks, tone), text_of(blocks))


def line_card(text: str) -> Card:
    """Returns the card of a sentence, which stays one line."""
    return card_of(Note(text, wrap=False))


def stacked(cards: Iterable[Card]) -> Card:
    """Returns one card with the content of several, from top to bottom."""
    known = [card for card in cards if card.html or card.text]
    return Card(
        "".join(card.html for card in known),
        "\n".join(card.text for card in known if card.text),
    )
