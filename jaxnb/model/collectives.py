"""What a call compiles to: its collectives, and what it costs each device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxnb.model.cells import ProcessError
from jaxnb.model.layout import MeshInfo

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
class SourceLine:
    """The line of a program that an operation comes from.

    Attributes:
        file: Its file; ``"<cell 7>"`` for a cell.
        line: Counted from 1, as the notebook does.
        function: The function it is in; empty if it is not known.
    """

    file: str
    line: int
    function: str = ""

    def __str__(self) -> str:
        if self.file.startswith("<cell ") and self.file.endswith(">"):
            return f"cell [{self.file[len('<cell ') : -1]}] line {self.line}"
        return f"{self.file.replace(chr(92), '/').rpartition('/')[2]}:{self.line}"


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
        group_size: How many devices exchange data; of the largest group if they differ. For a
            permute: how many devices send.
        num_groups: How many such groups there are.
        parts: What it gives each device: mostly one array, several where XLA has combined
            collectives, or has cut an all-to-all into one array per device.
        bytes: What one execution makes each device send (the one that sends most).
        count: How often it is executed in one call; None in a loop whose trip count is not
            known before it runs.
        at_most: ``count`` is an upper bound: it stands in a branch of a conditional.
        asynchronous: XLA starts it, and waits for it later.
        source: The line that it comes from; None if XLA does not know.
        operation: What JAX calls the operation: ``"jit(f)/shard_map/psum"``.
        name: What XLA calls it: ``"all-reduce.3"``.
    """

    kind: CollectiveKind
    axes: tuple[str, ...]
    whole_axes: bool
    group_size: int
    num_groups: int
    parts: tuple[Part, ...]
    bytes: int
    count: int | None
    at_most: bool = False
    asynchronous: bool = False
    source: SourceLine | None = None
    operation: str = ""
    name: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of what it gives one device: of the first part if there are several."""
        return self.parts[0].shape

    @property
    def dtype(self) -> str:
        """Its dtype: of the first part if there are several."""
        return self.parts[0].dtype

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
        count: How many collectives are executed, those of unknown number counted once.
        at_least: Some are in loops of which it is not known how often they run.
        at_most: Some are in branches of which only one is taken.
    """

    axes: tuple[str, ...]
    bytes: int
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


@dataclass(frozen=True)
class Compiled:
    """A call was compiled.

    Attributes:
        process_index: Who answers.
        report: What it compiles to.
    """

    process_index: int
    report: CompiledReport


@dataclass(frozen=True)
class NotCompiled:
    """A call could not be compiled; what was raised on the way.

    Attributes:
        process_index: Who answers.
        stage: What could not be done with it.
        error: What was raised; its traceback has the user's own lines only.
    """

    process_index: int
    stage: CompileStage
    error: ProcessError
