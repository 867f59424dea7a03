"""Output that is held: until what its process wrote before it is shown, or until the next cell."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from jaxnb.model.cells import StreamChunk
from jaxnb.wire.messages import ClearOutput, Display, Exchange, Output, Question

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


@dataclass(frozen=True, slots=True)
class Ended:
    """A process writes nothing more.

    Attributes:
        process_index: The process.
    """

    process_index: int


@dataclass(frozen=True, slots=True)
class LineEnds:
    """The line that a process is writing ends here: what it displays next stands below it.

    Attributes:
        process_index: The process.
    """

    process_index: int


Held = Display | ClearOutput | Question | StreamChunk | LineEnds | Ended


class HeldOutput:
    """What processes display or ask, and what they write after that.

    A display, a question or a clear waits until the lines are out that its process wrote before it,
    which may wait for their twins on other processes. What the process writes later waits behind
    it. So each process's output stands in the order in which it was made.
    """

    def __init__(self) -> None:
        self._queues: dict[int, deque[Held]] = {}

    def holds(self, process_index: int) -> bool:
        """Whether what a process writes now has to wait."""
        return process_index in self._queues

    def put(self, event: Held) -> None:
        """Takes output that has come."""
        self._queues.setdefault(event.process_index, deque()).append(event)

    def ready(self, is_waiting: Callable[[int], bool]) -> Iterator[Held]:
        """Yields, and forgets, what need not wait any more.

        Args:
            is_waiting: Whether complete lines of a process, of those that were yielded, are not
                out yet. It is asked anew before each display.
        """
        for index in sorted(self._queues):
            queue = self._queues[index]
            while queue:
                if isinstance(queue[0], Display | ClearOutput | Question) and is_waiting(index):
                    break
                yield queue.popleft()
            if not queue:
                del self._queues[index]
