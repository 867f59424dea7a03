"""History: one line for each cell that was run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from jaxnb.model.dispatches import Cause

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
