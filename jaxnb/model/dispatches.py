"""Dispatches: computations over several processes, as each process recorded them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from jaxnb.model.origins import Difference
from jaxnb.model.programs import ProgramDifference
from jaxnb.model.scripts import the_cell

Processes = tuple[int, ...]
"""The indices of the processes that a computation spans, or that hold an array; ascending."""

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
    """

    first: tuple[str, ...]
    count: int

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Shapes:
        """Makes it of what JSON has kept of it."""
        return cls(tuple(plain["first"]), plain["count"])

    def few(self) -> Shapes:
        """Returns it with no more than are shown."""
        return Shapes(self.first[:_MOST_SHAPES], self.count)

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
        sites: Equal on two processes only if the same places in the cell dispatched, in the same
            order. They may differ where the computations are the same: a cell may have a branch
            for each process.
        site_sum: Equal if the same places dispatched, in whatever order.
    """

    processes: Processes
    count: int
    sites: int = field(default=0, compare=False)
    site_sum: int = field(default=0, compare=False)


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
        site: The place in the cell that dispatched it, as a number; 0 outside of its code.
        collectives: Whether processes wait for each other in it.
        replicas: Digests of its replicated arguments that nothing has compared yet: the processes
            that hold the same parts, and a number that is to be equal on these.
        source: The code at ``line``; empty unless other processes are told of it.
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
    site: int = field(default=0, repr=False)
    collectives: bool = False
    failed: str = ""
    failures: int = 0
    end: DispatchEnd = ""
    replicas: tuple[tuple[Processes, int], ...] = field(default=(), repr=False)
    source: str = field(default="", compare=False)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Dispatch:
        """Makes it of what JSON has kept of it."""
        replicas = tuple((tuple(holders), value) for holders, value in plain["replicas"])
        typed = {
            "arguments": plain["arguments"] and Shapes.from_plain(plain["arguments"]),
            "results": plain["results"] and Shapes.from_plain(plain["results"]),
            "processes": tuple(plain["processes"]),
            "replicas": replicas,
        }
        return cls(**{**plain, **typed})

    def signature(self) -> str:
        """Returns its name, and the shapes of arguments and results: ``"jit(f) f32[8] -> f32[]"``.

        Of many shapes the first few.
        """
        if self.arguments is None:
            return self.name
        return f"{self.name} {self.arguments} -> {self.results}"

    def __str__(self) -> str:
        line = f" outside {the_cell()}'s lines" if self.line is None else f" at line {self.line}"
        return f"{self.signature()}{line}{_ENDS[self.end]}"


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
            as its input; ``"order"``: each waited for another one first. Or equal computations
            were dispatched by the same places of the cell in another order: those have run.
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
