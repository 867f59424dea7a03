"""Plans: what a scratch process is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jaxnb.model.collectives import Compiled, NotCompiled
from jaxnb.model.comparisons import ComparisonReport


@dataclass(frozen=True)
class GroupValues:
    """What a group has of names that definitions bind.

    Attributes:
        texts: By name a text that is equal for equal plain values (numbers, texts, containers of
            them); None for values of other kinds. Names that are not there are left out.
        x64: Whether it computes with 64 bits; None if that is not known.
    """

    texts: Mapping[str, str | None] = field(default_factory=dict)
    x64: bool | None = None


@dataclass(frozen=True)
class PlanPiece:
    """A statement, of a cell or of the plan itself.

    Attributes:
        name: Its file name in tracebacks: ``"<cell 7>"``.
        code: Its text; in front of it are as many empty lines as its lines are to count from.
        whole: The text of the whole cell, for tracebacks.
        bound: The names that it binds.
        is_definition: A plan runs it, where it is of a cell.
        changed: The name whose method it calls: it is run for a container only.
    """

    name: str
    code: str
    whole: str = ""
    bound: tuple[str, ...] = ()
    is_definition: bool = False
    changed: str = ""

    @property
    def line(self) -> int:
        """The line that it begins at, from 1."""
        return len(self.code) - len(self.code.lstrip("\n")) + 1


@dataclass(frozen=True)
class PlanRequest:
    """Asks a scratch process with many CPU devices to compile a call, without running it.

    Attributes:
        num_devices: How many devices it makes.
        definitions: Statements of cells, in order.
        pieces: Statements of the plan but its last.
        call: The call, the last expression of the plan.
        compares: The call is one of ``jaxnb.compare``, and is made.
        values: What the group has of the names that the definitions bind.
    """

    num_devices: int
    definitions: tuple[PlanPiece, ...]
    pieces: tuple[PlanPiece, ...]
    call: PlanPiece
    compares: bool = False
    values: GroupValues = field(default_factory=GroupValues)


@dataclass(frozen=True)
class Missing:
    """A name that a cell has made, and that a plan does not have.

    Attributes:
        piece: What has made it.
        needs: The name for want of which that could not be run.
        error: What it raised else; empty if it was not run.
        theirs: What the group has under that name, where the definitions give something else.
    """

    piece: PlanPiece
    needs: str = ""
    error: str = ""
    theirs: str = ""


@dataclass(frozen=True)
class PlanReply:
    """What a scratch process answers.

    Attributes:
        answer: What the call compiles to, a :class:`~jaxnb.model.ComparisonReport`, or why there
            is neither.
        output: What the code has printed.
        missing: By name what cells have made that is not there.
    """

    answer: Compiled | NotCompiled | ComparisonReport
    output: str = field(default="", repr=False)
    missing: Mapping[str, Missing] = field(default_factory=dict, repr=False)
