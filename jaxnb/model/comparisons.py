"""A function under several shardings: a row for each, and what to say of their outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from jaxnb.model.cells import ProcessError
from jaxnb.model.collectives import CompiledReport
from jaxnb.model.layout import MeshInfo

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
