"""A group's processes and devices, their settings, and where each process is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from jaxnb.model.dispatches import Cause, CheckMode, Dispatch

Settings = tuple[tuple[str, str], ...]
"""Names of settings with their values as text."""


@dataclass(frozen=True)
class Address:
    """How to reach a process's sentinel, or its main thread.

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
        count: How many programs of this name the process has needed that nobody had compiled.
    """

    program: str
    holder: int | None = None
    count: int = 1


@dataclass(frozen=True, repr=False)
class Whereabouts:
    """Where a process is.

    Attributes:
        process_index: The process.
        stack: Its main thread's Python stack, outermost call first.
        cell_seconds: How long it has been at the cell that it runs; None if it runs none.
        interrupted_seconds: How long ago an interrupt was raised in the code that it runs; None
            if there was none, or what the code calls has not returned to Python since.
        missed_seconds: How long ago an interrupt came that raised nothing in code of the user's:
            it ran none, or was where Python ignores what is raised; None if none has.
        last_dispatch: The last computation over several processes that it has dispatched in
            its cell, is dispatching, or waits to dispatch; None if there is none.
        compiling: What its main thread does about a program that is not compiled yet.
        fault: What its sentinel raised instead of telling where it is; empty if it told.
    """

    process_index: int
    stack: tuple[StackEntry, ...]
    cell_seconds: float | None = None
    interrupted_seconds: float | None = None
    missed_seconds: float | None = None
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
class AtLine:
    """Processes of a running cell that are at one line, and do the same there.

    Attributes:
        processes: Their indices.
        place: The line of the cell; None outside of its lines.
        seconds: How long they have been there, and have dispatched nothing over several processes.
        waits: Their main threads wait for other processes.
        late: For whom, as far as is known.
        doing: What else they do: ``"compiling"``, ``"at a breakpoint"``; empty if it is not known.
        last_dispatch: The last computation that they have dispatched, or ask to; empty for none.
    """

    processes: tuple[int, ...]
    place: StackEntry | None
    seconds: float
    waits: bool = False
    late: tuple[int, ...] = ()
    doing: str = ""
    last_dispatch: str = ""


@dataclass(frozen=True)
class Waits:
    """Where the processes of a running cell are: nobody has ended it, or shown anything, for long.

    Attributes:
        places: Where, by the lowest process.
        seconds: How long the cell has run; of silent processes, how long they have been.
        reason: Why it cannot go on, as sentences; empty if nothing need be wrong.
        why: The same in a word.
        silent: Who has not told where it is: it is stopped, or C code holds the lock of its
            Python interpreter.
        stopped: Which of the silent are stopped, by SIGSTOP say, as a clause; empty if none is.
        left: How others have left the cell, as a clause; empty if none has.
        has_failed: The cell has raised on a process that has left it.
        dispatches: How many computations over several processes the cell has dispatched.
        has_ended: They have gone on.
        was_interrupted: As they were interrupted, by the user or a time-out.
    """

    places: tuple[AtLine, ...]
    seconds: float
    reason: str = ""
    why: Cause | Literal[""] = ""
    silent: tuple[int, ...] = ()
    stopped: str = ""
    left: str = ""
    has_failed: bool = False
    dispatches: int = 0
    has_ended: bool = False
    was_interrupted: bool = False

    @property
    def waiting(self) -> tuple[int, ...]:
        """The processes that wait for others."""
        return tuple(sorted(i for each in self.places if each.waits for i in each.processes))

    @property
    def cause(self) -> Cause | Literal[""]:
        """Why, in a word, as far as is known; else empty."""
        return self.why or ("slow" if self.silent or self.waiting else "")

    @property
    def is_neutral(self) -> bool:
        """Whether nothing need be wrong; whom others waited for matters after an interrupt."""
        return not (self.reason or self.silent or (self.was_interrupted and self.waiting))


SessionState = Literal["starting", "ready", "busy", "broken", "closed"]
ProcessState = Literal["ready", "busy", "dead"]


@dataclass(frozen=True)
class DeviceInfo:
    """One device as JAX names it.

    Attributes:
        id: ``Device.id``, unique over the group.
        process_index: The process that owns it.
        platform: ``"cpu"``, ``"gpu"`` …
        kind: ``Device.device_kind``, e.g. ``"NVIDIA H100"``.
    """

    id: int
    process_index: int
    platform: str
    kind: str


@dataclass(frozen=True)
class HostFacts:
    """What there is on a host, as the fork server on it reports before it imports anything.

    Attributes:
        host: Its name.
        folder: The group's folder there.
        directory: The fork server's working directory.
        python: The version of Python.
        jax: That of JAX; empty if it is not known before it is imported.
        jaxnb: That of jaxnb.
        cores: How many processors it has.
        gpus: The GPUs that may be used, as ``CUDA_VISIBLE_DEVICES`` names them; empty if nobody
            needed to know.
        available_bytes: How much memory it has left.
        address: By which it reaches another host; empty if nobody needed to know.
        interface: The network interface of that address; empty if it has none.
        rank: Which of the programs that were started together the agent is; 0 if it is the only.
    """

    host: str
    folder: str
    directory: str
    python: str
    jax: str
    jaxnb: str
    cores: int
    gpus: tuple[str, ...]
    available_bytes: int
    address: str = ""
    interface: str = ""
    rank: int = 0

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> HostFacts:
        """Makes them of their ``asdict`` after JSON."""
        return cls(**{**plain, "gpus": tuple(plain["gpus"])})


@dataclass(frozen=True)
class ProcessReport:
    """What one process sees once it has joined: its answer to the check at the start.

    Attributes:
        process_index: ``jax.process_index()``.
        num_processes: ``jax.process_count()``.
        local_devices: ``jax.local_devices()``.
        num_global_devices: ``jax.device_count()``.
        psum: A ``psum`` of ones over every device; equals ``num_global_devices``.
        pid: Its process id on ``host``.
        host: ``socket.gethostname()``.
        jax_version: ``jax.__version__``.
        token: What messages past the controller to it have to hold.
        unrecorded: Why its dispatches are not recorded; empty if they are.
        reduced: What of its checks works less well than it should with this JAX, as sentences.
        trial: What was recorded of the ``psum``.
        settings: Its settings that change programs, and its packages' versions.
    """

    process_index: int
    num_processes: int
    local_devices: tuple[DeviceInfo, ...]
    num_global_devices: int
    psum: float
    pid: int
    host: str
    jax_version: str
    token: str = ""
    unrecorded: str = ""
    reduced: tuple[str, ...] = ()
    trial: tuple[Dispatch, ...] = ()
    settings: Settings = ()


@dataclass(frozen=True)
class ProcessInfo:
    """One process of the group, now.

    Attributes:
        process_index: Its index in the group.
        pid: Its process id on ``host``.
        host: The host it runs on.
        devices: Its addressable devices.
        engine_id: ipyparallel's number for it; changes with a restart.
        state: ``"ready"``, ``"busy"`` or ``"dead"``.
        detail: Why it is dead, e.g. ``"killed by SIGKILL"``; empty otherwise.
    """

    process_index: int
    pid: int
    host: str
    devices: tuple[DeviceInfo, ...]
    engine_id: int
    state: ProcessState = "ready"
    detail: str = ""


@dataclass(frozen=True)
class GroupInfo:
    """The whole group, for cards and ``%spmd_status``.

    Attributes:
        processes: One entry per process, by process index.
        state: The session's state.
        platform: The platform of the default backend.
        launcher: How the processes were launched.
        collectives: The library of the CPU collectives (``"gloo"``), or ``"nccl"``.
        jax_version: The JAX version that every process runs.
        start_seconds: From the call of start to the checked ``psum``.
        cells_run: How many cells have run.
        last_cell: The number of the last cell that has ended, or None.
        running_cell: The number of the cell that is running, or None.
        check: What is done about what differs among processes, unless a cell says otherwise.
        notes: What cannot be checked in it, what that means, and which versions are newer than
            those that jaxnb is tested with, as sentences; empty for nothing.
    """

    processes: tuple[ProcessInfo, ...]
    state: SessionState
    platform: str
    launcher: str
    collectives: str
    jax_version: str
    start_seconds: float
    cells_run: int = 0
    last_cell: int | None = None
    running_cell: int | None = None
    check: CheckMode = "strict"
    notes: tuple[str, ...] = ()
