"""Pure: how often a timed cell is run again, and what its calls come to."""

from __future__ import annotations

from dataclasses import replace
from math import ceil

from jaxnb.cells.result import CellResult, ProcessResult
from jaxnb.errors import UsageError
from jaxnb.model.cells import CellMemory, CellTiming, ProcessTiming

TARGET_SECONDS = 1.0
"""The repeats of a timed cell take about so long together, where the user does not say how many."""

LEAST_REPEATS, MOST_REPEATS = 3, 1000
"""Fewer have no spread; more would flood a notebook with what the cell prints."""

LONG_SECONDS = 10.0
"""What takes longer than that is not run a third time."""

MAX_REPEATS = 100_000
"""Of those that the user asks for."""


def first_calls(repeats: int | None) -> int:
    """Returns how many calls the first request of a timed cell has.

    Args:
        repeats: How many repeats the user wants; None to have their number found from the time
            of the first of them.

    Raises:
        UsageError: That number is not possible.
    """
    if repeats is None:
        return 2
    if isinstance(repeats, bool) or not isinstance(repeats, int):
        raise UsageError(f"The number of repeats is a whole number, not {repeats!r}.")
    if not 1 <= repeats <= MAX_REPEATS:
        raise UsageError(
            f"The number of repeats is from 1 to {MAX_REPEATS}, not {repeats}. Nothing was run."
        )
    return 1 + repeats


def calls_to_come(timing: CellTiming) -> int:
    """Returns how many calls are still to be made, from the time of the first repeat.

    All processes make as many: they may wait for each other in each.
    """
    took = timing.median
    if took is None or took > LONG_SECONDS:
        return 0
    wanted = ceil(TARGET_SECONDS / max(took, 1e-6))
    return min(max(wanted, LEAST_REPEATS), MOST_REPEATS) - timing.repeats


def timing_of(calls: dict[int, tuple[float, ...]]) -> CellTiming:
    """Returns what the calls of each process come to, the first apart."""
    return CellTiming(
        {i: ProcessTiming(i, each[0] if each else None, each[1:]) for i, each in calls.items()}
    )


def joined(first: CellResult, then: CellResult) -> CellResult:
    """Returns the results of a cell's two requests as one: its values are those of the second."""
    calls: dict[int, tuple[float, ...]] = {}
    for result in (first, then):
        assert result.timing is not None
        for i, each in result.timing.per_process.items():
            made = (() if each.first is None else (each.first,)) + each.repeats
            calls[i] = calls.get(i, ()) + made
    return replace(
        then,
        per_process={i: _joined(first.per_process[i], r) for i, r in then.per_process.items()},
        seconds=first.seconds + then.seconds,
        stdout=first.stdout + then.stdout,
        stderr=first.stderr + then.stderr,
        timing=timing_of(calls),
        first_nan=first.first_nan or then.first_nan,
    )


def _joined(first: ProcessResult, then: ProcessResult) -> ProcessResult:
    return replace(
        then,
        stdout=first.stdout + then.stdout,
        stderr=first.stderr + then.stderr,
        displays=first.displays + then.displays,
        seconds=first.seconds + then.seconds,
        compile_seconds=first.compile_seconds + then.compile_seconds,
        compiles=first.compiles + then.compiles,
        loads=first.loads + then.loads,
        memory=_joined_memory(first.memory, then.memory),
    )


def _joined_memory(
    first: tuple[CellMemory, ...], then: tuple[CellMemory, ...]
) -> tuple[CellMemory, ...]:
    """Returns what both changed; one that changed nothing has no entries."""
    if not first or not then:
        return first or then
    return tuple(a.followed_by(b) for a, b in zip(first, then, strict=True))
