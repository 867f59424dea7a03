"""Which computations this process has failed to make, of those that all had agreed on."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from jaxnb.compat.jax_dispatch import is_of_results
from jaxnb.compat.jax_waits import is_ready, wait_until_ready
from jaxnb.errors import JaxnbError
from jaxnb.lockstep.failures import NONE, Failures
from jaxnb.lockstep.process_origins import origin_of
from jaxnb.lockstep.process_recorded import CellSoFar, Entry
from jaxnb.model.dispatches import Processes
from jaxnb.model.scripts import cell_label

MOST_OF_A_REASON = 200
"""So many characters of an error are told to the others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Outstanding:
    """A computation that calls Python back, and may fail in that; its results are held."""

    processes: Processes
    key: int
    text: str
    results: Sequence[Any]

    def told(self, reason: str) -> str:
        """Returns what has failed, in words, and why."""
        return f"{self.text} ({reason})"


class Launches:
    """Remembers what has failed on this process of what spans several.

    A computation that fails here may be made by the others all the same. What is dispatched next
    would meet, on the others, that in which they still wait: one result would be another's. So
    nothing more is agreed on over processes on which not the same has failed.

    Most failures show as a computation is dispatched. One that calls Python back may fail later:
    the main thread waits for it before its next dispatch, and as the cell ends, so that all know
    by then.

    The results of the main thread's last dispatch are held until the next one, or the end of the
    cell; after an error until the next cell. Of what nobody holds it cannot be known whether it is
    still computed.
    """

    def __init__(self) -> None:
        self._last: Sequence[Any] = ()
        self._lock = threading.RLock()  # a signal's handler may dispatch, too
        self._failures: dict[Processes, Failures] = {}
        self._outstanding: deque[_Outstanding] = deque()

    def made(self, cell: CellSoFar, entry: Entry, results: Sequence[Any], *, is_main: bool) -> None:
        """Takes the results of a dispatch; holds them if it may fail yet, or is the last one."""
        if is_main:
            self._last = results
        if entry.known.calls_back:
            self._outstanding.append(_outstanding(cell, entry, results))

    def let_go(self) -> None:
        """Holds the results of the last dispatch no longer."""
        self._last = ()

    def note_failed(self, cell: CellSoFar, entry: Entry, error: BaseException) -> None:
        """Takes what a dispatch has raised, before it was made or in the end.

        ``jax_debug_nans`` looks at the results of what was made, and runs it again step by step.
        """
        is_after = is_of_results(error) or isinstance(error, JaxnbError)
        if entry.known.collectives and not is_after:
            self._note(_outstanding(cell, entry, ()), _reason(error))

    def settle(self) -> None:
        """Waits for what calls Python back; for the main thread: a callback may dispatch, too.

        A signal's handler may dispatch meanwhile, and wait for the same.

        Raises:
            KeyboardInterrupt: It was interrupted; what it waited for is still outstanding.
        """
        for each in list(self._outstanding):
            if reason := _why_it_fails(each.results):
                self._note(each, reason)
            with contextlib.suppress(ValueError):  # a handler has waited for it
                self._outstanding.remove(each)

    def failures(self, processes: Processes) -> Failures:
        """Returns what has failed of what spans these processes."""
        return self._failures.get(processes, NONE)

    def told(self) -> dict[Processes, Failures]:
        """Returns what has failed, by the processes that it spans; waits for nothing.

        What is outstanding counts if one of this process's devices has failed in it.
        """
        with self._lock:
            found = dict(self._failures)
        for each in list(self._outstanding):
            if reason := next(filter(None, map(_why_it_has_failed, each.results)), ""):
                before = found.get(each.processes, NONE)
                found[each.processes] = before.with_one(each.key, each.told(reason))
        return found

    def _note(self, each: _Outstanding, reason: str) -> None:
        with self._lock:
            before = self.failures(each.processes)
            self._failures[each.processes] = before.with_one(each.key, each.told(reason))


def _outstanding(cell: CellSoFar, entry: Entry, results: Sequence[Any]) -> _Outstanding:
    known = entry.known
    # Of a thread's nobody knows how many came before: it is known by what it computes.
    which = (cell.run, entry.number) if entry.number else (known.fingerprint, entry.inputs)
    text = _named(known.name, entry.line, cell.number)
    return _Outstanding(known.processes, hash((*which, *known.processes)), text, results)


def _named(computation: str, line: int | None, cell: int) -> str:
    place = "" if line is None else f" at line {line}"
    return f"`{computation}`{place} of {cell_label(cell)}"


def _why_it_fails(results: Sequence[Any]) -> str:
    """Waits for results; why their computation fails, empty if it does not.

    Of what is deleted nothing is known.
    """
    there = [each for each in results if not each.is_deleted()]
    wait_until_ready(*there)
    try:
        jax.block_until_ready(there)
        if not results:  # whose end is known by its effects
            jax.effects_barrier()
    except Exception as error:  # which whoever uses the results is told of
        return "" if any(each.is_deleted() for each in there) else _reason(error)
    return ""


def _why_it_has_failed(result: Any) -> str:
    """Returns why the computation of an array has failed on a device of this process by now."""
    try:
        for shard in result.addressable_shards:
            if shard.data.is_ready():
                shard.data.block_until_ready()
    except RuntimeError as error:
        return "" if result.is_deleted() else _reason(error)
    return ""


def _reason(error: BaseException) -> str:
    """Returns the first line of an error, never empty; of a callback's what that has raised."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    if "Traceback (most recent call last)" in lines[0]:  # its frames come next, indented
        lines = [line for line in lines[1:] if not line.startswith("  ")] or lines
    return lines[0].rstrip(": ")[:MOST_OF_A_REASON]


def still_computed() -> tuple[str, ...]:
    """Returns what this process has dispatched that has not ended, as far as results are held.

    Of each array that is not there yet the computation that it comes of, by name and place. Waits
    for nothing, and can be called from any thread.
    """
    late = [each for each in jax.live_arrays() if not is_ready(each)]
    named = {text for each in late if (text := _origin_text(each))}
    return tuple(sorted(named)) or ("a computation of its own",) * bool(late)


def _origin_text(array: jax.Array) -> str:
    origin = origin_of(array)
    if origin is None or origin[1].kind != "dispatch":  # of one process, or a part of an array
        return ""
    return _named(origin[1].name, origin[1].line, origin[1].cell)
