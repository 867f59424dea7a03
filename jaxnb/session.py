"""A session: a group of processes, its state, and what one can do with it."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jaxnb.cluster import ProcessGroup
from jaxnb.deaths import Death
from jaxnb.errors import (
    JaxnbError,
    SessionBrokenError,
    SessionClosedError,
    StartError,
    UsageError,
)
from jaxnb.launch.gpus import visible_gpus
from jaxnb.launch.placement import place
from jaxnb.members import process_infos, rows_without_numbers
from jaxnb.model import (
    CellRequest,
    DeviceStats,
    FetchRequest,
    GroupInfo,
    ProcessInfo,
    ProcessReport,
    RequestFailed,
    SessionState,
    StatsRequest,
    StreamChunk,
    ValueInfo,
)
from jaxnb.options import StartOptions, default_launcher
from jaxnb.outcome import cell_error, death_error, timeout_error, unshown_error
from jaxnb.patience import Patience, interrupts_to
from jaxnb.result import CellResult
from jaxnb.running import NoSink, Outputs, OutputSink, RunningCell
from jaxnb.starting import Progress, Starter
from jaxnb.transport.client import Output, Reply, Transport

REPLY_SECONDS = 30.0
"""How long a process may take to answer a request that is not a cell."""

MAX_STRAYS = 1000
"""How many pieces of output that came between cells are kept for the next cell."""


class Session:
    """A group of JAX processes that are joined and checked.

    Made by :func:`jaxnb.start`. Use it as a context manager, or call :meth:`close`. The
    processes end with the session, and with this process, in whatever way it ends.

    Attributes:
        options: How it was started.
    """

    def __init__(self, options: StartOptions, progress: Progress | None = None) -> None:
        started = time.perf_counter()
        self.options = options
        self._progress: Progress = progress or (lambda stage, detail: None)
        self._placement = place(options, visible_gpus() if options.platform != "cpu" else ())
        self._launcher = options.launcher or default_launcher()
        self._state: SessionState = "starting"
        self._deaths: list[Death] = []
        self._strays: deque[Output] = deque(maxlen=MAX_STRAYS)
        self._lock = threading.RLock()
        self._current: RunningCell | None = None
        self._cells = itertools.count(1)
        self._cells_run = 0
        self._last_cell: int | None = None
        self._last_result: CellResult | None = None
        self._reports: list[ProcessReport] = []
        self._transport: Transport | None = None
        self._environment = _jax_environment()
        self._owner_pid = os.getpid()
        self._group = ProcessGroup(self._launcher, self._on_death, self._on_text)
        self._bring_up(lambda starter: starter.start())
        self._start_seconds = time.perf_counter() - started
        atexit.register(self._close_at_exit)

    def _bring_up(self, start: Callable[[Starter], tuple[Transport, list[ProcessReport]]]) -> None:
        starter = Starter(
            self._group,
            self.options,
            self._placement,
            self._progress,
            self._deaths,
            self._on_stray,
        )
        try:
            self._transport, self._reports = start(starter)
        except BaseException as error:
            self._state = "broken"
            self.close()
            if isinstance(error, StartError):
                raise StartError(
                    f"{error}\nEverything that had started has been stopped."
                ) from error.__cause__
            raise
        self._state = "ready"

    # ------------------------------------------------------------------ what it is

    @property
    def state(self) -> SessionState:
        """``"starting"``, ``"ready"``, ``"busy"``, ``"broken"`` or ``"closed"``."""
        if self._state == "ready" and self._current is not None:
            return "busy"
        return self._state

    @property
    def num_processes(self) -> int:
        """Size of the group."""
        return self._placement.num_processes

    @property
    def processes(self) -> list[ProcessInfo]:
        """The processes, by process index."""
        current = self._current
        return process_infos(
            self._reports,
            self._deaths,
            busy=current.waiting_for if current is not None else set(),
            engine_ids=self._transport.engine_ids if self._transport is not None else {},
            closed=self._state == "closed",
        )

    @property
    def group(self) -> GroupInfo:
        """The whole group, for display."""
        return GroupInfo(
            processes=tuple(self.processes),
            state=self.state,
            platform=self._placement.platform,
            launcher=self._launcher,
            collectives="nccl" if self._placement.platform == "gpu" else self.options.collectives,
            jax_version=self._reports[0].jax_version,
            start_seconds=self._start_seconds,
            cells_run=self._cells_run,
            last_cell=self._last_cell,
        )

    @property
    def last_result(self) -> CellResult | None:
        """What the last cell did; None before the first."""
        return self._last_result

    def helper_pids(self) -> dict[str, int]:
        """Returns the process ids of what serves the group, by what it is."""
        return self._group.helper_pids()

    def __repr__(self) -> str:
        return (
            f"<jaxnb.Session: {self.num_processes} {self._placement.platform} processes, "
            f"{self.state}>"
        )

    # ------------------------------------------------------------------ running

    def run(
        self,
        code: str,
        *,
        ranks: Iterable[int] | None = None,
        timeout: float | None = None,
        raise_on_error: bool = True,
        sink: OutputSink | None = None,
        cell: int | None = None,
        first_line: int = 1,
        outputs: Outputs = "merged",
    ) -> CellResult:
        """Runs code on every process, as IPython would run a cell.

        Blocks until every process has finished. SIGINT in the main thread is passed on to the
        processes. Cells run in the order of the calls, one at a time.

        Args:
            code: The cell: Python, magics, ``!`` commands, top-level ``await``.
            ranks: The process indices to run on; all by default. A collective over more
                processes than these waits for the others.
            timeout: Seconds after which the cell is interrupted.
            raise_on_error: Raise if a process raised; else the result says so.
            sink: Where output goes as it comes; the result has it all in any case.
            cell: The number to give it; counted by the session by default.
            first_line: The line number of the first line of ``code`` in tracebacks.
            outputs: ``"merged"``, ``"all"`` or ``"first"``: what the sink gets of equal lines.

        Returns:
            What every process printed, returned or raised.

        Raises:
            CellError: A process raised (its ``result`` has everything).
            CellTimeoutError: It took longer than ``timeout``.
            ProcessDiedError: A process died; the session is broken now.
            UsageError: ``ranks`` names a process that there is not.
            SessionClosedError: The session was closed.
            SessionBrokenError: The session was broken before.
        """
        indices = self._indices(ranks)
        sink = sink or NoSink()
        with self._turn(sink):
            self._require_ready()
            number = next(self._cells) if cell is None else cell
            request = CellRequest(cell=number, code=code, first_line=first_line)
            running = self._send_cell(request, indices, sink, outputs)
            try:
                with interrupts_to(running) as interrupted:
                    timed_out = self._wait(running, timeout, interrupted)
            finally:
                self._current = None
                result = running.finish()
                self._last_result = result
        unshown = None
        if running.sink_error is not None:
            unshown = unshown_error(request.cell, running.sink_error)
        died = [d for d in self._deaths if d.role != "engine" or d.index in result.per_process]
        if died and self._state == "broken":
            raise death_error(died[0], self.num_processes, result)
        if timed_out and timeout is not None:
            raise timeout_error(result, timeout, self.state)
        if result.errors and raise_on_error:
            raise cell_error(result) from unshown
        if unshown is not None:
            raise unshown
        return result

    @contextmanager
    def _turn(self, sink: OutputSink) -> Iterator[None]:
        """Waits until no other cell runs, and says so if that takes a while."""
        started, told = time.monotonic(), False
        try:
            while not self._lock.acquire(timeout=0.1):
                current = self._current
                if not told and current is not None and time.monotonic() - started > 1:
                    told = True
                    sink.notice(f"waits for cell [{current.request.cell}] to end")
        except KeyboardInterrupt:
            raise UsageError(
                "Interrupted while it waited for another cell; nothing was run."
            ) from None
        try:
            yield
        finally:
            self._lock.release()

    def _indices(self, ranks: Iterable[int] | None) -> list[int]:
        if ranks is None:
            return list(range(self.num_processes))
        indices = sorted(set(ranks))
        unknown = [i for i in indices if not 0 <= i < self.num_processes]
        if unknown or not indices:
            raise UsageError(
                f"There is no process {', '.join(map(str, unknown)) or '(none was named)'}: the "
                f"group has processes 0 to {self.num_processes - 1}. Nothing was run."
            )
        return indices

    def _send_cell(
        self, request: CellRequest, indices: list[int], sink: OutputSink, outputs: Outputs
    ) -> RunningCell:
        assert self._transport is not None
        exchange = self._transport.send(dict.fromkeys(indices, request))
        running = RunningCell(
            request,
            exchange,
            indices,
            self.num_processes,
            sink,
            fetch=lambda index: self._fetch(index, request.cell),
            outputs=outputs,
        )
        self._current = running
        while self._strays:
            exchange.events.put(self._strays.popleft())
        self._cells_run += 1
        self._last_cell = request.cell
        return running

    def _wait(
        self, running: RunningCell, timeout: float | None, interrupted: threading.Event
    ) -> bool:
        """Waits for a cell; returns whether it timed out."""
        patience = Patience(self, running, timeout)
        while running.waiting_for:
            if interrupted.is_set():
                interrupted.clear()
                if not patience.interrupt():
                    break
            running.step()
            if not patience.look():
                break
        return patience.timed_out

    def _fetch(self, index: int, cell: int) -> ValueInfo:
        answers = self._ask({index: FetchRequest(cell)})
        answer = answers[index]
        if not isinstance(answer, ValueInfo):
            raise JaxnbError(f"The value could not be fetched from process {index}: {answer}")
        return answer

    # ------------------------------------------------------------------ statistics

    def stats(self) -> list[DeviceStats]:
        """Returns a row for every device of every process.

        Waits for a running cell to end. A dead process gives a row that says so.
        """
        with self._lock:
            if self._state == "closed":
                self._require_ready()
            alive = [p.process_index for p in self.processes if p.state != "dead"]
            answers = self._ask(dict.fromkeys(alive, StatsRequest()))
        rows: list[DeviceStats] = []
        for process in self.processes:
            answer = answers.get(process.process_index)
            if isinstance(answer, list):
                rows.extend(answer)
            else:
                rows.extend(rows_without_numbers(process, str(answer)))
        return rows

    def _ask(self, requests: dict[int, Any]) -> dict[int, Any]:
        """Sends requests and returns the answers; one that does not come is an error text."""
        with self._lock:
            if self._transport is None:
                self._require_ready()
            assert self._transport is not None
            exchange = self._transport.send(requests)
            answers: dict[int, Any] = {}
            deadline = time.monotonic() + REPLY_SECONDS
            while len(answers) < len(requests) and time.monotonic() < deadline:
                event = exchange.get(0.1)
                if isinstance(event, Reply):
                    failed = isinstance(event.answer, RequestFailed)
                    answers[event.process_index] = event.answer.error if failed else event.answer
        for index in requests:
            answers.setdefault(index, f"no answer within {REPLY_SECONDS:g} s")
        return answers

    # ------------------------------------------------------------------ life

    def interrupt(self) -> None:
        """Interrupts the running cell on every process that is still in it.

        Code that is in Python, or in a sleep, raises KeyboardInterrupt there. Does nothing if
        no cell is running, or if it has been interrupted within the last second.
        """
        running = self._current
        if running is not None and running.may_be_interrupted():
            self._group.signal(sorted(running.waiting_for), signal.SIGINT)

    def restart(self, progress: Progress | None = None) -> None:
        """Replaces all processes by fresh ones, joined and checked; variables are lost.

        Works from a broken session too. The number of processes and their devices stay. A
        running cell ends with an error.

        Raises:
            StartError: The new processes could not start; the session is closed.
            SessionClosedError: The session was closed.
        """
        if self._state == "closed":
            self._require_ready()
        self._progress = progress or (lambda stage, detail: None)
        started = time.perf_counter()
        with self._lock:
            self._state = "starting"
            fresh = self._needs_fresh_group()
            if fresh:
                self._end_group()
                self._deaths.clear()
                self._environment = _jax_environment()
                self._group = ProcessGroup(self._launcher, self._on_death, self._on_text)
                self._bring_up(lambda starter: starter.start())
            else:
                self._restart_processes()
        self._start_seconds = time.perf_counter() - started

    def _needs_fresh_group(self) -> bool:
        # JAX reads its variables when it is imported, which the fork server has done already.
        changed = self._environment != _jax_environment()
        return changed or any(d.role != "engine" for d in self._deaths)

    def _restart_processes(self) -> None:
        transport = self._transport
        assert transport is not None
        self._progress("stopping", "the old processes")
        self._group.stop_processes()
        for index in list(transport.engine_ids):
            transport.forget(index)
        self._deaths.clear()
        self._bring_up(lambda starter: (transport, starter.restart(transport)))

    def close(self) -> None:
        """Ends all processes of the group. A second call does nothing.

        Guarantees that none of them is alive when it returns. A running cell ends with an
        error. Exit handlers (``atexit``) of the processes run if they finish within a second.
        """
        if self._state == "closed":
            return
        self._state = "closed"
        atexit.unregister(self._close_at_exit)
        self._end_group()

    def _end_group(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        self._group.close()

    def _close_at_exit(self) -> None:
        # A process forked from this one by its user inherits the handler, not the group.
        if os.getpid() == self._owner_pid:
            self.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ trouble

    def _on_death(self, death: Death) -> None:
        self._deaths.append(death)
        if self._state in ("ready", "broken"):
            self._state = "broken"
            transport = self._transport
            if transport is not None and death.role == "engine":
                transport.forget(death.index)
        running = self._current
        if running is not None:
            running.exchange.wake()

    def _on_text(self, process_index: int, text: str) -> None:
        self._on_stray(StreamChunk(process_index, "stderr", text))

    def _on_stray(self, output: Output) -> None:
        """Takes output that no request owns: into the running cell, else into the next one."""
        running = self._current
        if running is not None:
            running.exchange.events.put(output)
        elif self._state != "starting":
            self._strays.append(output)

    def _require_ready(self) -> None:
        if self._state == "closed":
            raise SessionClosedError(
                "This session was closed. Type `%spmd_start` for a new one (in Python: "
                "`jaxnb.start()`)."
            )
        if self._state == "broken":
            if self._deaths:
                raise death_error(self._deaths[0], self.num_processes, None)
            raise SessionBrokenError(
                "The group is out of step: processes did not answer an interrupt. Nothing was "
                "run. Type `%spmd_restart` for fresh processes."
            )

    def mark_out_of_step(self) -> None:
        """Notes that processes did not come back, so nothing more can be run on the group."""
        if self._state == "ready":
            self._state = "broken"

    @property
    def deaths(self) -> Sequence[Death]:
        """Processes of the group that died without having been told to."""
        return tuple(self._deaths)


def _jax_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith(("JAX_", "XLA_"))}
