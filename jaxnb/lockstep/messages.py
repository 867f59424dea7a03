"""What a process and its group's conductor say to each other, and where that is reached."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import unquote

from jaxnb.labels import capitalized, processes_label

# What is made for each word is a named tuple: a frozen dataclass takes four times as long to make.

Processes = tuple[int, ...]
"""Process indices, ascending, each once."""

Lane = Literal["main", "other"]
"""Which thread asks: that of the cell, or another one (a loader, an asynchronous checkpoint). Words
of the main threads come in one order on all processes; those of others need not."""


class Word(NamedTuple):
    """What a process is about to dispatch.

    Attributes:
        participants: The processes whose devices the computation uses.
        program: A digest of the compiled program.
        inputs: A digest of what it is given: origins of global arrays, bytes of host data.
        line: The cell's line; 0 outside of a cell's code. Two words that differ in nothing else are
            the same.
    """

    participants: Processes
    program: bytes
    inputs: bytes
    line: int = 0

    def agrees_with(self, other: Word) -> bool:
        """Whether both are of one computation."""
        return self is other or (
            self.program == other.program
            and self.inputs == other.inputs
            and self.participants == other.participants
        )


@dataclass(frozen=True, slots=True)
class End:
    """How a process has left a cell.

    Attributes:
        error: What it raised: ``"NameError: los"``; empty if it came to its end.
    """

    error: str = ""


@dataclass(frozen=True, slots=True)
class Side:
    """Processes that said, or did, the same.

    Attributes:
        processes: Which.
        word: What they were about to dispatch; None for those that were not.
        end: How they have left the cell; None for those that have not.
    """

    processes: Processes
    word: Word | None = None
    end: End | None = None


StopKind = Literal["diverged", "ring", "left", "not asked", "dead", "interrupted", "withdrawn"]
"""Why a computation is not dispatched: the processes said different words; all wait, each for
another one; a process has left the cell, was not asked to run it, or has died; somebody wanted an
interrupt; who has said the word has taken it back."""


@dataclass(frozen=True, slots=True)
class Stop:
    """An answer: do not dispatch, raise.

    All processes that a stop is for get the same one.

    Attributes:
        number: Names it: stops are numbered from 1.
        kind: Why.
        sides: Who did what: those that waited, then who is to blame for ``"left"``, ``"dead"`` and
            ``"not asked"``. Empty for ``"interrupted"``.
        was_pressed: Whether the process was sent a signal for it that it may not have seen yet.
    """

    number: int
    kind: StopKind
    sides: tuple[Side, ...] = ()
    was_pressed: bool = False


class Go(NamedTuple):
    """An answer: dispatch, after those with smaller numbers, and before those with larger ones.

    Attributes:
        number: The how manieth this is for the process, from 1.
        told: What participants have told of it beside their word, by process; all get the same.
    """

    number: int
    told: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Explanation:
    """An answer: what the processes that were stopped have told of their words.

    All that a stop is for get the same one, so that all can raise the same message.

    Attributes:
        number: The stop's.
        told: What each that takes part has told; without those that have left the cell, or died.
        ends: How those have left that have left the cell.
    """

    number: int
    told: tuple[tuple[int, str], ...]
    ends: tuple[tuple[int, End], ...] = ()


@dataclass(frozen=True, slots=True)
class Press:
    """A process's main thread is in Python, and has to be interrupted by a signal.

    Not at once: most processes say their next word soon, which is answered with the same stop, and
    have bound by then what they have computed. A signal may strike before.

    Attributes:
        process: The process.
    """

    process: int


class Answer(NamedTuple):
    """What one thread of a process is told.

    Attributes:
        process: The process.
        token: What the thread that asked has named itself.
        what: The answer.
    """

    process: int
    token: int
    what: Go | Stop | Explanation


class Asking(NamedTuple):
    """A thread that waits for the answer to its word.

    Attributes:
        process: Whose it is.
        lane: Whether it is the main thread.
        token: Its number, which the process gives to no other word.
        word: The word.
    """

    process: int
    lane: Lane
    token: int
    word: Word

    def late(self, askings: Iterable[Asking]) -> Processes:
        """Returns who takes part and does not say this word, in the same lane.

        Args:
            askings: All threads that wait.
        """
        said = {a.process for a in askings if a.lane == self.lane and a.word.agrees_with(self.word)}
        return tuple(q for q in self.word.participants if q not in said)


def joined(sides: Iterable[Side]) -> tuple[Side, ...]:
    """Returns sides with the processes that did the same in one."""
    groups: dict[End | None, list[int]] = {}
    for side in sides:
        groups.setdefault(side.end, []).extend(side.processes)
    return tuple(Side(tuple(sorted(who)), end=end) for end, who in groups.items())


class Failures(NamedTuple):
    """What has failed on a process of what spans the same processes.

    Attributes:
        keys: A number for each, the same on all processes.
        last: The last of these, in words.
    """

    keys: frozenset[int] = frozenset()
    last: str = ""

    @property
    def number(self) -> int:
        """A number for all of them."""
        return sum(self.keys)

    def with_one(self, key: int, text: str) -> Failures:
        """Returns these and one, unless it is one of these.

        Args:
            key: Its number.
            text: It, in words.
        """
        return self if key in self.keys else Failures(self.keys | {key}, text)


NONE = Failures()


class Apart(NamedTuple):
    """Processes of which not the same has failed.

    Attributes:
        what: What has failed last, in words.
        failed: Where.
        others: Where that has not.
    """

    what: str
    failed: Sequence[int]
    others: Sequence[int]

    def __str__(self) -> str:
        others, wait = processes_label(self.others), "waits" if len(self.others) == 1 else "wait"
        return (
            f"{capitalized(processes_label(self.failed))} failed in {self.what}, which {others} "
            f"had begun, too: if they were to meet in it after that, {others} {wait} for ever"
        )


def apart(told: Mapping[int, Mapping[Processes, Failures]]) -> Apart | None:
    """Returns the processes of which not the same has failed; None if there are none.

    Args:
        told: What has failed on each process, by the processes that it spans.
    """
    for processes in sorted({each for its in told.values() for each in its}):
        here = {i: told[i].get(processes, NONE) for i in processes if i in told}
        if len({each.keys for each in here.values()}) > 1:
            most = max(here.values(), key=lambda each: len(each.keys))
            failed = [i for i, each in here.items() if each.keys == most.keys]
            return Apart(most.last, failed, [i for i in here if i not in failed])
    return None


_SCHEME, _SERVICE, _CONDUCTOR = "unix:", "jax-", "lock-"
"""Short: a Unix socket's path may have some hundred bytes."""


def conductor_beside(address: str) -> Path:
    """Returns where the conductor listens that is hosted with a coordination service.

    Args:
        address: The service's: ``"unix:/folder/jax-123"``.
    """
    path = Path(unquote(address.removeprefix(_SCHEME)))
    if not address.startswith(_SCHEME) or not path.name.startswith(_SERVICE):
        raise ValueError(f"no conductor is hosted beside a service at {address}")
    return path.with_name(_CONDUCTOR + path.name.removeprefix(_SERVICE))
