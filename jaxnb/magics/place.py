"""One output of a notebook that is updated in place: live lines, panels, progress, background."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from typing import Any

from IPython import get_ipython

from jaxnb.display.card import NOTHING, Card

LIVE_SECONDS = 0.2
"""Shortest time between two showings of what changes all the time."""


class Place:
    """An output that shows one card, from any thread; the next card takes its place.

    It stands in the cell that runs when it is shown first, and stays there: `%%capture` around
    later code does not take it.

    Args:
        cell: Returns what tells the running cell from others: each has an output of its own then.
    """

    def __init__(self, cell: Callable[[], object] | None = None) -> None:
        self._cell = cell
        self._shown_in: object = None
        self._publisher: Any = None
        self._display_id = ""
        self._has_card = False
        self._shown_at = 0.0
        self._next: Callable[[], Card] | None = None  # makes what was offered too soon

    def show(self, card: Card) -> None:
        """Shows a card at once."""
        if self._cell is not None and self._shown_in != (here := self._cell()):
            self._shown_in = here
            self.leave()
        update = bool(self._display_id)
        if not update:
            self._publisher, self._display_id = get_ipython().display_pub, uuid.uuid4().hex
        self._next, self._has_card, self._shown_at = None, card is not NOTHING, time.monotonic()
        where = {"display_id": self._display_id}
        self._publisher.publish(card._repr_mimebundle_(), transient=where, update=update)

    def offer(self, make: Callable[[], Card]) -> None:
        """Shows a card a few times a second at most: what comes too soon waits for :meth:`tick`."""
        self._next = make
        self.tick()

    def tick(self) -> None:
        """Shows what was offered last, once it is time; called a few times a second."""
        if self._next is not None and time.monotonic() - self._shown_at >= LIVE_SECONDS:
            self.show(self._next())

    def clear(self) -> None:
        """Takes the card away, if one is shown; the place stays."""
        self._next = None
        if self._has_card:
            self.show(NOTHING)

    def leave(self) -> None:
        """Leaves what is shown as it is: the next card is an output of its own."""
        self._display_id, self._has_card, self._next = "", False, None

    def finish(self, card: Card) -> None:
        """Shows a last card, and leaves it."""
        self.show(card)
        self.leave()
