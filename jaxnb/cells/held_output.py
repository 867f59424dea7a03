"""Pure: output that waits for what its process wrote before it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from jaxnb.model.cells import StreamChunk
from jaxnb.wire.messages import ClearOutput, Display, Question


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
