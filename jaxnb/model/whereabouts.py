"""Where a process is: what its sentinel tells while its main thread cannot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxnb.model.dispatches import Cause, Dispatch


@dataclass(frozen=True)
class SentinelAddress:
    """How to reach a process's sentinel.

    Attributes:
        url: Where it listens.
        token: What its messages have to hold: one to another process must not be taken for
            one to this.
    """

    url: str
    token: str


@dataclass(frozen=True)
class SentinelFault:
    """A sentinel that was asked something, and failed: its process is not silent.

    Attributes:
        process_index: Its process.
        question: What it was asked: ``"where"``.
        error: What it raised: ``"ValueError: ..."``.
    """

    process_index: int
    question: str
    error: str

    def __str__(self) -> str:
        return (
            f"The sentinel of process {self.process_index} failed when it was asked "
            f"{self.question!r}: {self.error}. The process runs on."
        )


@dataclass(frozen=True)
class StackEntry:
    """One call on a Python stack.

    Attributes:
        file: The file; ``"<cell 7>"`` for a cell.
        line: The line in it; in a cell as the notebook counts.
        function: Qualified name of the function.
        source: The line's text; empty if it is not known.
        cell: The cell's number, if it is one; 0 for a script.
    """

    file: str
    line: int | None
    function: str
    source: str
    cell: int | None

    @property
    def text(self) -> str:
        """``"at line 3: `y = f(x)`"``."""
        return f"at line {self.line}: `{self.source}`" if self.source else f"at line {self.line}"


@dataclass(frozen=True)
class Compiling:
    """What a thread does about a program that is not compiled yet.

    Attributes:
        program: Its name: ``"jit(step)"``.
        holder: The other process that compiles it, for which the thread waits; None if it compiles.
    """

    program: str
    holder: int | None = None


@dataclass(frozen=True, repr=False)
class Whereabouts:
    """Where a process is.

    Attributes:
        process_index: The process.
        stack: Its main thread's Python stack, outermost call first.
        sleeps_in: The system call that the main thread waits in, if it is one of those that
            tell something: ``"futex"`` (a lock, or C++ that waits), ``"sleep"``; else empty.
        cpu_seconds: Processor time that its main thread and the threads of C++ in it have used;
            less than before if some of those have ended.
        rss_bytes: Its resident memory; None where the system does not tell.
        runnable: Those of these threads that run, would run if a core were free, or wait for a
            disk: the number of each, and how often it has gone to sleep by itself.
        cell_seconds: How long it has been at the cell that it runs; None if it runs none.
        interrupted_seconds: How long ago an interrupt was raised in the code that it runs; None
            if there was none, or what the code calls has not returned to Python since.
        missed_seconds: How long ago an interrupt came that raised nothing in code of the user's:
            it ran none, or was where Python ignores what is raised; None if none has.
        entries: The files in which its other threads have begun to run Python.
        asks_by_thread: Another thread than the main one waits until all processes agree.
        last_dispatch: The last computation over several processes that it has dispatched in
            its cell, is dispatching, or waits to dispatch; None if there is none.
        compiling: What its main thread does about a program that is not compiled yet.
        fault: What its sentinel raised instead of telling where it is; empty if it told.
    """

    process_index: int
    stack: tuple[StackEntry, ...]
    sleeps_in: str
    cpu_seconds: float
    rss_bytes: int | None
    runnable: frozenset[tuple[int, int]] = frozenset()
    cell_seconds: float | None = None
    interrupted_seconds: float | None = None
    missed_seconds: float | None = None
    entries: frozenset[str] = frozenset()
    asks_by_thread: bool = False
    last_dispatch: Dispatch | None = None
    compiling: Compiling | None = None
    fault: str = ""

    def __repr__(self) -> str:
        place = self.in_cell
        where = f"in cell [{place.cell}], {place.text}" if place else "at no line of a cell"
        return f"<process {self.process_index}: {where}>"

    @property
    def in_cell(self) -> StackEntry | None:
        """The innermost line of a cell that it is in; None outside cells."""
        return next((entry for entry in reversed(self.stack) if entry.cell is not None), None)


@dataclass(frozen=True)
class Wait:
    """Processes that wait at one place.

    Attributes:
        processes: Their indices.
        place: The line of the cell; None outside of its lines.
        last_dispatch: The last computation that they have dispatched; empty for none.
    """

    processes: tuple[int, ...]
    place: StackEntry | None
    last_dispatch: str


@dataclass(frozen=True)
class AtWork:
    """Processes of a cell that do not wait for others, while others wait for them.

    Attributes:
        processes: Their indices.
        place: The line of the cell; None outside of its lines.
        doing: What they are seen to do: ``"asleep"``, ``"computing"``; empty if it is not known.
        seconds: For how long they have been at that line.
        has_left: They have left the cell; what they have dispatched may go on.
    """

    processes: tuple[int, ...]
    place: StackEntry | None
    doing: str
    seconds: float
    has_left: bool = False


@dataclass(frozen=True)
class Waits:
    """A running cell in which processes wait.

    Either all wait, or do not tell what they do, which may never end; or some wait for others that
    are at work, which is how healthy cells may look: ``is_neutral``.

    Attributes:
        waits: Where, by the lowest process.
        seconds: For how long.
        reason: What is known of why, as sentences: where their recordings part.
        silent: Who has not told where it is for so long: it is stopped, or C code holds the lock
            of its Python interpreter.
        is_all: These are all processes of the group; else others have left the cell.
        has_ended: They do not wait any more.
        at_work: What those do for whom the others wait.
        computes: Something in them uses a processor all the same: another thread.
        why: The reason in a word, where it is known.
        has_failed: The cell has raised on a process that has left it.
        stopped: Which of the silent are stopped, by SIGSTOP say, as a clause; empty if none is.
        dispatches: Nobody is known to wait, and nothing was shown for a while: how many
            computations over several processes the cell has dispatched; else None.
    """

    waits: tuple[Wait, ...]
    seconds: float
    reason: str
    silent: tuple[int, ...] = ()
    is_all: bool = True
    has_ended: bool = False
    at_work: tuple[AtWork, ...] = ()
    computes: bool = False
    why: Cause | Literal[""] = ""
    has_failed: bool = False
    stopped: str = ""
    dispatches: int | None = None

    @property
    def cause(self) -> Cause | Literal[""]:
        """Why, in a word, as far as is known; else empty."""
        is_slow = self.dispatches is None and (self.silent or self.at_work)
        return self.why or ("slow" if is_slow else "")

    @property
    def is_neutral(self) -> bool:
        """Somebody is at work: the others may wait for that, and nothing need be wrong."""
        return bool(self.at_work)
