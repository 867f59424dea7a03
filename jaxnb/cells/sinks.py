"""Where a running cell's output goes; magics show it, a session keeps it for the result."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from jaxnb.cells.card_cell import INTERRUPT, waits_text
from jaxnb.cells.merge_output import MergedLine
from jaxnb.model.cells import RichOutput, StreamChunk
from jaxnb.model.group import Waits
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


class OutputSink:
    """Where a running cell's output goes, as it comes; these methods do nothing.

    Attributes:
        shows_cards: Whoever shows this shows the cell's card too, which tells of pitfalls.
        interrupt_by: How the user interrupts the cell.
    """

    shows_cards: bool = False
    interrupt_by: str = INTERRUPT

    def begin(self, processes: tuple[int, ...]) -> None:
        """Takes which processes run the cell, before any output."""

    def tick(self) -> None:
        """Does what is due; called a few times a second while the cell runs."""

    def lines(self, lines: list[MergedLine]) -> None:
        """Takes lines that are final."""

    def live(self, lines: list[MergedLine]) -> None:
        """Takes the lines that are being rewritten now, all of them; they are not final."""

    def notice(self, text: str) -> None:
        """Takes a sentence of jaxnb's own about the running cell."""

    def waits(self, waits: Waits) -> None:
        """Takes where processes wait, again and again; then that they wait no more."""

    def display(self, process_index: int, output: RichOutput) -> None:
        """Takes a rich output of a process."""

    def clear(self, process_index: int, wait: bool) -> None:
        """Takes a process's wish to clear its output so far; with ``wait``, at its next."""


class NoSink(OutputSink):
    """Drops everything: the result holds it all the same. A base for sinks that take a part."""


STILL_SECONDS = 10.0
"""Where processes are that wait for nobody is said after so long at one line."""


class SaysWaits(OutputSink):
    """Says once where processes wait, for sinks that show nothing in place."""

    _told: frozenset[object] = frozenset()

    def waits(self, waits: Waits) -> None:
        """Says where processes are, each state once: a loop has its straggler again and again."""
        seconds = max((each.seconds for each in waits.places), default=0.0)
        if waits.has_ended or (waits.is_neutral and not waits.waiting and seconds < STILL_SECONDS):
            return
        where = frozenset((each.processes, each.place, each.waits) for each in waits.places)
        state = where, waits.reason, waits.silent
        if state not in self._told:
            self._told |= {state}
            self.notice(waits_text(waits, self.interrupt_by))


class StderrNotices(SaysWaits):
    """Shows jaxnb's own sentences on standard error, and nothing else.

    Without a sink, :meth:`Session.run` uses it: a cell that will not end says so here. What is to
    be warned of when it has ended is a Python warning then.
    """

    def notice(self, text: str) -> None:
        """Shows a sentence."""
        sys.stderr.write(f"jaxnb: {text}\n")
        sys.stderr.flush()
