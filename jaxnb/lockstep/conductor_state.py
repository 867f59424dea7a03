"""What the conductor knows of each process: what it runs, and what its threads wait for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxnb.lockstep.messages import End, Stop, Word


class Waiting(NamedTuple):
    """A word that has no answer yet.

    Attributes:
        process: Who said it.
        token: Which of its threads.
        word: The word.
        text: What it tells the other participants beside it.
    """

    process: int
    token: int
    word: Word
    text: str = ""


@dataclass(slots=True)
class Process:
    """What is known of one process.

    Attributes:
        cell: The cell that it runs; 0 between cells.
        left: The last cell that it has left, and how.
        is_dead: Whether it has ended.
        main: What its main thread waits for.
        others: What its other threads wait for, by token.
        due: What its main thread is told as the answer to its next word.
        is_pressed: Whether it was sent a signal that it has not told of yet.
        granted: How often it was let go.
    """

    cell: int = 0
    left: tuple[int, End] = (0, End())
    is_dead: bool = False
    main: Waiting | None = None
    others: dict[int, Waiting] = field(default_factory=dict)
    due: Stop | None = None
    is_pressed: bool = False
    granted: int = 0

    def answer(self, waiting: Waiting) -> None:
        """Notes that one of its threads waits no more."""
        if self.main is waiting:
            self.main = None
        else:
            self.others.pop(waiting.token, None)


@dataclass(slots=True)
class Round:
    """A word that all who wait have said, and that all who take part may still say.

    Almost every word is of one: then nothing but itself can follow from it.

    Attributes:
        word: The word.
        cell: The cell in which it is said.
        missing: How many have not said it yet.
    """

    word: Word
    cell: int
    missing: int


def may_come(processes: Sequence[Process], word: Word, possible: Iterable[Word]) -> bool:
    """Whether every participant may still say a word, after others that may be granted."""
    known = list(possible)
    for q in word.participants:
        main = processes[q].main
        if main is None or main.word.agrees_with(word):
            continue
        if not any(main.word.agrees_with(each) for each in known):
            return False
    return True
