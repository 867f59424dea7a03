"""What processes dispatch, what made their arrays, and how programs and replicas differ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from jaxnb.model.scripts import the_cell

OriginKind = Literal["dispatch", "created", "unknown", "host"]
"""How an array came into being: as the result of a recorded dispatch; by a call that makes an
array, ``jax.make_array_from_callback`` say. Others are not compared. ``"host"`` is what each
process has by itself: a number, a NumPy array, an array of its own devices alone."""


class Made(NamedTuple):
    """What made arrays: one dispatch, with all its results, or one call.

    Attributes:
        base: The first array's number, and those of the others follow it; equal on all processes
            if they are parts of the same array. Hashed from integers only, so that a process's
            hash seed does not count.
        kind: See :data:`OriginKind`.
        name: ``"jit(step)"``, ``"make_array_from_callback"``, ``"params['w']"``; of host data what
            is passed: ``"0.1"`` for one number, ``"float32[16]"``.
        cell: The number of the cell; 0 outside of cells.
        number: Which dispatch over its processes in that cell, or which array of its type, shape
            and processes that was made there; from 1.
        line: The cell's line, as the notebook counts; None outside of its code.
        place: Of an array made by a call: a number for the place in the code, its type, shape and
            processes, and how many like it that place had made before in the cell. Processes whose
            arrays have one place hold parts of one array, whatever else some of them have made.
    """

    base: int
    kind: OriginKind
    name: str
    cell: int
    number: int
    line: int | None
    place: int = 0


Origin = tuple[int, Made]
"""An array's own number, ``base`` plus its place among the results, and what made it."""


Processes = tuple[int, ...]
"""The indices of the processes that a computation spans, or that hold an array; ascending."""


@dataclass(frozen=True)
class Argument:
    """A global array, or host data, that was given to a dispatch.

    Attributes:
        position: Which argument of the compiled computation it is, from 0.
        name: What the array is bound to in the namespace: ``"params['w']"``; empty if nothing
            there holds it.
        number: The array's origin number; of host data, a digest.
        made: What made it.
        parameter: What the function calls it: ``"batch['x']"``; empty if that is not known.
        processes: Of an array that a name holds, those that it spans; else empty.
        type: ``"float32[16,2]"``, of a variable; empty for what was given to a dispatch.
    """

    position: int
    name: str
    number: int
    made: Made
    parameter: str = ""
    processes: Processes = ()
    type: str = ""

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Argument:
        """Makes it of what JSON has kept of it."""
        return cls(**{**plain, "made": Made(*plain["made"])})


@dataclass(frozen=True)
class Difference:
    """One place at which processes used, or hold, arrays that are not parts of one array.

    Attributes:
        place: ``"argument `x`"``, ``"argument 1"`` if that has no name, or the name that all
            have for it.
        sides: Who has which.
    """

    place: str
    sides: tuple[tuple[tuple[int, ...], Argument | None], ...]


@dataclass(frozen=True)
class ProgramLine:
    """One operation of a compiled program, or one fact about it.

    Attributes:
        text: As XLA prints it: ``"f32[8]{0} multiply(f32[8]{0} tmp_0, f32[8]{0} tmp_1)"``.
        source: The line of Python that it comes from: ``"<cell 3>:5"``; empty if nobody knows.
        code: What stands there; empty if it is not in a cell.
    """

    text: str
    source: str = ""
    code: str = ""


@dataclass(frozen=True)
class ProgramDifference:
    """What differs between two programs that processes dispatched in place of one another.

    Attributes:
        processes: Who dispatched the first, and who the second.
        lines: A short diff, as ``diff -u`` writes it: lines of the first program begin with
            ``"-"``, of the second with ``"+"``, of both with a space.
        left_out: How many lines more differ.
        summary: The first difference, as a sentence.
        constants: If all is constants, and few, who has which: ``"0.1 at line 3 of cell [4]"``.
    """

    processes: tuple[Processes, Processes]
    lines: tuple[str, ...]
    left_out: int
    summary: str
    constants: tuple[tuple[Processes, str], ...] = ()


CheckMode = Literal["off", "strict"]
"""What is done so that no process computes alone what others do not: nothing; or every dispatch of
a computation over several processes is agreed on before it runs."""

DispatchEnd = Literal["", "failed", "broken", "interrupted"]

DivergenceKind = Literal["order", "missing", "shapes", "computation", "inputs"]

Cause = Literal["program", "input", "order", "missing", "dead", "slow"]
"""Why processes diverge, or wait without end, in a word: they dispatch different programs; one
program with different inputs; the same in another order; some do not take part; one has died; one
is busy or stopped."""

_CAUSES: Mapping[DivergenceKind, Cause] = {
    "order": "order",
    "missing": "missing",
    "shapes": "program",
    "computation": "program",
    "inputs": "input",
}

_ENDS = {
    "": "",
    "failed": ", which failed",
    "broken": ", whose connections broke",
    "interrupted": ", which was interrupted",
}


_MOST_SHAPES = 4


@dataclass(frozen=True)
class Shapes:
    """Types and shapes of values: ``float32[8], int, … 5 more``.

    Attributes:
        first: Of the first of them.
        count: How many there are.
        specs: How those are sharded: ``"P('data')"``; empty for what is not, or has no spec.
    """

    first: tuple[str, ...]
    count: int
    specs: tuple[str, ...] = ()

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Shapes:
        """Makes it of what JSON has kept of it."""
        return cls(tuple(plain["first"]), plain["count"], tuple(plain["specs"]))

    def few(self) -> Shapes:
        """Returns it with no more than are shown."""
        return Shapes(self.first[:_MOST_SHAPES], self.count, self.specs[:_MOST_SHAPES])

    def __str__(self) -> str:
        shown = self.first[:_MOST_SHAPES]
        more = [f"… {self.count - len(shown)} more"] if self.count > len(shown) else []
        return ", ".join([*shown, *more]) or "()"


@dataclass(frozen=True)
class Trail:
    """What one process dispatched in a cell to one set of processes, in short.

    Attributes:
        processes: The processes that the computations span.
        count: How many there were.
    """

    processes: Processes
    count: int


@dataclass(frozen=True)
class Dispatch:
    """One dispatch of a computation that spans processes.

    Attributes:
        number: Which one it is over these processes in its cell, from 1.
        name: The computation's name: ``"jit(step)"``.
        fingerprint: Equal for equal computations.
        arguments: Shapes of what it is given; None for a barrier of the coordination service.
        results: Shapes of what it gives; None likewise.
        processes: The processes that it spans.
        line: The cell's line, as the notebook counts; None outside of its code.
        seconds: When, since the cell began.
        inputs: Digest of the origins of the global arrays that it is given, and of what JAX takes
            as equal on all processes without looking: Python's numbers, NumPy arrays,
            arrays of this process alone, and in strict mode its replicas of small arrays.
        host: The same of that alone which does not span processes: numbers, NumPy arrays.
        collectives: Whether processes wait for each other in it.
        replicas: Digests of its replicated arguments that nothing has compared yet: the processes
            that hold the same parts, and a number that is to be equal on these.
        source: The code at ``line``; empty unless other processes are told of it.
        names: What the user's function calls its arguments: ``"batch['x']"``; empty for functions
            of JAX's own, and unless other processes are told of it.
        times: Which time it is that ``line`` dispatches a computation of this name over these
            processes; 0 unless other processes are told of it, and if too many came before.
        failed: The last one over these processes that all had agreed on before, and that then
            failed on this process, in words; empty if there was none.
        failures: How many there were.
        end: ``"failed"`` if it raised; ``"broken"`` if its collective did, as connections were
            lost or shut; ``"interrupted"`` if an interrupt struck while it was made: then it
            may run or not; else empty.
    """

    number: int
    name: str
    fingerprint: int = field(repr=False)
    arguments: Shapes | None
    results: Shapes | None
    processes: Processes
    line: int | None
    seconds: float
    inputs: int = field(default=0, repr=False)
    host: int = field(default=0, repr=False)
    collectives: bool = False
    failed: str = ""
    failures: int = 0
    end: DispatchEnd = ""
    replicas: tuple[tuple[Processes, int], ...] = field(default=(), repr=False)
    source: str = field(default="", compare=False)
    times: int = field(default=0, compare=False)
    names: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Dispatch:
        """Makes it of what JSON has kept of it."""
        replicas = tuple((tuple(holders), value) for holders, value in plain["replicas"])
        typed = {
            "arguments": plain["arguments"] and Shapes.from_plain(plain["arguments"]),
            "results": plain["results"] and Shapes.from_plain(plain["results"]),
            "processes": tuple(plain["processes"]),
            "replicas": replicas,
            "names": tuple(plain["names"]),
        }
        return cls(**{**plain, **typed})

    def signature(self) -> str:
        """Returns its name, and the shapes of arguments and results: ``"jit(f) f32[8] -> f32[]"``.

        Of many shapes the first few.
        """
        if self.arguments is None:
            return self.name
        return f"{self.name} {self.arguments} -> {self.results}"

    @property
    def which_time(self) -> str:
        """``"4th time"``; empty for the first one."""
        is_teen = self.times % 100 in (11, 12, 13)
        ending = "th" if is_teen else {1: "st", 2: "nd", 3: "rd"}.get(self.times % 10, "th")
        return f"{self.times}{ending} time" if self.times > 1 else ""

    def __str__(self) -> str:
        line = f" outside {the_cell()}'s lines" if self.line is None else f" at line {self.line}"
        time = f", {self.which_time}" if self.times > 1 else ""
        return f"{self.signature()}{line}{time}{_ENDS[self.end]}"


@dataclass(frozen=True)
class Recording:
    """The dispatches of one process in its last cell.

    Attributes:
        process_index: The process.
        trails: How many there were, by the processes that they span.
        dispatches: The last of them, oldest first: a ring forgets what came before.
        refused: In strict mode, what it was about to dispatch when the processes did not agree.
    """

    process_index: int
    trails: tuple[Trail, ...]
    dispatches: tuple[Dispatch, ...]
    refused: Dispatch | None = None


@dataclass(frozen=True)
class Side:
    """Processes that did the same where processes parted.

    Attributes:
        processes: Who.
        dispatch: What they dispatched, or were about to; None if nothing.
        note: Why nothing, as far as that is known: ``"was not asked to run the
            cell"``.
    """

    processes: Processes
    dispatch: Dispatch | None
    note: str = ""


@dataclass(frozen=True)
class Divergence:
    """Where the processes of a cell were about to part; nothing of that has run.

    Attributes:
        cell: The cell's number.
        number: Which dispatch over these processes it is, from 1.
        kind: ``"missing"``: some would not take part; ``"shapes"``: one name, other shapes;
            ``"computation"``: other computations, or one that differs in what the code does or in
            a constant; ``"inputs"``: one computation with other numbers, NumPy arrays or replicas
            as its input; ``"order"``: each waited for another one first.
        sides: Who did what, or was about to.
        differences: Of ``"inputs"``: which arguments are parts of different arrays. Empty if those
            are the same, and numbers, NumPy arrays or the elements of replicas differ; also if
            nobody remembers.
        program: Of ``"computation"``, under one name: what differs in the programs. None if nobody
            remembers.
    """

    cell: int
    number: int
    kind: DivergenceKind
    sides: tuple[Side, ...]
    differences: tuple[Difference, ...] = ()
    program: ProgramDifference | None = None

    @property
    def cause(self) -> Cause:
        """The kind of mistake, in a word."""
        return _CAUSES[self.kind]


Index = tuple[tuple[int, int], ...]
"""For each dimension the half-open ``(start, stop)``."""

Role = Literal["argument", "result", "put"]
"""Why an array was digested: it was given to a dispatch, and did not come out of one; it came out
of one whose program declares it replicated, unchecked; or it was put onto devices of some
processes: of that the host data are digested."""


@dataclass(frozen=True)
class ReplicaTrail:
    """What one process digested in a cell of parts that the same processes hold, in short.

    Attributes:
        processes: The processes that hold these parts. One process alone: its own devices hold
            replicas that differ.
        count: How many parts there were.
        digest: Equal on two processes only if they digested the same, in the same order.
    """

    processes: Processes
    count: int
    digest: int


@dataclass(frozen=True)
class ReplicaPart:
    """A part of an array that several devices hold, as one process sees it.

    Attributes:
        index: What it covers.
        processes: Who holds it.
        digests: Device id to digest, of this process's devices.
    """

    index: Index
    processes: Processes
    digests: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class DigestedArray:
    """An array whose replicas a process digested.

    Attributes:
        processes: Those that the dispatch spans.
        number: Which dispatch over these it is in the cell, from 1; of what was put, the place in
            the code.
        position: Which argument of the compiled computation the array is, or which result, from 0.
        computation: The computation's name: ``"jit(step)"``; of a result, the one not checked.
        line: The cell's line, as the notebook counts; None outside of its code.
        name: What the array is bound to: ``"params['w']"``; empty if nothing holds it.
        origin: The number of what made it.
        made: Where it came from, in words.
        type: ``"float32[4, 8]"``.
        layout: Its spec, or its sharding.
        parts: The parts that several devices hold.
        role: Why it was digested.
        axes: Of a result the mesh axes over which its program declares replicas without a check;
            empty if that calls Python back.
    """

    processes: Processes
    number: int
    position: int
    computation: str
    line: int | None
    name: str
    origin: int
    made: str
    type: str
    layout: str
    parts: tuple[ReplicaPart, ...]
    role: Role = "argument"
    axes: tuple[str, ...] = ()

    @property
    def key(self) -> tuple[Any, ...]:
        """What the array is known by on all processes: a result may be told a cell later."""
        result = self.origin if self.role == "result" else 0
        return self.role, self.processes, self.number, self.position, result


@dataclass(frozen=True)
class UnequalInput:
    """An array whose replicas differ.

    Attributes:
        array: The array, as the first process that has it describes it.
        index: The first part of it that differs.
        groups: Who holds the same there: processes, or devices if those of one process differ.
        by_device: Whether ``groups`` are device ids.
    """

    array: DigestedArray
    index: Index
    groups: tuple[tuple[int, ...], ...]
    by_device: bool = False

    @property
    def name(self) -> str:
        """What to call it: its variable, or which of the arguments or results it was, from 1."""
        array = self.array
        return f"`{array.name}`" if array.name else f"{array.role} {array.position + 1}"
