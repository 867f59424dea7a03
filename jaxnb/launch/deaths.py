"""Deaths of processes: who died, of what, and what it wrote last."""

from __future__ import annotations

import contextlib
import re
import signal
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from jaxnb.errors import ProcessDiedError, SessionBrokenError
from jaxnb.labels import capitalized, processes_label
from jaxnb.launch.host import control_groups
from jaxnb.model.scripts import in_notebook

# gloo writes its line in eight pieces (``std::cout << …``), from several threads at once, so the
# pieces of several messages can come in any order that keeps each message's own. A newline then
# ends a line of the output, but not always the message that began it. A line is gloo's if it is
# made of such pieces and nothing else, while a message of gloo's has not ended. What begins the
# first of them has all pieces. Other lines pass unchanged, but for those that read exactly as a
# piece does (a number, an empty line) and come in between.

_PIECES = (
    "[Gloo] Rank ",
    " is connected to ",
    " peer ranks. ",
    "Expected number of connected peer ranks is : ",
)
_OF_PIECES = re.compile(rf"(?:{'|'.join(map(re.escape, _PIECES))}|[0-9])*+")
"""No two alternatives begin alike, and nothing is tried twice: a line is read once."""

_DATED = re.compile(r"^([IWEF])\d{4} [\d:.]{15} +\d+ (?=\S+:\d+\] )", re.MULTILINE)

FATAL = "Fatal Python error"
"""What the line begins with that says why a process crashes, before the stacks of its threads."""

_DUMP = re.compile(rf"^{FATAL}: ", re.MULTILINE)

MAX_PARTIAL_CHARS = 4096
"""A longer line is handed on before its end has come."""


class ChatterFilter:
    """Hands on the lines that one process writes to its standard output, without gloo's.

    A line is gloo's if it has all pieces of its message, and nothing else; and as long as not every
    message has ended that began in such lines, also what has some of them, or nothing.
    """

    def __init__(self) -> None:
        self._partial = ""
        self._passes = False  # the rest of a line whose beginning was handed on
        self._begun = 0  # messages of gloo's that have not ended

    @property
    def is_pending(self) -> bool:
        """Whether :meth:`flush` is due in a while: text is held back, or gloo has not ended."""
        return bool(self._partial or self._begun)

    def feed(self, text: str) -> str:
        """Takes text; returns what can be handed on: whole lines, and what is long."""
        *lines, self._partial = (self._partial + text).split("\n")
        shown = [line + "\n" for line in lines if not self._is_gloos(line)]
        if len(self._partial) > MAX_PARTIAL_CHARS or (self._passes and self._partial):
            shown.append(self._partial)
            self._partial, self._passes = "", True
        return "".join(shown)

    def flush(self) -> str:
        """Returns what was held back: nothing has come for a while, or nothing will."""
        held, self._partial = self._partial, ""
        self._passes = self._passes or bool(held)
        self._begun = 0
        return held

    def _is_gloos(self, line: str) -> bool:
        passes, self._passes = self._passes, False
        is_whole = self._begun or all(piece in line for piece in _PIECES)
        if passes or not is_whole or not _OF_PIECES.fullmatch(line):
            return False
        self._begun = max(0, self._begun + line.count(_PIECES[0]) - 1)
        return True


class DumpFilter:
    """Holds back what faulthandler writes as a process crashes: the report of its death tells it.

    Takes whole lines. What a child of the process writes is let go by :meth:`flush`, as the process
    lives on.
    """

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> str:
        """Takes lines; returns those before a dump."""
        found = None if self.held else _DUMP.search(text)
        end = found.start() if found else 0 if self.held else len(text)
        self.held += text[end:]
        return text[:end]

    def flush(self) -> str:
        """Returns what was held back."""
        held, self.held = self.held, ""
        return held


def undated(text: str) -> str:
    """Returns lines of XLA's log without time and thread, so that processes say the same.

    ``"W1128 17:25:02.256589   10572 a.cc:6] …"`` becomes ``"W a.cc:6] …"``.
    """
    return _DATED.sub(r"\1 ", text)


def quiet(text: str) -> str:
    """Returns what a process wrote to its standard output, without gloo's lines."""
    chatter = ChatterFilter()
    return chatter.feed(text) + chatter.flush()


LAST_LINES = 20
STACK_LINES = 8
MAX_COLUMNS = 300

_JAXNB = f'"{Path(__file__).parents[1]}/'
_NO_USERS = re.compile(rf"{re.escape(_JAXNB)}|-packages/(IPython|ipykernel)/")
_RUNNER = f"{_JAXNB}cells/process_runner.py"
"""What runs the user's code: frames outside of it are not the user's."""


@dataclass(frozen=True, slots=True)
class Death:
    """A process of the group, or one that serves it, that ended without being told to.

    Attributes:
        role: ``"engine"``, ``"fork server"``, a helper's (see :mod:`jaxnb.launch.children`), or
            ``"connection"`` (ssh, to a host on which all have ended with it) or ``"job"``.
        index: The process index, for an engine.
        pid: Its process id; 0 if it has none on this host.
        status: Exit status; negative for a signal; None if unknown.
        tail: What it wrote last to standard output and error.
        out_of_memory: It was killed by SIGKILL, and the kernel has killed a process for want of
            memory since the death before.
        how: How it ended, where that is not told by a status.
        host: The host that it ran on, as the user named it; empty if the group has one host.
        at: When that was noticed, on ``time.monotonic()``.
    """

    role: str
    index: int
    pid: int
    status: int | None
    tail: str
    out_of_memory: bool = False
    host: str = ""
    how: str = ""
    at: float = field(default_factory=time.monotonic, compare=False)


def dead_processes(deaths: Iterable[Death]) -> set[int]:
    """Returns the indices of the processes that have died; what served the group left out."""
    return {death.index for death in deaths if death.role == "engine"}


def oom_kills(files: Iterable[Path] | None = None) -> int:
    """Returns how many processes the kernel says that it has killed for want of memory.

    Args:
        files: Where it counts them; by default for this process's control groups and the host.
            What may not be read counts as none.
    """
    count = 0
    for file in _oom_files() if files is None else files:
        with contextlib.suppress(OSError):
            found = re.search(r"^oom_kill (\d+)$", file.read_text(), re.MULTILINE)
            count += int(found[1]) if found else 0
    return count


def _oom_files() -> Iterator[Path]:
    yield Path("/proc/vmstat")
    # The limit that was reached may be one of a group further up.
    for group, is_first in control_groups():
        yield group / ("memory.oom_control" if is_first else "memory.events")


def describe_status(status: int | None) -> str:
    """Returns how a process ended, in words: ``"was killed by SIGKILL"``."""
    if status is None:
        return "ended"
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with exit status {status}"


def describe_death(death: Death, num_processes: int) -> str:
    """Returns who died and how, as the beginning of a sentence."""
    who = {
        "engine": f"Process {death.index} of {num_processes}",
        "controller": "The ipyparallel controller",
        "service": "JAX's coordination service",
        "fork server": "The fork server",
        "door": "The tunnel from other hosts",
        "connection": f"The connection to {death.host}",
    }.get(death.role, "The tunnel to other hosts")
    if death.role == "job":
        return death.how
    host = death.host.partition("#")[0]  # it can have several agents
    place = f" on {host}" if host and death.role != "connection" else ""
    where = f" (pid {death.pid}{place})" if death.pid else place
    return f"{who}{where} {death.how or describe_status(death.status)}"


def last_lines(death: Death) -> str:
    """Returns the last lines that a dead process wrote past Python's streams; empty if none.

    Those are a library's, or the interpreter's: what cells print is shown with the cells.

    Of faulthandler's dump, which can be hundreds of lines, the kind of error and the stack of
    the thread it came from are kept: what explains it stands before the dump.
    """
    lines = [line[:MAX_COLUMNS] for line in quiet(death.tail).splitlines() if line.strip()]
    fatal = _place_of_dump(lines)
    if fatal is None:
        kept = lines[-LAST_LINES:]
    else:
        kept = lines[max(0, fatal - LAST_LINES) : fatal + 1] + _current_stack(lines[fatal:])
    shown = in_notebook(" (cell output is shown with the cells)")
    heading = f"\nThe last lines of its log{shown}:"
    return heading + _indented(kept) if kept else ""


def crash_lines(death: Death) -> str:
    """Returns the kind of a crash and the stack of its thread, as lines; empty if there are none.

    For who has shown all else that the process wrote, as it came.
    """
    lines = [line[:MAX_COLUMNS] for line in death.tail.splitlines()]
    fatal = _place_of_dump(lines)
    return "" if fatal is None else _indented([lines[fatal], *_current_stack(lines[fatal:])[1:]])


def _place_of_dump(lines: Sequence[str]) -> int | None:
    return next((i for i, line in enumerate(lines) if line.startswith(FATAL)), None)


def _indented(lines: Sequence[str]) -> str:
    return "".join(f"\n    {line}" for line in lines)


def _current_stack(dump: list[str]) -> list[str]:
    """Returns the stack of the thread that crashed; the user's code only, if it ran any."""
    start = next((i for i, line in enumerate(dump) if line.startswith("Current thread")), None)
    if start is None:
        return []
    stack = list(takewhile(lambda line: line.startswith("  "), dump[start + 1 :]))
    runner = next((i for i, line in enumerate(stack) if _RUNNER in line), 0)
    own = [line for line in stack[:runner] if not _NO_USERS.search(line)]
    return [dump[start], *(own or stack)[: STACK_LINES - 1]]


def death_error(
    death: Death,
    num_processes: int,
    doing: str = "",
    others: Sequence[Death] = (),
    before: str = "",
    after: str = "",
) -> SessionBrokenError:
    """Returns the error for a death.

    Args:
        death: Who died and how.
        num_processes: Size of the group.
        doing: What went on: ``"`x` was pulled"``.
        others: Who died besides.
        before: What there is to say of what came before, as a sentence.
        after: What there is to say at the end.
    """
    when = f" while {doing}" if doing else ""
    died = f"{describe_death(death, num_processes)}{when}."
    if death.role != "engine":
        with_it = [each.index for each in others if each.role == "engine"]
        if with_it:
            died += f" {capitalized(processes_label(with_it))} ended with it."
        then = "Type `%spmd_restart` for fresh processes; variables are lost."
        if death.role == "connection":  # to the first host, as the others can be done without
            then = (
                f"What serves the group ran there: variables are lost. If {death.host} answers "
                "again, `%spmd_restart` gives fresh processes; to go on without it, type "
                "`%spmd_stop`, then `%spmd_start` with the other hosts."
            )
        return SessionBrokenError(f"{died}{in_notebook(f' {then}')}{last_lines(death)}")
    hint = ""
    if death.out_of_memory:
        hint = " Likely out of memory: the kernel has just killed a process to free some."
    it, gets = ("them", "they get") if others else ("it", "it gets")
    then = (
        f"Type `%spmd_recover` to replace {it}: all processes start again, the others get the "
        f"variables that they have now, and {gets} what is identical on all of those. "
        "`%spmd_restart` gives fresh processes."
    )
    if len(dead_processes((death, *others))) == num_processes:
        what = "No process is left" if num_processes > 1 else "It was the only one"
        then = f"{what}, and all variables are lost. Type `%spmd_restart` for fresh processes."
    then = in_notebook(f" {then}")
    ordered = sorted(others, key=lambda each: each.index)
    too = "".join(f" {describe_death(each, num_processes)} too." for each in ordered)
    message = f"{died}{too}{hint}{before}{then}{after}{last_lines(death)}"
    return ProcessDiedError(message, process_index=death.index, pid=death.pid)
