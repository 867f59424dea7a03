"""What processes and the notebook tell each other of variables that are saved and loaded."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from jaxnb.labels import (
    by_text,
    capitalized,
    format_bytes,
    format_seconds,
    paths_label,
    plural,
    processes_label,
    ranks_label,
)


def seconds_without_processor(
    pid: int, threads: Collection[int] | None = None, *, but: Collection[int] = ()
) -> float:
    """Returns for how long threads were ready to run while others had the processors.

    On a busy machine who waits for a processor looks like who waits for ever, but for that.

    Args:
        pid: The process.
        threads: Those of its threads, as the system numbers them; all by default.
        but: Those that do not count.

    Returns:
        The sum over the threads; 0 where the system does not tell.
    """
    found, tasks = 0, Path(f"/proc/{pid}/task")
    with contextlib.suppress(OSError, ValueError, IndexError):
        counted = {int(each.name) for each in tasks.iterdir()} if threads is None else {*threads}
        for thread in counted.difference(but):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                found += int((tasks / str(thread) / "schedstat").read_text().split()[1])
    return found / 1e9


class Meter:
    """Tells for how long something has used less than a share of a processor.

    Args:
        share: Who computes uses more; what waits, and is looked at meanwhile, uses less.
        now: The time.
        cpu_seconds: The processor time that it has used so far.
    """

    def __init__(self, share: float, now: float, cpu_seconds: float) -> None:
        self._share = share
        self.note(now, cpu_seconds)

    def note(self, now: float, cpu_seconds: float) -> None:
        """Takes it for at work now, whatever it has used."""
        self._at, self._cpu_seconds = now, cpu_seconds

    def idle_seconds(self, now: float, cpu_seconds: float) -> float:
        """Returns for how long it has not computed; to be asked often.

        Args:
            now: The time.
            cpu_seconds: The processor time that it has used so far.
        """
        if cpu_seconds - self._cpu_seconds > self._share * (now - self._at):
            self.note(now, cpu_seconds)
        return now - self._at


MOST_NAMED = 8
"""So many things that are lost are told one by one, with the reason."""

MOST_LISTED = 40
"""So many variables that are lost besides are named; to use one tells the reason."""

USING_ONE = " Using one raises an error; run the cells again that made them."


@dataclass(frozen=True, slots=True)
class Lost:
    """A value, or a part of one, that was not carried over.

    Attributes:
        path: Where the user has it: ``"state['loader']"``.
        type: What it is: ``"generator"``, ``"float32[4, 2]"``.
        processes: The processes that have lost it; empty where one process reports its own.
        reason: Why.
        is_old: It was lost before, and that was told.
        also: Other variables that hold it.
    """

    path: str
    type: str
    processes: tuple[int, ...]
    reason: str
    is_old: bool = False
    also: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        """The variable that the path begins with."""
        found = re.match(r"\w*", self.path)
        return found[0] if found else ""

    def __str__(self) -> str:
        where = f"{_also([self])} on {processes_label(self.processes)}" if self.processes else ""
        return f"`{self.path}` ({self.type}){where}: {self.reason}"


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
    lost: tuple[Lost, ...]
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file with the variables of one process.

    Attributes:
        name: In its directory; its whole path where that is not the directory of the manifest.
        nbytes: Its size.
        digest: Of its bytes, in hexadecimal digits.
    """

    name: str
    nbytes: int
    digest: str


@dataclass(frozen=True, slots=True)
class Source:
    """What a process reads variables from.

    Attributes:
        process: The process whose file is read.
        paths: The file, and by process those of the others if they have parts of its arrays.
        other_size: How many devices the group had that has written it, if it was of another size;
            else 0.
        names: The variables; all if there are none.
        missing: Those that a process which replaces another cannot have, and why.
    """

    process: int
    paths: Mapping[int, str]
    other_size: int = 0
    names: tuple[str, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)


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
    lost: tuple[Lost, ...]


@dataclass(frozen=True, slots=True, repr=False)
class SavedState:
    """Variables of a group that were saved to a directory, or loaded from one.

    Attributes:
        path: The directory.
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
    done: Literal["saved", "loaded"] = "saved"

    def __str__(self) -> str:
        lost = {each.path for each in self.lost}
        count = sum(name not in lost for name in self.names)
        size = f" ({format_bytes(self.nbytes)})" if self.nbytes else ""
        variables = f"{plural(count, 'variable')}{size}"
        where = "to" if self.done == "saved" else "from"
        seconds = format_seconds(self.seconds)
        text = f"{capitalized(self.done)} {variables} {where} {self.path} in {seconds}."
        then = "" if self.done == "saved" else USING_ONE
        return " ".join([text, *losses_text(self.lost, f"Not {self.done}", then), *self.notes])

    __repr__ = __str__


@dataclass(frozen=True, slots=True)
class CalledHooks:
    """What became of the functions that :func:`jaxnb.on_recover` was given.

    Attributes:
        raised: What they raised, in words.
        printed: What they printed.
        bound: The variables that they bound anew.
    """

    raised: tuple[str, ...]
    printed: str
    bound: frozenset[str]


@dataclass(frozen=True, slots=True, repr=False)
class Recovered:
    """A new group, with the variables of the one before.

    Attributes:
        died: The processes that had died, or had to be ended without their variables.
        kept: The variables that are there wherever they were; parts of them may be lost.
        lost: What is lost; each use of it raises.
        seconds: How long it took.
        nbytes: The size of what was carried.
        given: Variables that the processes in the place of the dead have from the others.
        given_up: Those of ``died`` that had to be ended, and why.
        unended: Processes that did not end their cell; they have their variables.
        hook_errors: What functions raised that :func:`jaxnb.on_recover` was given, and where.
        hook_output: What they printed, by process.
        made: Variables that were lost, and that they made again on all processes.
        resized: What there is to say where the new group is of another size, in sentences.
    """

    died: tuple[int, ...]
    kept: tuple[str, ...]
    lost: tuple[Lost, ...]
    seconds: float
    nbytes: int = 0
    given: tuple[str, ...] = ()
    given_up: Mapping[int, str] = field(default_factory=dict)
    unended: tuple[int, ...] = ()
    hook_errors: tuple[str, ...] = ()
    hook_output: Mapping[int, str] = field(default_factory=dict)
    made: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()

    def __str__(self) -> str:
        size = f" ({format_bytes(self.nbytes)})" if self.kept else ""
        kept = f"kept {plural(len(self.kept), 'variable')}{size}"
        text = f"New processes in {format_seconds(self.seconds)}, {kept}."
        return " ".join([text, *self.notes])

    __repr__ = __str__

    @property
    def notes(self) -> tuple[str, ...]:
        """What else there is to know, in sentences."""
        return (*self.notes_but_losses, *losses_text(self.new_losses, "Lost", USING_ONE))

    @property
    def new_losses(self) -> list[Lost]:
        """What was lost now."""
        return [each for each in self.lost if not each.is_old]

    @property
    def notes_but_losses(self) -> tuple[str, ...]:
        """The notes without what was lost now."""
        told = [*self.resized]
        for why, those in by_text(self.given_up).items():
            said = f"{capitalized(processes_label(those))} {why}, and was ended by force."
            told.append(said if len(those) == 1 else re.sub(r"\bwas\b", "were", said))
        if self.died and not self.nbytes:
            told.append("No process was left: all variables are lost.")
        elif self.died:
            told.append(f"Names that only {processes_label(self.died)} had are gone.")
        if self.unended:
            who = capitalized(processes_label(self.unended))
            its = "its" if len(self.unended) == 1 else "their"
            told.append(f"{who} did not respond; {its} variables were read from memory.")
        if self.given:
            told.append(
                f"Copied to {processes_label(self.died)} (identical on the others): "
                f"{paths_label(self.given, most=MOST_NAMED)}."
            )
        if old := dict.fromkeys(each.path for each in self.lost if each.is_old):
            told.append(f"Lost before, and still: {_paths(old)}.")
        if self.made:
            told.append(f"Made again by jaxnb.on_recover: {_paths(self.made)}.")
        told += [f"jaxnb.on_recover: {text}." for text in self.hook_errors]
        for printed, those in by_text(self.hook_output).items():
            told.append(f"jaxnb.on_recover printed on {processes_label(those)}: {printed.strip()}")
        return tuple(told)


def losses_text(lost: Sequence[Lost], beginning: str, then: str) -> list[str]:
    """Returns what is lost, and what to do; nothing if nothing is."""
    if not lost:
        return []
    alike = _alike(lost)
    told = [_told(those) for those in alike[:MOST_NAMED]]
    if len(alike) > MOST_NAMED:
        left = [each.path for those in alike[MOST_NAMED:] for each in those]
        told.append(f"and {len(left)} more, {_paths(left, most=MOST_LISTED)}")
    return [f"{beginning}: {'; '.join(told)}.{then}"]


def losses_rows(lost: Sequence[Lost]) -> list[tuple[str, str, str]]:
    """Returns what is lost, on which processes and why, as rows of a table: a variable in one."""
    by_variable: dict[str, list[Lost]] = {}
    first = {name: each.variable for each in lost for name in each.also}
    for each in lost:
        is_alias = each.path in first
        by_variable.setdefault(first[each.path] if is_alias else each.variable, []).append(each)
    rows: dict[tuple[str, str, object], list[Lost]] = {}
    for those in by_variable.values():
        where = ranks_label(sorted({i for each in those for i in each.processes}))
        why = [*dict.fromkeys(each.reason for each in those)]
        # "that of process 0 cannot be pickled" says no more than "cannot be pickled".
        why = [one for one in why if not any(one != o and one.endswith(o) for o in why)]
        also = {name for each in those for name in each.also} - by_variable.keys()
        rows.setdefault((where, "; ".join(why), frozenset(also)), []).extend(those)
    return [
        (f"{_paths(e.path for e in those)}{_also(those).rstrip(',')}".replace("`", ""), *row[:2])
        for row, those in rows.items()
    ]


def _alike(lost: Sequence[Lost]) -> list[list[Lost]]:
    """Groups what the same processes have lost for the same reason."""
    alike: dict[tuple[object, ...], list[Lost]] = {}
    for each in lost:
        alike.setdefault((each.processes, each.reason, each.also), []).append(each)
    return [*alike.values()]


def _told(lost: Sequence[Lost]) -> str:
    """Tells of what the same processes have lost for the same reason."""
    first = lost[0]
    if len(lost) == 1:
        return str(first)
    paths = _paths(each.path for each in lost)
    return f"{paths}{_also(lost)} on {processes_label(first.processes)}: {first.reason}"


def _paths(paths: Iterable[str], most: int = MOST_NAMED) -> str:
    return paths_label(paths, most, what="value")


def _also(lost: Sequence[Lost]) -> str:
    """Returns which other variables hold what is lost; empty if none does."""
    told = {each.variable for each in lost}
    names = dict.fromkeys(name for each in lost for name in each.also if name not in told)
    is_of_all = len({each.path for each in lost}) > 1 == len({each.also for each in lost})
    every = "all " if is_of_all else ""
    return f", {every}also in {paths_label(names, most=MOST_NAMED)}," if names else ""


def without_made(lost: Sequence[Lost], bound: Mapping[int, frozenset[str]]) -> list[Lost]:
    """Returns what is lost still after functions of the user's have bound variables anew.

    Args:
        lost: What was lost before.
        bound: What they bound, by process.
    """
    on_all = frozenset.intersection(*bound.values())
    left = []
    for each in lost:
        processes = tuple(i for i in each.processes if each.variable not in bound[i])
        also = tuple(name for name in each.also if name not in on_all)
        if processes:
            left.append(replace(each, processes=processes, also=also))
    return left


def losses(lost: Mapping[int, tuple[Lost, ...]]) -> tuple[Lost, ...]:
    """Returns what processes have lost, each thing once with all that have lost it."""
    who: dict[Lost, list[int]] = {}
    for index, parts in sorted(lost.items()):
        for part in parts:
            who.setdefault(part, []).append(index)
    return tuple(replace(part, processes=tuple(indices)) for part, indices in who.items())


@dataclass(frozen=True, slots=True)
class Possession:
    """What a name is bound to on one process, as far as it could be given to another.

    Attributes:
        digest: Equal on two processes only if the values are, but for the elements of arrays
            that are spread over processes; empty if it cannot be given.
        reason: Why not.
        is_common: It is the same on every process by its nature: nothing but arrays, meshes and
            shardings of several processes is in it, or it is code without values of its own.
        arrays: The arrays in it that are spread over processes, as paths.
        origins: Where they come from; empty for one of which that is not known.
        lost: Parts of it that are lost there, as paths.
        is_drawn: It is a figure or a part of one, which has ids and times of its own.
    """

    digest: bytes
    reason: str = ""
    is_common: bool = False
    arrays: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    is_drawn: bool = False
