"""What is learnt of a cell beside its value: the first NaN, who waited for whom, and pitfalls."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from jaxnb.model.scripts import in_notebook

CheckNans = Literal[False, True, "inf"]
"""Whether a cell's results are looked at: not; for NaN; for NaN and Inf."""


@dataclass(frozen=True)
class Profile:
    """What ``jax.profiler`` recorded in a cell on one process.

    Attributes:
        xplane: The file that XProf reads.
        events: The same as events of Chrome's trace format: JSON with commas between, compressed
            by zlib.
        trouble: Why there is nothing.
    """

    xplane: bytes = field(default=b"", repr=False)
    events: bytes = field(default=b"", repr=False)
    trouble: str = ""


@dataclass(frozen=True)
class NanPlace:
    """An array with NaN or Inf in it.

    Attributes:
        place: Which argument or output of its computation it is, from 0.
        type: ``"float32[8,4]"``.
        what: ``"NaN"`` or ``"Inf"``.
        index: The first such element that the process holds, as the whole array counts.
        count: How many such elements the process holds.
        name: The variable that holds it at the next computation, or as the cell ends; empty if
            none.
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


SpanKind = Literal["python", "tracing", "compiling", "dispatching", "computing", "waiting"]
"""``"python"``: everything that is not one of the others, NumPy and what C++ computes on the main
thread among it. ``"tracing"``, ``"compiling"`` (lowering too): as ``jax.monitoring`` tells.
``"dispatching"``: in the call of a computation over several processes. ``"computing"``: XLA's
threads used the processor. ``"waiting"``: asleep until a result is there, or another process."""

SPAN_KINDS: tuple[SpanKind, ...] = get_args(SpanKind)


@dataclass(frozen=True)
class Span:
    """A piece of a main thread's time.

    Attributes:
        start: Seconds; from when on, its owner says.
        stop: Seconds.
        kind: What the thread did.
    """

    start: float
    stop: float
    kind: SpanKind

    @property
    def seconds(self) -> float:
        """How long it is."""
        return self.stop - self.start


@dataclass(frozen=True)
class CallSite:
    """From where a computation over several processes is dispatched.

    Attributes:
        name: The computation: ``"jit(step)"``.
        line: The cell's line, as the notebook counts; None outside of its code.
        processes: The processes that it spans.
    """

    name: str
    line: int | None
    processes: tuple[int, ...]

    def __str__(self) -> str:
        return f"`{self.name}`" + (f" at line {self.line}" if self.line is not None else "")


@dataclass(frozen=True)
class Activity:
    """What one process tells of its main thread in a cell; times are since the cell began there.

    Attributes:
        started: When that was, on ``time.monotonic()``: one clock for the processes of a host.
        spans: Tracing, compiling, and waiting for other processes; of one within another the inner
            one is meant. The rest of the time is not in it.
        dropped: How many earlier events and waits are not in it.
        sites: From where computations over several processes were dispatched.
        numbers: Of each dispatch, which one it is over its processes, from 1; as the bytes of an
            array of unsigned integers, there may be thousands.
        origins: Of each, the place of its origin in ``sites``; likewise.
        starts: When each began; as the bytes of an array of doubles.
        stops: When each call returned; 0 if it was another thread's, or has not; likewise.
        dispatches: How many there were; the arrays have the last of them.
        used: What the other threads, XLA's, had used of the processor by when each began, in
            seconds since the cell began; likewise. 0 if it was another thread's.
        used_at_end: The same, when the cell had ended.
        compiled: When lowering or compiling had ended, and the same then: XLA compiles with other
            threads, which is no computing.
    """

    started: float
    spans: tuple[Span, ...] = ()
    dropped: int = 0
    sites: tuple[CallSite, ...] = ()
    numbers: bytes = field(default=b"", repr=False)
    origins: bytes = field(default=b"", repr=False)
    starts: bytes = field(default=b"", repr=False)
    stops: bytes = field(default=b"", repr=False)
    dispatches: int = 0
    used: bytes = field(default=b"", repr=False)
    used_at_end: float = 0.0
    compiled: tuple[tuple[float, float], ...] = ()

    @property
    def known(self) -> int:
        """How many dispatches it tells of one by one."""
        return len(memoryview(self.starts).cast("d"))

    def calls(self) -> Iterator[tuple[int, CallSite, float, float]]:
        """Yields number, origin, start and stop of each dispatch that it tells of."""
        integers = (memoryview(each).cast("I") for each in (self.numbers, self.origins))
        times = (memoryview(each).cast("d") for each in (self.starts, self.stops))
        for number, origin, start, stop in zip(*integers, *times, strict=True):
            yield number, self.sites[origin], start, stop


@dataclass(frozen=True)
class Late:
    """A dispatch to which one process came last.

    Attributes:
        number: Which dispatch it is over its processes, from 1.
        site: From where the last process dispatched it.
        last: The last process.
        at: When it came, in seconds since the cell's begin.
        waited: Of each other process, for how long it had been there by then.
    """

    number: int
    site: CallSite
    last: int
    at: float
    waited: Mapping[int, float]


@dataclass(frozen=True)
class Straggler:
    """A process for which others had to wait.

    Attributes:
        process_index: Who.
        came_last: To how many dispatches it came last.
        waited: Of each other process, for how long it had been at a dispatch to which this
            one had not come. Time that counts for several dispatches counts once.
        site: Where most of that was.
    """

    process_index: int
    came_last: int
    waited: Mapping[int, float]
    site: CallSite

    @property
    def seconds(self) -> float:
        """For how long the process that waited most did so."""
        return max(self.waited.values(), default=0.0)


@dataclass(frozen=True)
class ProcessTimeline:
    """One process in a cell.

    Attributes:
        process_index: Who.
        start: When the cell began on it, in seconds after it began on the first of its host.
        stop: When it ended there.
        spans: What its main thread did, in order, without gaps but between repeats of a timed
            cell.
        dropped: How many earlier events and waits are not in it.
        ending: How the cell ended on it: ``"raised ValueError at line 3"``; empty if it finished.
    """

    process_index: int
    start: float
    stop: float
    spans: tuple[Span, ...]
    dropped: int = 0
    ending: str = ""

    @property
    def totals(self) -> dict[SpanKind, float]:
        """Seconds by kind."""
        found: dict[SpanKind, float] = dict.fromkeys(SPAN_KINDS, 0.0)
        for span in self.spans:
            found[span.kind] += span.seconds
        return found


@dataclass(frozen=True)
class Timeline:
    """What each process did in a cell, when, and who kept the others waiting.

    Attributes:
        cell: The cell's number.
        processes: Process index to its part, for those that told.
        missing: Process index to why there is nothing of it.
        dispatches: How many could be compared, as all processes of the computation remember them.
        forgotten: How many more there were: a process remembers its last 4096.
        lates: Those to which one came clearly last, in order.
        stragglers: Who kept others waiting; whom they waited for longest comes first.
        hosts: How many hosts the processes are on. Clocks of several are aligned by when the
            cell began on each.
    """

    cell: int
    processes: Mapping[int, ProcessTimeline]
    missing: Mapping[int, str]
    dispatches: int = 0
    forgotten: int = 0
    lates: tuple[Late, ...] = ()
    stragglers: tuple[Straggler, ...] = ()
    hosts: int = 1

    @property
    def seconds(self) -> float:
        """From the cell's begin on the first process to its end on the last."""
        return max((each.stop for each in self.processes.values()), default=0.0)

    @property
    def straggler(self) -> Straggler | None:
        """Whom the others waited for longest; None if nobody kept them waiting."""
        return self.stragglers[0] if self.stragglers else None


@dataclass(frozen=True)
class Pitfall:
    """One cause, once: where it is, what it does, and what to type instead.

    Attributes:
        kind: What it is, one of ``pitfalls.kinds``; it names a page.
        message: What happens, in a sentence or two.
        advice: What to type instead; it may be empty.
        line: The cell's line, counted as the notebook counts; None if it is in none.
        source: That line's text.
        cause: Equal for what is the same cause; it is said once until a restart.
        processes: The processes that it was seen on.
        is_of_error: It explains the error that ended the cell, and is said each time.
    """

    kind: str
    message: str
    advice: str = ""
    line: int | None = None
    source: str = ""
    cause: str = field(default="", repr=False)
    processes: tuple[int, ...] = ()
    is_of_error: bool = False

    @property
    def page(self) -> str:
        """What shows the page about it, in a notebook."""
        return f"%spmd_help {self.kind}"

    def __str__(self) -> str:
        where = f"line {self.line}: " if self.line else ""
        shown_by = in_notebook(f"(`{self.page}`)")
        return " ".join(filter(None, [f"{where}{self.message}", self.advice, shown_by]))
