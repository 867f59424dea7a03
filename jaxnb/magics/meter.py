"""The progress of long transfers: a bar in the notebook, a line in a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from IPython.display import display

from jaxnb.display.card import Card
from jaxnb.magics.place import LIVE_SECONDS, Place
from jaxnb.magics.sinks import is_notebook

if TYPE_CHECKING:
    from jaxnb.arrays.moving import Ticker

QUIET_SECONDS = 1.0
"""Transfers that are over sooner show nothing."""


class TransferMeter:
    """Shows the progress of transfers: a :data:`jaxnb.arrays.moving.Meter`.

    Nothing is shown of one that takes less than a second. At its end, good or bad, the bar is
    taken away.

    Args:
        place: Where bars are shown: a notebook's output, or a terminal's current line.
        clock: Returns the time in seconds.

    Attributes:
        moved_bytes: How much all transfers have moved so far.
        moving_seconds: How long that took, without what came before and after: waiting for a
            cell to end, preparing the data.
    """

    def __init__(
        self, place: Place | TerminalPlace, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._place = place
        self._clock = clock
        self.moved_bytes = 0
        self.moving_seconds = 0.0

    @contextmanager
    def __call__(self, doing: str, total_bytes: int) -> Iterator[Ticker]:
        """Shows one transfer; gives what takes the number of bytes done."""
        from jaxnb.arrays import card_transfer

        started = self._clock()
        show_at = started + QUIET_SECONDS
        before = self.moved_bytes

        def tick(done_bytes: int) -> None:
            nonlocal show_at
            self.moved_bytes = before + done_bytes
            now = self._clock()
            if now < show_at or done_bytes >= total_bytes:
                return
            show_at = now + LIVE_SECONDS
            with suppress(Exception):  # a front end that fails must not end the transfer
                self._place.show(
                    card_transfer.transfer_card(doing, done_bytes, total_bytes, now - started)
                )

        try:
            yield tick
        finally:
            self.moving_seconds += self._clock() - started
            with suppress(Exception):
                self._place.clear()

    def finish(self, card: Card) -> None:
        """Shows a card about what was moved, where the bar was."""
        self._place.finish(card)


class TerminalPlace:
    """The current line of a terminal."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, card: Card) -> None:
        """Shows the bar, over the one before."""
        self._write(card.text)

    def clear(self) -> None:
        """Blanks the line, if a bar is on it."""
        if self._width:
            self._write("")
            self._write("")

    def finish(self, card: Card) -> None:
        """Shows the last card."""
        display(card)

    def _write(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)


def meter_for(shell: Any) -> TransferMeter:
    """Returns what shows the progress of transfers in a shell."""
    if is_notebook(shell):
        return TransferMeter(Place(lambda: shell.displayhook.prompt_count))
    return TransferMeter(TerminalPlace())
