"""The last computations that this process has made with others, and what became of them."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from jaxnb.engine.recorded import CellSoFar, Entry
from jaxnb.lockstep.ends import Begun, Ends, Key
from jaxnb.model.dispatches import Processes

LAST = 64
"""So many are remembered beyond the end of their cell: one may fail after that."""


class Failures(NamedTuple):
    """What this process has failed to make of what was agreed on.

    Attributes:
        number: Equal on processes that have failed to make the same; 0 for nothing.
        last: The last of these, in words.
    """

    number: int = 0
    last: str = ""


class Launches:
    """Remembers the main thread's dispatches in which processes wait for each other.

    One that fails as it is made on one process is made by the others all the same, and the next
    one's collectives would meet those in which they wait: what was agreed on alike is made alike
    from then on only where the same had failed.
    """

    def __init__(self) -> None:
        self._last: deque[tuple[Begun, Entry]] = deque(maxlen=LAST)
        self._failures: dict[Processes, Failures] = {}

    def add(self, cell: CellSoFar, entry: Entry) -> None:
        """Takes a dispatch that is about to be made; nobody else adds or settles meanwhile."""
        known = entry.known
        if known.collectives:
            key = Key(cell.run, known.processes, entry.number)
            self._last.append((Begun(key, known.name, cell.number, entry.line), entry))

    def note_failed(self, entry: Entry) -> None:
        """Takes that one was not made, as it raised."""
        for begun, each in reversed(self._last):
            if each is entry:
                before = self.failures(begun.key.processes)
                number = hash((before.number, *begun.key.flat())) or 1
                self._failures[begun.key.processes] = Failures(number, str(begun))
                return

    def failures(self, processes: Processes) -> Failures:
        """Returns what was not made of what spans these processes."""
        return self._failures.get(processes, Failures())

    def settle(self) -> bool:
        """Forgets what has come to its end; returns whether any of the rest has failed."""
        fates = [(each, each[1].fate()) for each in self._last]
        self._last = deque((each for each, fate in fates if fate), maxlen=LAST)
        return any(fate == "failed" for _, fate in fates)

    def ends(self) -> Ends:
        """Returns what became of them, without waiting; from any thread."""
        found: dict[str, list[Begun]] = {"": [], "failed": [], "pending": []}
        for begun, entry in list(self._last):
            found[entry.fate()].append(begun)
        return Ends(tuple(found["failed"]), tuple(found["pending"]))
