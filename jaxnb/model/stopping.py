"""What a process says of itself while all are to stop at the same dispatch."""

from __future__ import annotations

from dataclasses import dataclass

from jaxnb.model import Whereabouts


@dataclass(frozen=True, slots=True)
class HoldState:
    """How far a process has come in a cell that is to be interrupted.

    Attributes:
        process_index: The process.
        where: Where its main thread is.
        count: How many computations over all processes of the cell it has dispatched; one that it
            is about to dispatch, and cannot be kept from dispatching any more, counts.
        unfit: Why its dispatches cannot be counted against those of the others; empty if they can.
        is_held: Its main thread waits, before its next dispatch, to be told whether to make it.
        is_dispatching: It is making a dispatch, or about to.
        has_stopped: It has seen an interrupt since it was first asked to hold.
        has_left: It does not run the cell: it has left it, or has not begun.
        last_name: What it has dispatched last: ``"jit(step)"``; empty for nothing.
        last_line: The line of the cell that did.
    """

    process_index: int
    where: Whereabouts
    count: int
    unfit: str
    is_held: bool
    is_dispatching: bool
    has_stopped: bool
    has_left: bool
    last_name: str = ""
    last_line: int | None = None
