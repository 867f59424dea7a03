"""What a process has dispatched in a cell, with the programs and what becomes of them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import linecache
import re
import threading
import time
import weakref
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import jax
import numpy as np

from jaxnb.compat import jax_dispatch as internals
from jaxnb.compat.jax_runtime import is_ready, wait_until_ready
from jaxnb.errors import JaxnbError
from jaxnb.labels import type_label
from jaxnb.lockstep.messages import NONE, Failures
from jaxnb.lockstep.process_ask_conductor import as_digest
from jaxnb.lockstep.process_inputs import HostInput
from jaxnb.lockstep.process_origins import origin_of
from jaxnb.model import dispatches as model
from jaxnb.model.scripts import cell_label

MAX_PROGRAMS = 64
"""So many are remembered, those that were compiled last. Code that jits a new function in each step
of a loop makes thousands."""

MAX_CHARS = 1_000_000
"""So long at most are the texts of all that are remembered: XLA has 15 to 40 bytes for each
character, and those of large models would take gigabytes."""

MIN_PROGRAMS = 4
"""So many are remembered however long they are."""

Lines = Callable[[], list[model.ProgramLine]]


class Programs:
    """Remembers programs longer than the functions live that they were compiled for.

    A program without large constants is kept as XLA has it, which costs nothing until it is asked
    for; of one with such constants the text is, which has a digest of them.
    """

    def __init__(self) -> None:
        self._kept: OrderedDict[int, tuple[int, Lines]] = OrderedDict()
        self._chars = 0
        self._lock = threading.Lock()

    def keep(self, fingerprint: int, executable: Any, text: str, facts: list[str]) -> None:
        """Remembers a program.

        Args:
            fingerprint: What it is asked for by.
            executable: As JAX dispatches it.
            text: As processes compare it.
            facts: What else tells it from others.
        """
        of_program = internals.executable_lines(executable)
        before = [model.ProgramLine(each) for each in facts]
        large = [line for line in text.splitlines() if line.startswith("large constant")]
        after = [model.ProgramLine(each) for each in large]

        def read() -> list[model.ProgramLine]:
            return [*before, *of_program(), *after]

        found = read() if large else None
        with self._lock:
            self._chars -= self._kept.pop(fingerprint, (0, read))[0]
            self._kept[fingerprint] = len(text), read if found is None else lambda: found
            self._chars += len(text)
            while (count := len(self._kept)) > MAX_PROGRAMS or (
                count > MIN_PROGRAMS and self._chars > MAX_CHARS
            ):
                self._chars -= self._kept.popitem(last=False)[1][0]

    def lines(self, fingerprint: int) -> list[model.ProgramLine]:
        """Returns a program for people; empty if it is not remembered. Any thread may ask."""
        with self._lock:
            kept = self._kept.get(fingerprint)
        return list(map(_with_code, kept[1]())) if kept is not None else []


def _with_code(line: model.ProgramLine) -> model.ProgramLine:
    file, _, number = line.source.rpartition(":")
    code = linecache.getline(file, int(number)).strip() if file.startswith("<cell ") else ""
    return replace(line, code=code) if code else line


MOST = 100
"""People are shown fewer; those that differ on other processes may be any."""


def shapes_of(values: Sequence[Any]) -> model.Shapes:
    """Returns ``float32[8], int``; no more than :data:`MOST`."""
    specs = tuple(_spec(each) for each in values[:MOST])
    return model.Shapes(tuple(map(_shape, values[:MOST])), len(values), specs)


def _spec(value: Any) -> str:
    spec = getattr(getattr(value, "sharding", None), "spec", None)
    return "" if spec is None else str(spec).replace("PartitionSpec", "P").replace(",)", ")")


def _shape(value: Any) -> str:
    for kind in (bool, int, float, complex):
        if isinstance(value, kind):  # JAX's own kinds of int among them
            return kind.__name__
    with contextlib.suppress(AttributeError):
        return type_label(value.dtype, np.shape(value))
    return type(value).__name__


class Watch(Protocol):
    """What looks at the values of computations, before and after their dispatch.

    Attributes:
        is_on: Whether the next computation is to be looked at.
    """

    is_on: bool

    def require_seen(self, missing: str) -> None:
        """Raises if the cell asks to look at what nothing is told of.

        Args:
            missing: Why nothing is; empty if it is.
        """

    def before(self, arguments: Sequence[Any]) -> Any:
        """Looks at the arguments of a computation; returns what :meth:`after` is given."""

    def after(
        self,
        name: str,
        processes: model.Processes,
        number: int,
        line: int | None,
        inputs: Any,
        results: Sequence[Any],
    ) -> None:
        """Looks at the results of a computation; waits for them.

        Args:
            name: Its name.
            processes: Those that it spans.
            number: Which dispatch over these it is; 0 if that is not counted.
            line: The cell's line.
            inputs: What :meth:`before` has returned.
            results: Its results.
        """


_COLLECTIVE = re.compile(
    r"\b(?:all-reduce|all-gather|all-to-all|reduce-scatter|collective-permute"
    r"|collective-broadcast|send|recv)(?:-start)?\("
)

_CALLS_BACK = re.compile(r'custom_call_target="xla_\w*python\w*callback"')


@dataclass(slots=True)
class Known:
    """What is the same for all dispatches of one executable."""

    name: str
    processes: model.Processes
    fingerprint: int = 0
    program: bytes = b""  # the same, as words have it
    collectives: bool = False
    calls_back: bool = False  # it calls Python back, which may raise, or differ by process
    axes: tuple[str, ...] = ()  # over which it declares results replicated, without a check
    arguments: model.Shapes | None = None  # None until it is dispatched
    results: model.Shapes | None = None
    kept: tuple[int, ...] | None = None  # which arguments it uses; None for all
    names: tuple[str, ...] = ()  # what the function calls those


def known_of(executable: Any, programs: Programs) -> Known:
    """Returns it; of one that spans processes it keeps the program, for people."""
    devices = internals.executable_devices(executable)
    name = internals.executable_name(executable)
    known = Known(name, tuple(sorted({device.process_index for device in devices})))
    if len(known.processes) > 1:
        # Processes whose meshes have the devices in different order wait for each other for ever.
        order = internals.executable_order(executable)
        text = f"{order} {internals.executable_text(executable)}"
        known.fingerprint = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest())
        known.program = as_digest(known.fingerprint)
        known.collectives = _COLLECTIVE.search(text) is not None
        known.calls_back = _CALLS_BACK.search(text) is not None
        known.axes = internals.unchecked_axes(executable)
        known.names = internals.executable_parameters(executable)
        options = internals.executable_options(executable)
        facts = [f"devices {order}", *(f"compiler_options {each[1:]}" for each in options)]
        programs.keep(known.fingerprint, executable, text, facts)
    return known


RING = 4096
"""So many dispatches of a cell are remembered one by one; all are in its trails."""


@dataclass(slots=True)
class Entry:
    """One dispatch."""

    number: int
    known: Known
    line: int | None
    seconds: float
    inputs: int
    host: int  # of these, what does not span processes
    origins: tuple[model.Origin, ...] = ()  # of its arguments, until it is made
    of_host: tuple[HostInput, ...] = ()  # those that do not span processes, likewise
    made: model.Made | None = None
    replicas: tuple[tuple[model.Processes, int], ...] = ()  # of its arguments that are new
    end: model.DispatchEnd = ""
    stop: float = 0.0  # when the call has returned, if it is the main thread's
    is_made: bool = False
    cpu: float = 0.0  # what other threads had used of the processor, if it is the main thread's
    source: str = ""  # the code at the line, once others are told of it
    times: int = 0  # which time it is that the line dispatches it, likewise
    names: tuple[str, ...] = ()  # what the user's function calls its arguments, likewise


@dataclass(slots=True)
class CellSoFar:
    """What a cell has dispatched."""

    mode: model.CheckMode = "off"
    name: str = ""
    started: float = 0.0
    has_ended: bool = False
    trails: Counter[model.Processes] = field(default_factory=Counter)
    ring: deque[Entry] = field(default_factory=lambda: deque(maxlen=RING))
    number: int = 0
    run: int = 0
    refused: Entry | None = None  # what strict mode has not let run
    refused_at: dict[int | None, None] = field(default_factory=dict)  # the lines
    is_agreed: bool = True  # with the other processes, before it is made

    def count(self, processes: model.Processes) -> int:
        """Returns how many the main thread has dispatched over these processes."""
        return self.trails[processes]

    def times(self, entry: Entry) -> int:
        """Returns which time its line dispatches an entry's computation; 0 if that is forgotten."""
        ring, known = self.ring.copy(), entry.known  # other threads add to it
        if entry.line is None or len(ring) == RING:
            return 0
        like = (entry.line, known.name, known.processes)
        return 1 + sum(like == (e.line, e.known.name, e.known.processes) for e in ring if e.number)


_UNCHECKED: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


def note_starts(is_off: Callable[[], bool]) -> None:
    """Has a thread that code starts while nothing is checked stay unchecked as long as it runs.

    In a later cell, or a pull, it would begin to ask at another dispatch on each process.
    """
    start = threading.Thread.start

    @functools.wraps(start)
    def noted(thread: threading.Thread) -> None:
        if is_off():
            _UNCHECKED.add(thread)
        start(thread)

    threading.Thread.start = noted  # type: ignore[method-assign, assignment]


class Making(threading.local):
    """What a thread is dispatching; something may be dispatched within a dispatch."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.attempt: Entry | None = None  # what it waits to be let dispatch
        self.is_main = threading.current_thread() is threading.main_thread()
        self.is_unchecked = threading.current_thread() in _UNCHECKED


def as_dispatch(entry: Entry, *, is_one_of_many: bool = False) -> model.Dispatch:
    """Returns a dispatch as other processes are told of it; one of many with fewer shapes."""
    known = entry.known
    return model.Dispatch(
        number=entry.number,
        name=known.name,
        fingerprint=known.fingerprint,
        arguments=known.arguments.few() if is_one_of_many and known.arguments else known.arguments,
        results=known.results.few() if is_one_of_many and known.results else known.results,
        processes=known.processes,
        line=entry.line,
        seconds=entry.seconds,
        inputs=entry.inputs,
        host=entry.host,
        replicas=entry.replicas,
        end=entry.end,
        collectives=known.collectives,
        source=entry.source,
        times=entry.times,
        names=entry.names,
    )


MOST_OF_A_REASON = 200
"""So many characters of an error are told to the others."""


@dataclass(frozen=True, slots=True, eq=False)
class _Outstanding:
    """A computation that calls Python back, and may fail in that; its results are held."""

    processes: model.Processes
    key: int
    text: str
    results: Sequence[Any]

    def added_to(self, failures: dict[model.Processes, Failures], reason: str) -> None:
        """Adds to failures that it has failed, and why."""
        before = failures.get(self.processes, NONE)
        failures[self.processes] = before.with_one(self.key, f"{self.text} ({reason})")


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
        self._failures: dict[model.Processes, Failures] = {}
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
        is_after = internals.is_of_results(error) or isinstance(error, JaxnbError)
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

    def failures(self, processes: model.Processes) -> Failures:
        """Returns what has failed of what spans these processes."""
        return self._failures.get(processes, NONE)

    def told(self) -> dict[model.Processes, Failures]:
        """Returns what has failed, by the processes that it spans; waits for nothing.

        What is outstanding counts if one of this process's devices has failed in it.
        """
        with self._lock:
            found = dict(self._failures)
        for each in list(self._outstanding):
            if reason := next(filter(None, map(_why_it_has_failed, each.results)), ""):
                each.added_to(found, reason)
        return found

    def _note(self, each: _Outstanding, reason: str) -> None:
        with self._lock:
            each.added_to(self._failures, reason)


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


def cpu_of_others() -> float:
    """Returns what this process's other threads, XLA's among them, have used of the processor."""
    return time.process_time() - time.thread_time()
