"""Output that came between cells: a thread of an earlier cell prints."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection

from jaxnb.model.cells import StreamChunk
from jaxnb.wire.messages import Display, Exchange, Output

MAX_STRAYS = 10_000
MAX_CHARS = 8 << 20
"""How much text is kept: threads of many earlier cells may print without end."""


class Strays:
    """Keeps output for the next cell; beyond a limit the oldest is dropped, and counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # output comes in the connection's thread
        self._kept: deque[Output] = deque()
        self._chars = 0
        self._dropped = 0

    def add(self, output: Output) -> None:
        """Keeps a piece of output."""
        with self._lock:
            self._kept.append(output)
            self._chars += _chars(output)
            while len(self._kept) > MAX_STRAYS or self._chars > MAX_CHARS:
                self._chars -= _chars(self._kept.popleft())
                self._dropped += 1

    def move_to(self, exchange: Exchange, processes: Collection[int]) -> int:
        """Hands the output of a cell's processes to it, and keeps that of the others.

        Returns:
            How many pieces had been dropped.
        """
        with self._lock:
            others = deque(each for each in self._kept if each.process_index not in processes)
            for output in self._kept:
                if output.process_index in processes:
                    exchange.events.put(output)
            self._kept = others
            self._chars = sum(map(_chars, others))
            dropped, self._dropped = self._dropped, 0
        return dropped


def _chars(output: Output) -> int:
    match output:
        case StreamChunk(text=text):
            return len(text)
        case Display(output=shown):
            return sum(len(data) for data in shown.data.values() if isinstance(data, str))
    return 0
