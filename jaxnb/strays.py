"""Output that came between cells: a thread of an earlier cell prints."""

from __future__ import annotations

from collections import deque

from jaxnb.model import StreamChunk
from jaxnb.transport.client import Display, Exchange, Output

MAX_STRAYS = 10_000
MAX_CHARS = 8 << 20
"""How much text is kept: threads of many earlier cells may print without end."""


class Strays:
    """Keeps output for the next cell; beyond a limit the oldest is dropped, and counted."""

    def __init__(self) -> None:
        self._kept: deque[Output] = deque()
        self._chars = 0
        self._dropped = 0

    def add(self, output: Output) -> None:
        """Keeps a piece of output."""
        self._kept.append(output)
        self._chars += _chars(output)
        while len(self._kept) > MAX_STRAYS or self._chars > MAX_CHARS:
            self._chars -= _chars(self._kept.popleft())
            self._dropped += 1

    def move_to(self, exchange: Exchange) -> int:
        """Hands all of it to a cell; returns how many pieces had been dropped."""
        while self._kept:
            exchange.events.put(self._kept.popleft())
        self._chars = 0
        dropped, self._dropped = self._dropped, 0
        return dropped


def _chars(output: Output) -> int:
    match output:
        case StreamChunk(text=text):
            return len(text)
        case Display(output=shown):
            return sum(len(data) for data in shown.data.values() if isinstance(data, str))
    return 0
