"""Calls a compiled function again and again, on all processes equally often."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxnb.compiled.process_compiled import described
from jaxnb.errors import JaxnbError
from jaxnb.model.cells import ProcessError, middle_half
from jaxnb.model.compiled import Timing
from jaxnb.wire.process_together import exchange

LEAST, MOST = 5, 200
"""How many calls are measured, unless the user says how many."""

CALL_SECONDS = 1.0
"""About how long a variant is measured, if that is enough for the least number of calls."""

COME_BACK_SECONDS = 10.0
"""How long a process whose call has raised waits for the others.

If the call has raised on all of them, they come at once, and the comparison goes on. Else they wait
in a collective that this process has left, and only its cell's end lets jaxnb free them.
"""


class CallFailedError(Exception):
    """A call raised, and all processes are out of it.

    Attributes:
        errors: What it raised, by process.
    """

    def __init__(self, errors: Mapping[int, ProcessError]) -> None:
        super().__init__(str(next(iter(errors.values()))))
        self.errors = errors


def measure(
    call: Callable[[], Any] | None, prepare: Callable[[], None], repeats: int | None
) -> Timing:
    """Calls a function on all processes of the cell, and measures how long its results take.

    After a first call and a second one the processes agree how many follow.

    Args:
        call: The call; None on a process that takes no part in it, which only hears of it.
        prepare: Makes what the call needs; what it raises counts as the call's.
        repeats: How many calls to measure; by default as many as take a second, 5 to 200.

    Raises:
        CallFailedError: It raised, and no process is left in it.
        JaxnbError: It raised on some, and others did not come back from it.
    """
    prepare_error: dict[str, Any] = {}
    first = second = 0.0
    if call is not None:
        try:
            prepare()
            first, second = _timed(call), _timed(call)
        except Exception as error:
            prepare_error = as_word(described(error))
    words = _agreed({"here": call is not None, "error": prepare_error,
                     "first": first, "second": second})  # fmt: skip
    slowest = max(1e-6, *(word["second"] for word in words.values()))
    number = repeats or min(MOST, max(LEAST, math.ceil(CALL_SECONDS / slowest)))
    seconds: list[float] = []
    call_error: dict[str, Any] = {}
    if call is not None:
        try:
            seconds += [_timed(call) for _ in range(number)]
        except Exception as error:
            call_error = as_word(described(error))
    told = _agreed({"here": call is not None, "error": call_error, "seconds": seconds})
    by_process = {i: word["seconds"] for i, word in told.items() if word["seconds"]}
    return timing(by_process, max(word["first"] for word in words.values()))


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - started


def as_word(error: ProcessError) -> dict[str, str]:
    """Returns what this process tells the others of an error; :func:`as_error` reads it."""
    return {"type": error.type_name, "message": error.message, "traceback": error.traceback}


def as_error(word: Mapping[str, str]) -> ProcessError:
    """Returns what a process has told of what it raised."""
    return ProcessError(word["type"], word["message"], word["traceback"], word["traceback"])


def _agreed(word: dict[str, Any]) -> dict[int, dict[str, Any]]:
    error = word["error"]
    try:
        words = exchange(word, COME_BACK_SECONDS if error else None)
    except JaxnbError as silence:
        raise JaxnbError(
            f"the call raised {error['type']}: {error['message']}, and {silence}. The comparison "
            "was given up"
        ) from silence
    failed = {i: as_error(each["error"]) for i, each in words.items() if each["error"]}
    if not failed:
        return words
    raise CallFailedError(failed)


def timing(by_process: Mapping[int, Sequence[float]], first: float) -> Timing:
    """Returns how long calls took: of each the slowest process counts.

    Args:
        by_process: Process index to the seconds of its calls, equally many for each.
        first: What the first call took.
    """
    calls = [max(each) for each in zip(*by_process.values(), strict=True)]
    medians = {i: statistics.median(each) for i, each in by_process.items()}
    slowest = max(medians, key=lambda i: medians[i]) if len(medians) > 1 else None
    low, high = middle_half(calls)
    return Timing(
        median=statistics.median(calls),
        low=low,
        high=high,
        repeats=len(calls),
        first=first,
        slowest=slowest,
    )
