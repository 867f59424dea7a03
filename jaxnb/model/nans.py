"""The first NaN of a cell, as a process saw it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

CheckNans = Literal[False, True, "inf"]
"""Whether a cell's results are looked at: not; for NaN; for NaN and Inf."""


@dataclass(frozen=True)
class NanPlace:
    """An array with NaN or Inf in it.

    Attributes:
        place: Which argument or output of its computation it is, from 0.
        type: ``"float32[8,4]"``.
        what: ``"NaN"`` or ``"Inf"``.
        index: The first such element that the process holds, as the whole array counts.
        count: How many such elements the process holds.
        name: The variable that it is bound to as the cell ends; empty if none.
    """

    place: int
    type: str
    what: str
    index: tuple[int, ...]
    count: int
    name: str = ""


@dataclass(frozen=True)
class NanFound:
    """The first computation of a cell with NaN or Inf in its results, on one process.

    Attributes:
        process_index: The process.
        name: The computation: ``"jit(step)"``.
        line: The cell's line; None outside of its code.
        processes: Those that it spans; one for a computation of the process alone.
        number: Which dispatch over these processes it is, from 1; 0 for the process's own, and
            where dispatches are not recorded.
        after: How many computations over several processes came before, in this cell.
        seconds: When, since the cell began.
        outputs: Which results have it.
        inputs: Which of its arguments had it already.
        is_operation: The computation is a function of JAX called by itself, such as ``jnp.log``:
            its name is the operation's.
    """

    process_index: int
    name: str
    line: int | None
    processes: tuple[int, ...]
    number: int
    after: int
    seconds: float
    outputs: tuple[NanPlace, ...]
    inputs: tuple[NanPlace, ...]
    is_operation: bool = False
