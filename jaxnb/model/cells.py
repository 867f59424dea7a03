"""A cell, what else the notebook asks of processes, and what they answer."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any, Literal

from jaxnb.model.arrays import ArrayInfo, LayoutReply
from jaxnb.model.dispatches import Cause, CheckMode, ReplicaTrail, Trail
from jaxnb.model.group import Settings
from jaxnb.model.insight import Activity, CheckNans, NanFound, Pitfall
from jaxnb.model.scripts import Script, the_cell
from jaxnb.model.steps import StepTrail


def middle_half(seconds: Sequence[float]) -> tuple[float, float]:
    """Returns the first and the third quartile of one or more times."""
    if len(seconds) == 1:  # quantiles refuses that before Python 3.13
        return seconds[0], seconds[0]
    low, _, high = quantiles(seconds, n=4, method="inclusive")
    return low, high


@dataclass(frozen=True)
class ProcessTiming:
    """The calls of a timed cell on one process; times in seconds.

    Attributes:
        process_index: The process.
        first: The first call, which may trace and compile; None if it did not end.
        repeats: The calls after it, in order, as far as they ended.
    """

    process_index: int
    first: float | None
    repeats: tuple[float, ...] = field(repr=False)

    @property
    def median(self) -> float | None:
        """The median of the repeats; None if there are none."""
        return median(self.repeats) if self.repeats else None

    @property
    def spread(self) -> tuple[float, float] | None:
        """The middle half of the repeats: first and third quartile; None below two of them."""
        if len(self.repeats) < 2:
            return None
        return middle_half(self.repeats)

    @property
    def fastest(self) -> float | None:
        """The fastest repeat; None if there are none."""
        return min(self.repeats, default=None)

    @property
    def slowest(self) -> float | None:
        """The slowest repeat; None if there are none."""
        return max(self.repeats, default=None)


@dataclass(frozen=True)
class CellTiming:
    """The calls of a timed cell.

    Attributes:
        per_process: Process index to its calls.
    """

    per_process: Mapping[int, ProcessTiming]

    @property
    def repeats(self) -> int:
        """How many calls after the first ended on every process."""
        return min((len(each.repeats) for each in self.per_process.values()), default=0)

    @property
    def median(self) -> float | None:
        """The slowest process's median; None if a process has none."""
        medians = [each.median for each in self.per_process.values()]
        known = [each for each in medians if each is not None]
        return max(known) if known and len(known) == len(medians) else None


StreamName = Literal["stdout", "stderr"]


@dataclass(frozen=True)
class ValueInfo:
    """The value of a cell's last expression on one process.

    Attributes:
        type_name: Qualified type name.
        digest: Equal on two processes only if the values are equal in every byte; empty if
            the value has no canonical bytes.
        payload: The pickled value when it is small enough to travel, else None. A
            ``jax.Array`` that is fully replicated or process-local travels as a NumPy array;
            for any other there is an :class:`~jaxnb.model.ArrayLeaf`.
        payload_note: Why there is no payload, for people.
        mimebundle: What IPython would display, MIME type to data.
        array: For a ``jax.Array``, its description.
        digest_note: What the digest leaves out, for people: why it is empty, or which part of
            the value is not in it.
        arrays: The arrays that the payload leaves on the processes.
        has_lost: It holds arrays that are lost, of which nothing is digested.
        layout: Of a pytree with arrays that are spread over processes, how all in it lie.
    """

    type_name: str
    digest: bytes = field(repr=False)
    payload: bytes | None = field(repr=False)
    payload_note: str
    mimebundle: Mapping[str, Any] = field(repr=False)
    array: ArrayInfo | None = None
    digest_note: str = ""
    has_lost: bool = False
    arrays: tuple[ArrayInfo, ...] = ()
    layout: LayoutReply | None = None


NO_ANSWER = "NoAnswer"
"""What stands for the error of a process that was given up while it was in the cell."""


@dataclass(frozen=True)
class ProcessError:
    """An exception that a cell raised on one process.

    Attributes:
        type_name: Name of the exception's class.
        message: ``str(exception)``.
        traceback: The formatted traceback as text, without colours.
        traceback_ansi: The same with ANSI colours.
        line: The last line of the cell in the traceback, counted as the notebook counts
            (the ``%%spmd`` line is line 1); None if the cell is not in it.
        seconds: When it left the cell's code, since the cell began there: to format it may take
            long. None if that is not known.
        at: When that was, on ``time.monotonic()``: one clock for the processes of a host.
    """

    type_name: str
    message: str
    traceback: str = field(repr=False)
    traceback_ansi: str = field(repr=False)
    line: int | None = None
    seconds: float | None = None
    at: float | None = None

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name

    @property
    def ending(self) -> str:
        """How the cell ended with it: ``"raised ValueError at line 3"``."""
        if self.type_name == NO_ANSWER:
            return f"did not end {the_cell()}"
        return f"raised {self.type_name}{f' at line {self.line}' if self.line else ''}"


@dataclass(frozen=True)
class RichOutput:
    """One rich output (a figure, an HTML table) that a cell displayed on one process.

    Attributes:
        data: MIME type to data.
        metadata: MIME type to metadata.
        display_id: The id it can be updated by, or None.
        update: It updates the earlier output of the same ``display_id``.
    """

    data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False


@dataclass(frozen=True)
class CellRequest:
    """One cell, on its way to a process.

    Attributes:
        cell: The cell's number, as the notebook shows it.
        code: Its source.
        first_line: The notebook's line number of the first line of ``code``: 2 under a
            ``%%spmd`` line, 1 otherwise.
        max_payload_bytes: A larger value is described but does not travel.
        check: What is done so that processes which part are noticed.
        ranks: The processes that run it.
        pitfalls: Look for pitfalls too, unless ``check`` is off.
        serial: Of several runs the later one's is larger, on all processes.
        request_id: Names the run: cells' numbers repeat, within a notebook cell and after a
            restart.
        aside: It is jaxnb's own, an expression: it leaves nothing in ``In``, ``Out`` and ``_``.
            This is what is shown in its place; empty for cells of the user's.
        calls: So many times it is run, and each call timed; 0 to run it once as ever, None to run
            it as often as takes about a second.
        check_nans: Look for the first NaN in what it computes, or NaN and Inf.
        script: What is run in the place of ``code``. All that it writes is handed on, and nothing
            of that is kept.
        profile: The user's folder for profiles, if ``jax.profiler`` is to run around it.
        steps: Run its last statement without ``jit``, and note each line within ``shard_map``.
    """

    cell: int
    code: str
    first_line: int = 1
    max_payload_bytes: int = 1 << 20
    check: CheckMode = "strict"
    ranks: tuple[int, ...] = ()
    pitfalls: bool = True
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    aside: str = ""
    calls: int | None = 0
    serial: int = 0
    check_nans: CheckNans = False
    script: Script | None = None
    profile: str = ""
    steps: bool = False


@dataclass(frozen=True)
class CellMemory:
    """What a cell changed on one device.

    Attributes:
        device_id: ``Device.id``.
        before_bytes: In use as the cell began, from ``memory_stats()`` where the backend has it,
            else the bytes of live arrays.
        after_bytes: The same as it ended.
        peak_bytes: The highest in between; None where it is not known, or was no higher than
            before.
        peak_of: What the peak is of: the ``"device"``, or, where the backend tells of none, the
            whole ``"process"``'s resident memory, all its devices' and its code's.
    """

    device_id: int
    before_bytes: int
    after_bytes: int
    peak_bytes: int | None
    peak_of: Literal["device", "process"] = "device"

    @property
    def change_bytes(self) -> int:
        """What the cell allocated; below zero for what it freed."""
        return self.after_bytes - self.before_bytes


def code_seconds(seconds: float, error: ProcessError | None) -> float:
    """Returns how long a cell's own code ran: to format its error may take longer.

    Args:
        seconds: Wall time of the cell.
        error: What it raised.
    """
    return seconds if error is None or error.seconds is None else min(seconds, error.seconds)


@dataclass(frozen=True)
class CellReply:
    """What a process answers to a :class:`CellRequest`, beside its streamed output.

    Attributes:
        process_index: Who answers.
        value: The last expression's value; None if there was none.
        error: What it raised; None if nothing.
        seconds: Wall time of the cell on this process.
        compile_seconds: Part of it that JAX spent lowering and compiling.
        compiles: Number of computations that the backend compiled, or loaded.
        loads: Number of them that were loaded, as another process has compiled them.
        trails: What it dispatched to several processes, in short.
        pitfalls: What it did that JAX says nothing of.
        calls: Seconds of each call that ended without an error, if the cell is timed.
        activity: What its main thread did when; None if it did not tell.
        memory: What it changed on each of its devices; empty if it changed nothing on any.
        computes: It still computes arrays that it has dispatched.
        replicas: What it digested of replicas, in short.
        settings: Those that change programs, and are not what they were as it joined.
        nan: Its first computation with a NaN in the results, if that was looked for.
        refused: The cell's lines, each once, at which the processes did not agree.
        has_failed: A computation has, in which processes wait for each other, in this cell or
            before; nobody need have looked at its results yet.
        steps: The lines that it ran within ``shard_map``, if these were asked for.
    """

    process_index: int
    value: ValueInfo | None
    error: ProcessError | None
    seconds: float
    compile_seconds: float = 0.0
    compiles: int = 0
    loads: int = 0
    trails: tuple[Trail, ...] = ()
    pitfalls: tuple[Pitfall, ...] = ()
    calls: tuple[float, ...] = ()
    activity: Activity | None = None
    memory: tuple[CellMemory, ...] = ()
    computes: bool = False
    replicas: tuple[ReplicaTrail, ...] = ()
    settings: Settings = ()
    nan: NanFound | None = None
    refused: tuple[int | None, ...] = ()
    has_failed: bool = False
    steps: StepTrail | None = None


@dataclass(frozen=True)
class StreamChunk:
    """A piece of text that a process wrote, as it arrived."""

    process_index: int
    name: StreamName
    text: str


@dataclass(frozen=True)
class JoinRequest:
    """Tells a process who it is; it joins the group and builds its backend.

    Attributes:
        process_index: Its index.
        num_processes: Size of the group.
        coordinator_address: Of the coordination service, as gRPC takes it.
        platform: ``"cpu"`` or ``"gpu"``.
        devices_per_process: Number of CPU devices it makes; ignored on GPU.
        bind_host: The address that its collectives listen on.
        socket_folder: The group's folder on its host, with all sockets of jaxnb's; only this user
            can enter it.
        collectives: ``"gloo"`` or ``"mpi"``; the CPU's.
        in_mpi: mpiexec has started it.
        programs_folder: Where compiled programs are kept; ``"off"``: each compiles alone.
        bare: Leave the namespace empty: no ``jax``, ``jnp`` … in it.
        environment: Variables to set before the backend starts.
        arguments: The notebook's ``sys.argv``.
        timeout_seconds: How long to wait for the others.
    """

    process_index: int
    num_processes: int
    coordinator_address: str
    platform: str
    devices_per_process: int
    bind_host: str = "127.0.0.1"
    socket_folder: str = ""
    collectives: str = "gloo"
    in_mpi: bool = False
    programs_folder: str = "off"
    bare: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    timeout_seconds: int = 60


@dataclass(frozen=True)
class CheckRequest:
    """Asks a process what it sees, a ``psum`` over all devices included."""


@dataclass(frozen=True)
class RequestFailed:
    """A request that raised on the process, other than a cell: jaxnb's own fault or the system's.

    Attributes:
        process_index: Who answers; None before it has joined.
        error: What it raised.
    """

    process_index: int | None
    error: ProcessError


@dataclass(frozen=True)
class JointRequest:
    """Asks several processes one thing; code of the user's may compute over them to answer it.

    Attributes:
        serial: As of cells: of several the later one's is larger, on all processes.
        ranks: The processes that are asked.
        check: How the group is checked.
        request: What they are asked.
    """

    serial: int
    ranks: tuple[int, ...]
    check: CheckMode
    request: CallRequest


@dataclass(frozen=True)
class CallRequest:
    """Asks a process to call a function of jaxnb's, and to answer with what it returns.

    Attributes:
        function: Where it is, in a module of what runs in processes:
            ``"jaxnb.recovery.process_saving.write"``. It takes what the process has, and the
            arguments.
        arguments: By name.
        is_interruptible: It runs code of the user's (``__reduce__``, ``__getitem__``), or waits for
            computations. Else it is short, and would be left half done.
    """

    function: str
    arguments: Mapping[str, Any]
    is_interruptible: bool = False


Request = CheckRequest | CellRequest | JointRequest | CallRequest


CellOutcome = Literal[
    "ok", "error", "interrupted", "timed out", "diverged", "nan", "suspect", "died", "abandoned"
]
"""``"diverged"``: the processes parted, or were about to, and raised nothing else. ``"nan"``: a NaN
was looked for, and found. ``"suspect"``: its value mixes shards of different arrays.
``"died"``: a process of the group ended. ``"abandoned"``: the session was restarted or closed
meanwhile."""


@dataclass(frozen=True)
class CellRecord:
    """What is kept of a cell that was run.

    Attributes:
        cell: Its number. Numbers repeat where a notebook's cell runs several.
        began: Wall clock when it was sent: ISO 8601 with the time zone.
        code: The first line of its source that is more than an import or a comment.
        lines: How many lines the source has.
        processes: The processes that it ran on.
        seconds: Wall time as seen from the notebook.
        process_seconds: The longest that a process took.
        compile_seconds: The longest that a process spent lowering and compiling.
        compiles: The most computations that a process compiled.
        dispatches: How many computations over several processes it dispatched, on the process
            with the most; None if that was not recorded.
        allocated_bytes: Device id to how many bytes more are in use on it than before the cell;
            empty where that is not known.
        peak_bytes: Device id to the most in use, where the backend tells.
        outcome: How it ended.
        detail: What was raised and on whom, or where processes parted.
        generation: How often the group had been restarted.
        starts: How often its processes had been started, by a recovery too.
        cause: Why its processes diverged, or waited without end, in a word; empty if they did not.
    """

    cell: int
    began: str
    code: str
    lines: int
    processes: tuple[int, ...]
    seconds: float
    process_seconds: float
    compile_seconds: float
    compiles: int
    dispatches: int | None
    outcome: CellOutcome
    detail: str = ""
    generation: int = 0
    starts: int = 1
    allocated_bytes: Mapping[int, int] = field(default_factory=dict)
    peak_bytes: Mapping[int, int] = field(default_factory=dict)
    cause: Cause | Literal[""] = ""
