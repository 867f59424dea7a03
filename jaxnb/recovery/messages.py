"""What processes and the notebook tell each other of variables that are saved and loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jaxnb.labels import capitalized, format_bytes, format_seconds, plural, processes_label
from jaxnb.model.recovery import LostPart

MOST_NAMED = 8
"""So many things that are lost are told one by one."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A process has packed its variables; they wait to be written.

    Attributes:
        variables: Names, and what is bound to them in words.
        nbytes: The size of all of it.
        lost: What could not be packed.
        missing: Names that were asked for, and are not there.
    """

    variables: Mapping[str, str]
    nbytes: int
    lost: tuple[LostPart, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file with the variables of one process.

    Attributes:
        name: In its directory.
        nbytes: Its size.
        digest: Of its bytes, in hexadecimal digits.
    """

    name: str
    nbytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Refused:
    """A process could not do what it was asked to, and nothing has changed there.

    Attributes:
        reason: Why, as the end of a sentence.
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Taken:
    """A process has bound the variables.

    Attributes:
        names: Their names.
        lost: What could not be made there.
    """

    names: tuple[str, ...]
    lost: tuple[LostPart, ...]


@dataclass(frozen=True, slots=True)
class Lost:
    """A value, or a part of one, that was not carried over.

    Attributes:
        path: Where it is: ``"state['loader']"``.
        type: What it is.
        processes: The processes that have lost it.
        reason: Why.
    """

    path: str
    type: str
    processes: tuple[int, ...]
    reason: str

    def __str__(self) -> str:
        return f"`{self.path}` ({self.type}) on {processes_label(self.processes)}: {self.reason}"


@dataclass(frozen=True, slots=True, repr=False)
class SavedState:
    """Variables of a group that were saved to a directory, loaded from one, or carried over.

    Attributes:
        path: The directory; empty if they were carried over.
        names: The variables.
        nbytes: The size of their files; 0 if only some of their variables were loaded.
        lost: What was not saved, or could not be loaded.
        seconds: How long it took.
        notes: What else there is to know, in sentences.
        done: What was done with them.
    """

    path: str
    names: tuple[str, ...]
    nbytes: int
    lost: tuple[Lost, ...]
    seconds: float
    notes: tuple[str, ...] = ()
    done: Literal["saved", "loaded", "carried over"] = "saved"

    def __str__(self) -> str:
        lost = {each.path for each in self.lost}
        count = sum(name not in lost for name in self.names)
        size = f" ({format_bytes(self.nbytes)})" if self.nbytes else ""
        variables = f"{plural(count, 'variable')}{size}"
        where = {"saved": f" to {self.path}", "loaded": f" from {self.path}"}.get(self.done, "")
        text = f"{capitalized(self.done)} {variables}{where} in {format_seconds(self.seconds)}."
        return " ".join([text, *self._losses(), *self.notes])

    __repr__ = __str__

    def _losses(self) -> list[str]:
        if not self.lost:
            return []
        told = [str(each) for each in self.lost[:MOST_NAMED]]
        if len(self.lost) > MOST_NAMED:
            told.append(f"and {len(self.lost) - MOST_NAMED} more")
        then = " Using one raises an error; run the cells again that made them."
        return [f"Not {self.done}: {'; '.join(told)}.{then if self.done != 'saved' else ''}"]


def losses(lost: Mapping[int, tuple[LostPart, ...]]) -> tuple[Lost, ...]:
    """Returns what processes have lost, each thing once with all that have lost it."""
    who: dict[LostPart, list[int]] = {}
    for index, parts in sorted(lost.items()):
        for part in parts:
            who.setdefault(part, []).append(index)
    return tuple(
        Lost(part.path, part.type, tuple(processes), part.reason) for part, processes in who.items()
    )
