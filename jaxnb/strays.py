"""Output that came between cells: a thread of an earlier cell prints."""

from __future__ import annotations

from collections import deque

from jaxnb.transport.client import Exchange, Output

MAX_STRAYS = 10_000


class Strays:
    """Keeps output for the next cell; beyond a limit the oldest is dropped, and counted."""

    def __init__(self) -> None:
        self._kept: deque[Output] = deque(maxlen=MAX_STRAYS)
        self._dropped = 0

    def add(self, output: Output) -> None:
        """Keeps a piece of output."""
        self._dropped += len(self._kept) == MAX_STRAYS
        self._kept.append(output)

    def move_to(self, exchange: Exchange) -> int:
        """Hands all of it to a cell; returns how many pieces had been dropped."""
        while self._kept:
            exchange.events.put(self._kept.popleft())
        dropped, self._dropped = self._dropped, 0
        return dropped
