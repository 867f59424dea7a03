"""What the conductor knows of the processes, and its talks with them; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxnb.lockstep.messages import Answer, End, Explanation, Stop, Word


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


CanTell = Callable[[int, int], bool]
"""Whether a process, of those that a stop in a cell is for, may still tell of its word."""

EndOf = Callable[[int, int], End | None]
"""How a process has left a cell; None if it has not."""


@dataclass(slots=True)
class _Talk:
    """What is told of one stop.

    Attributes:
        cell: In which.
        awaited: Who is to tell: all that take part in what was stopped.
        told: What they have told.
        asking: Who waits to hear it, by process and token.
        must_hear_all: Whether all are to be heard: else none can tell whether they mean the same.
        is_over: Whether nobody is waited for any more: the cell was interrupted, or it took long.
        what: What all are told, once that is known.
    """

    cell: int
    awaited: frozenset[int]
    must_hear_all: bool
    told: dict[int, str] = field(default_factory=dict)
    asking: list[tuple[int, int]] = field(default_factory=list)
    is_over: bool = False
    what: Explanation | None = None


class Talks:
    """The talks of a group, by the numbers of the stops.

    All that are to tell are waited for, but for those that cannot before another process goes on:
    who has left the cell or died, waits with a word of its own, or waits to hear of another stop.
    """

    def __init__(self) -> None:
        self._talks: dict[int, _Talk] = {}

    def __bool__(self) -> bool:
        return bool(self._talks)

    def begin(self, number: int, cell: int, awaited: Iterable[int], *, must_hear_all: bool) -> None:
        """Begins the talk about a stop."""
        self._talks[number] = _Talk(cell, frozenset(awaited), must_hear_all)

    def held_up(self) -> frozenset[int]:
        """Returns the talks in which some wait for others, and need not."""
        return frozenset(
            number
            for number, talk in self._talks.items()
            if talk.asking and talk.what is None and not talk.must_hear_all
        )

    def explain_now(self, numbers: Iterable[int]) -> None:
        """Has nobody wait any more in these talks."""
        for number in numbers:
            if number in self._talks:
                self._talks[number].is_over = True

    def forget(self, cell: int) -> None:
        """Forgets the talks of a cell that all have left."""
        self._talks = {n: talk for n, talk in self._talks.items() if talk.cell != cell}

    def end(self, cell: int) -> None:
        """Has nobody wait any more for what is told in a cell."""
        for talk in self._talks.values():
            talk.is_over = talk.is_over or talk.cell == cell

    def die(self, process: int) -> None:
        """A process has ended: it waits for nothing any more."""
        for talk in self._talks.values():
            talk.asking = [each for each in talk.asking if each[0] != process]

    def tell(self, process: int, token: int, number: int, text: str) -> list[Answer]:
        """A process tells of its word, and waits to hear of the others'."""
        talk = self._talks.get(number)
        if talk is None:
            return [Answer(process, token, Explanation(number, ()))]
        if process in talk.awaited and talk.what is None:
            talk.told.setdefault(process, text)
        talk.asking.append((process, token))
        return []

    def answers(self, can_tell: CanTell, end_of: EndOf) -> list[Answer]:
        """Answers those who wait for a talk that has come to its end, if there is one."""
        waiting = {asker for talk in self._talks.values() for asker, _ in talk.asking}
        for number, talk in self._talks.items():
            missing = talk.awaited - talk.told.keys() - waiting
            if talk.what is None and (
                talk.is_over or not any(can_tell(q, talk.cell) for q in missing)
            ):
                talk.what = _explanation(number, talk, end_of)
            if talk.asking and talk.what is not None:
                asking, talk.asking = talk.asking, []
                return [Answer(process, token, talk.what) for process, token in asking]
        return []


def _explanation(number: int, talk: _Talk, end_of: EndOf) -> Explanation:
    found = {q: end_of(q, talk.cell) for q in sorted(talk.awaited - talk.told.keys())}
    ends = tuple((q, end) for q, end in found.items() if end is not None)
    return Explanation(number, tuple(sorted(talk.told.items())), ends)
