"""What a call compiles to: its collectives and costs, comparisons of shardings, and plans."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from jaxnb.model.arrays import MeshInfo
from jaxnb.model.cells import ProcessError
from jaxnb.model.scripts import SourceLine

CollectiveKind = Literal[
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
]

CompileStage = Literal["prepared", "evaluated", "traced", "lowered", "compiled", "read"]


@dataclass(frozen=True)
class Part:
    """One array that a collective gives each device.

    Attributes:
        dtype: Name of its dtype, e.g. ``"float32"``.
        shape: Its shape on one device.
        nbytes: Its size on one device.
    """

    dtype: str
    shape: tuple[int, ...]
    nbytes: int

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True)
class Collective:
    """One collective of a compiled program.

    Attributes:
        kind: What it does, as XLA calls it.
        axes: The mesh axes that its groups of devices go along; empty if they go along none.
        whole_axes: Whether a group has all devices along its axes; else only some of them.
        groups: The devices that exchange data, as ``Device.id``: in each group those that do among
            themselves. For a permute: those that its pairs join.
        parts: What it gives each device: mostly one array, several where XLA has combined
            collectives, or has cut an all-to-all into one array per device.
        bytes: What one execution makes each device send (the one that sends most).
        scatter_bytes: Of an all-reduce of which each device uses a part of its own: what it sends
            as a reduce-scatter, into which XLA makes it on GPUs and TPUs. Else the same.
        count: How often it is executed in one call; None in a loop whose trip count is not
            known before it runs.
        at_most: ``count`` is an upper bound: it stands in a branch of a conditional.
        asynchronous: XLA starts it, and waits for it later.
        source: The line that it comes from; None if XLA does not know.
        operation: What JAX calls the operation: ``"jit(f)/shard_map/psum"``.
        name: What XLA calls it: ``"all-reduce.3"``.
        pairs: Of a permute: who sends to whom, as ``Device.id``.
        argument: The argument of the call that it moves as it is, which XLA has it do: a weight
            that is gathered to be used, say. Empty if it moves something else.
        dimension: Along which dimension parts are put together, or data are cut into parts; None
            if it has none, as an all-reduce, or an all-to-all of an array for each device.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    whole_axes: bool
    groups: tuple[tuple[int, ...], ...]
    parts: tuple[Part, ...]
    bytes: int
    scatter_bytes: int
    count: int | None
    at_most: bool = False
    asynchronous: bool = False
    source: SourceLine | None = None
    operation: str = ""
    name: str = ""
    pairs: tuple[tuple[int, int], ...] = ()
    argument: str = ""
    dimension: int | None = None

    @property
    def group_size(self) -> int:
        """How many devices exchange data: of the largest group if they differ."""
        return max(map(len, self.groups), default=1)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what it gives one device: of the first part if there are several."""
        return self.parts[0].shape

    @property
    def dtype(self) -> str:
        """Its dtype: of the first part if there are several."""
        return self.parts[0].dtype

    @property
    def times(self) -> int:
        """How often it counts in sums over one call: once if that is not known."""
        return 1 if self.count is None else self.count

    @property
    def total_bytes(self) -> int | None:
        """What all executions in one call make each device send; None if it is not known."""
        return None if self.count is None else self.bytes * self.count


@dataclass(frozen=True)
class AxisTotal:
    """What all collectives over the same axes move in one call.

    Attributes:
        axes: The axes; empty for groups that go along none.
        bytes: What each device sends, executions of unknown number counted once.
        scatter_bytes: The same, all-reduces of which each device uses a part as reduce-scatters.
        count: How many collectives are executed, those of unknown number counted once.
        at_least: Some are in loops of which it is not known how often they run.
        at_most: Some are in branches of which only one is taken.
    """

    axes: tuple[str, ...]
    bytes: int
    scatter_bytes: int
    count: int
    at_least: bool = False
    at_most: bool = False


@dataclass(frozen=True)
class Memory:
    """What XLA has planned to use of each device's memory.

    Attributes:
        argument_bytes: The arguments.
        output_bytes: The results.
        temporary_bytes: What is needed in between.
        alias_bytes: How much of the results takes the place of arguments (donated ones).
    """

    argument_bytes: int
    output_bytes: int
    temporary_bytes: int
    alias_bytes: int


@dataclass(frozen=True)
class CompiledReport:
    """What a call compiles to.

    Attributes:
        name: What XLA calls the program: ``"jit_step"``.
        platform: The platform that it was compiled for, e.g. ``"cpu"``.
        num_devices: How many devices it runs on.
        meshes: The meshes that its shardings are on, the ones that explain most first.
        collectives: In the order in which they stand in the program.
        flops: What XLA counts of arithmetic on each device; None if it does not say. The body
            of a loop is counted once.
        accessed_bytes: What XLA counts of memory read and written by each device, likewise.
        memory: What it needs of each device's memory; None if XLA does not say.
        has_loops: It has loops, so ``flops`` and ``accessed_bytes`` are too low.
        widened: It computes with bfloat16, and was compiled for a CPU, where XLA moves that as
            float32: its collectives send up to twice of what they do on a GPU.
        fingerprint: Equal for equal programs.
        devices: Its devices, as ``Device.id``.
        processes: The process of each of them; empty if there is one only.
    """

    name: str
    platform: str
    num_devices: int
    meshes: tuple[MeshInfo, ...]
    collectives: tuple[Collective, ...]
    flops: float | None = None
    accessed_bytes: float | None = None
    memory: Memory | None = None
    has_loops: bool = False
    widened: bool = False
    fingerprint: str = ""
    devices: tuple[int, ...] = ()
    processes: tuple[int, ...] = ()

    @property
    def totals(self) -> tuple[AxisTotal, ...]:
        """What the collectives move by the axes that they go along, the most first."""
        sums: dict[tuple[str, ...], AxisTotal] = {}
        for each in self.collectives:
            before = sums.get(each.axes, AxisTotal(each.axes, 0, 0, 0))
            sums[each.axes] = AxisTotal(
                each.axes,
                before.bytes + each.bytes * each.times,
                before.scatter_bytes + each.scatter_bytes * each.times,
                before.count + each.times,
                before.at_least or each.count is None,
                before.at_most or each.at_most,
            )
        return tuple(sorted(sums.values(), key=lambda total: -total.bytes))


@dataclass(frozen=True)
class NotCompiled:
    """A call could not be compiled; what was raised on the way.

    Attributes:
        stage: What could not be done with it.
        error: What was raised; its traceback has the user's own lines only.
    """

    stage: CompileStage
    error: ProcessError


ComparisonStage = Literal["placed", "traced", "lowered", "compiled", "read", "agreed", "run"]

Column = Literal["bytes", "memory", "compile", "time"]


@dataclass(frozen=True)
class LeafLayout:
    """One array among a function's arguments or outputs, and how it is split.

    Attributes:
        path: What to call it: ``"w1"``, ``"params['w1']"``, ``"output[0]"``.
        key: The last part of its path in its pytree, ``"['w1']"``; empty for an array that is
            no part of a container with names.
        type: Its dtype and shape: ``"float32[64,128]"``.
        shape: Its shape.
        nbytes: Its size, whole.
        device_bytes: Its size on one device.
        axes: For each dimension the mesh axes that split it, outermost first; None if its
            sharding names none.
        replicated: Every device has all of it.
    """

    path: str
    key: str
    type: str
    shape: tuple[int, ...]
    nbytes: int
    device_bytes: int
    axes: tuple[tuple[str, ...], ...] | None
    replicated: bool


@dataclass(frozen=True)
class OutputWarning:
    """An output that is laid out in a way that nobody has asked for.

    Attributes:
        kind: ``"resharded"``: it is no longer split as the argument it answers to;
            ``"replicated"``: it is large, and every device has all of it.
        output: The output: ``"output[0]['w1']"``.
        type: Its dtype and shape: ``"float32[64,128]"``.
        spec: How it came out: ``"P()"``.
        device_bytes: Its size on one device.
        expected: A spec that would keep it split: ``"P('data')"``.
        expected_bytes: Its size on one device then.
        argument: The argument it answers to; empty for ``"replicated"``.
    """

    kind: Literal["resharded", "replicated"]
    output: str
    type: str
    spec: str
    device_bytes: int
    expected: str
    expected_bytes: int
    argument: str = ""


@dataclass(frozen=True)
class Timing:
    """How long the calls of a function took; of each call the slowest process counts.

    Attributes:
        median: The median of the calls.
        low: A quarter of the calls took at most so long.
        high: Three quarters did.
        repeats: How many calls were measured.
        first: What the first call took, which is not among them.
        slowest: The process whose own median is the largest; None where there is one only.
    """

    median: float
    low: float
    high: float
    repeats: int
    first: float
    slowest: int | None = None


@dataclass(frozen=True)
class VariantFailure:
    """Why a variant has no numbers, or no time.

    Attributes:
        stage: What could not be done.
        message: Why, one sentence or more.
        error: What was raised; None if nothing was.
    """

    stage: ComparisonStage
    message: str
    error: ProcessError | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Variant:
    """A function under one sharding.

    Attributes:
        name: What the user calls it.
        mesh: Its mesh; None if it could not be made.
        report: What it compiles to; None if it does not.
        bytes: What all collectives make each device send in one call; those in loops of
            unknown length once, those in branches fully.
        collectives: How many collectives are executed in one call, counted likewise.
        memory_bytes: What it needs of each device's memory: arguments, outputs and temporary
            values, what is donated once. None if XLA does not say.
        compile_seconds: To trace, lower and compile it; of the slowest process.
        timing: How long a call takes; None if it was not run.
        warnings: Outputs that are laid out in a way that nobody has asked for.
        failure: Why there are no numbers, or no time; None if there are.
        scatter_bytes: As ``bytes``, all-reduces of which each device uses a part as
            reduce-scatters.
    """

    name: str
    mesh: MeshInfo | None = None
    report: CompiledReport | None = None
    bytes: int | None = None
    collectives: int | None = None
    memory_bytes: int | None = None
    compile_seconds: float | None = None
    timing: Timing | None = None
    warnings: tuple[OutputWarning, ...] = ()
    failure: VariantFailure | None = None
    scatter_bytes: int | None = None

    @property
    def seconds(self) -> float | None:
        """The median of a call's time; None if it was not run."""
        return None if self.timing is None else self.timing.median


@dataclass(frozen=True)
class ComparisonReport:
    """A function under several shardings.

    Attributes:
        function: Its name.
        variants: A row for each, in the order in which they were given.
        num_processes: How many processes have compared it.
        not_run: Why nothing was run; empty if it was.
        notes: What else is to be known, a sentence each.
        planned: It was compiled for devices that there need not be.
    """

    function: str
    variants: tuple[Variant, ...]
    num_processes: int = 1
    not_run: str = ""
    notes: tuple[str, ...] = ()
    planned: bool = False


@dataclass(frozen=True)
class PlanRequest:
    """Asks a scratch process with many CPU devices to compile a call, without running it.

    Attributes:
        num_devices: How many devices it makes.
        definitions: The variables of a group, packed; None if there are none.
        name: The file name of the code in tracebacks.
        code: What to run; its last expression is the call.
        compares: The call is one of ``jaxnb.compare``, and is made.
    """

    num_devices: int
    definitions: Any
    name: str
    code: str
    compares: bool = False


@dataclass(frozen=True)
class PlanReply:
    """What a scratch process answers.

    Attributes:
        answer: What the call compiles to, a :class:`~jaxnb.model.ComparisonReport`, or why there
            is neither.
        output: What the code has printed.
    """

    answer: CompiledReport | NotCompiled | ComparisonReport
    output: str = field(default="", repr=False)
