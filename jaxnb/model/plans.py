"""Plans: what a scratch process is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxnb.model.collectives import Compiled, NotCompiled
from jaxnb.model.comparisons import ComparisonReport


@dataclass(frozen=True)
class PlanPiece:
    """Code to run before a call is planned: a cell, or the definitions taken from one.

    Attributes:
        name: Its file name in tracebacks: ``"<cell 7>"``.
        code: Its text; in front of it are as many empty lines as its lines are to count from.
        whole: The text of the whole cell, for tracebacks.
    """

    name: str
    code: str
    whole: str = ""


@dataclass(frozen=True)
class PlanRequest:
    """Asks a scratch process with many CPU devices to compile a call, without running it.

    Attributes:
        num_devices: How many devices it makes.
        pieces: What to run first, in order.
        call: The call, the last expression of the last piece.
        compares: The call is one of ``jaxnb.compare``, and is made.
    """

    num_devices: int
    pieces: tuple[PlanPiece, ...]
    call: PlanPiece
    compares: bool = False


@dataclass(frozen=True)
class PlanReply:
    """What a scratch process answers.

    Attributes:
        answer: What the call compiles to, a :class:`~jaxnb.model.ComparisonReport`, or why there
            is neither.
        output: What the code has printed.
    """

    answer: Compiled | NotCompiled | ComparisonReport
    output: str = field(default="", repr=False)
