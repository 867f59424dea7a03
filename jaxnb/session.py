"""A session: a group of processes, its state, and what one can do with it."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jaxnb.cluster import ProcessGroup
from jaxnb.deaths import Death
from jaxnb.display.labels import Outputs
from jaxnb.errors import (
    JaxnbError,
    SessionBrokenError,
    SessionClosedError,
    StartError,
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
from jaxnb.options import StartOptions, default_launcher, process_indices
from jaxnb.outcome import (
    closed_error,
    death_error,
    error_of,
    out_of_step_error,
    restarted_error,
)
from jaxnb.patience import Patience, sigint_held, sigint_sets
from jaxnb.result import CellResult
from jaxnb.running import NoSink, OutputSink, RunningCell
from jaxnb.starting import Progress, Starter
from jaxnb.strays import Strays
from jaxnb.transport.client import Output, Reply, Transport
from jaxnb.turns import Turns

REPLY_SECONDS = 30.0
"""How long a process may take to answer a request that is not a cell."""


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
        self._closing = False
        self._generation = 0
        self._deaths: list[Death] = []
        self._strays = Strays()
        self._turns = Turns()
        self._current: RunningCell | None = None
        self._current_ticket: object = None
        self._cells = itertools.count(1)
        self._cells_run = 0
        self._last_result: CellResult | None = None
        self._reports: list[ProcessReport] = []
        self._transport: Transport | None = None
        self._owner_pid = os.getpid()
        self._start_group()
        self._start_seconds = time.perf_counter() - started
        atexit.register(self._close_at_exit)

    def _start_group(self) -> None:
        self._environment = _jax_environment()
        try:
            with sigint_held():  # a group that nobody knows of could not be ended
                self._group = ProcessGroup(self._launcher, self._on_death, self._on_text)
        except KeyboardInterrupt:
            if hasattr(self, "_group"):  # else the making was interrupted, and has cleaned up
                self.close()
            raise
        self._bring_up(lambda starter: starter.start())

    def _bring_up(self, start: Callable[[Starter], tuple[Transport, list[ProcessReport]]]) -> None:
        try:
            starter = Starter(
                self._group,
                self.options,
                self._placement,
                self._progress,
                self._deaths,
                self._on_stray,
            )
            self._transport, self._reports = start(starter)
        except BaseException as error:
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
            last_cell=self._last_result.cell if self._last_result is not None else None,
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
        ticket: object = None,
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
            ticket: Names this run to :meth:`interrupt`.

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
        indices = process_indices(ranks, self.num_processes)
        sink = sink or NoSink()
        ticket = object() if ticket is None else ticket
        generation = self._generation
        with self._turns.turn(ticket, lambda: self._say_who_runs(sink)):
            self._require_ready(generation)
            number = next(self._cells) if cell is None else cell
            request = CellRequest(cell=number, code=code, first_line=first_line)
            interrupted = threading.Event()
            with sigint_sets(interrupted):
                running = self._send_cell(request, indices, sink, outputs, interrupted)
                self._current_ticket = ticket
                result, timed_out = self._wait(running, timeout)
        died = [d for d in self._deaths if d.role != "engine" or d.index in result.per_process]
        error = running.abandoned or error_of(
            result,
            death=died[0] if died and self._state == "broken" else None,
            timed_out_after=timeout if timed_out else None,
            unshown=running.sink_error,
            state=self.state,
            raise_on_error=raise_on_error,
        )
        if error is not None:
            raise error
        return result

    def _say_who_runs(self, sink: OutputSink) -> None:
        current = self._current
        if current is not None:
            sink.notice(f"waits for cell [{current.request.cell}] to end")

    def _send_cell(
        self,
        request: CellRequest,
        indices: list[int],
        sink: OutputSink,
        outputs: Outputs,
        interrupted: threading.Event,
    ) -> RunningCell:
        assert self._transport is not None
        generation = self._generation
        exchange = self._transport.send(dict.fromkeys(indices, request))
        running = RunningCell(
            request,
            exchange,
            indices,
            self.num_processes,
            sink,
            fetch=lambda index, digest: self._fetch(index, request, digest, generation),
            interrupted=interrupted,
            outputs=outputs,
        )
        self._current = running
        if dropped := self._strays.move_to(exchange):
            running.notice(f"{dropped} pieces of output that came between cells were dropped")
        self._cells_run += 1
        return running

    def _wait(self, running: RunningCell, timeout: float | None) -> tuple[CellResult, bool]:
        """Waits for a cell; returns its result and whether it timed out."""
        patience = Patience(self, running, timeout)
        try:
            while patience.go_on():
                running.step()
        finally:
            self._current = None
            result = self._last_result = running.finish()
        return result, patience.timed_out

    def _fetch(self, index: int, request: CellRequest, digest: bytes, generation: int) -> ValueInfo:
        if generation != self._generation or self._state == "closed":
            raise JaxnbError(
                f"The value of cell [{request.cell}] was too large to travel with the cell's "
                f"result, and process {index}, which held it, has been ended since."
            )
        asked = FetchRequest(cell=request.cell, request_id=request.request_id, digest=digest)
        answer = self._ask({index: asked})[index]
        if not isinstance(answer, ValueInfo):
            raise JaxnbError(f"The value could not be fetched from process {index}: {answer}")
        return answer

    # ------------------------------------------------------------------ statistics

    def stats(self) -> list[DeviceStats]:
        """Returns a row for every device of every process.

        A process that is dead, or in a cell, gives a row that says so.
        """
        self._require_open()
        ready = [p.process_index for p in self.processes if p.state == "ready"]
        answers = self._ask(dict.fromkeys(ready, StatsRequest()))
        rows: list[DeviceStats] = []
        for process in self.processes:
            answer = answers.get(process.process_index, f"is {process.state}")
            if isinstance(answer, list):
                rows.extend(answer)
            else:
                rows.extend(rows_without_numbers(process, str(answer)))
        return rows

    def _ask(self, requests: dict[int, Any]) -> dict[int, Any]:
        """Sends requests and returns the answers; one that does not come is an error text."""
        self._require_open()
        assert self._transport is not None
        busy = {p.process_index for p in self.processes if p.state == "busy"}
        answers: dict[int, Any] = dict.fromkeys(busy, "is in a cell; ask again when it has ended")
        exchange = self._transport.send({i: r for i, r in requests.items() if i not in busy})
        deadline = time.monotonic() + REPLY_SECONDS
        while set(requests) - set(answers) and time.monotonic() < deadline:
            if any(death.role != "engine" for death in self._deaths):
                break  # no answer can come any more
            event = exchange.get(0.1)
            if isinstance(event, Reply):
                failed = isinstance(event.answer, RequestFailed)
                answers[event.process_index] = event.answer.error if failed else event.answer
        return {i: answers.get(i, f"gave no answer within {REPLY_SECONDS:g} s") for i in requests}

    # ------------------------------------------------------------------ life

    def interrupt(self, ticket: object = None) -> None:
        """Interrupts the running cell on every process that is still in it.

        Code that is in Python, or in a sleep, raises KeyboardInterrupt there. Does nothing if
        no cell is running.

        Args:
            ticket: Interrupt only the run of this ticket; withdraw it if it has not begun.
        """
        running = self._current
        if ticket is not None and ticket is not self._current_ticket:
            self._turns.withdraw(ticket)
        elif running is not None:
            running.interrupted.set()

    def send_interrupt(self, running: RunningCell) -> None:
        """Sends SIGINT to every process that is still in the cell."""
        self._group.signal(sorted(running.waiting_for), signal.SIGINT)

    def restart(self, progress: Progress | None = None) -> None:
        """Replaces all processes by fresh ones, joined and checked; variables are lost.

        Works from a broken session too. The number of processes and their devices stay. A
        running cell ends with an error.

        Raises:
            StartError: The new processes could not start; the session is closed.
            SessionClosedError: The session was closed.
        """
        self._require_open()
        self._progress = progress or (lambda stage, detail: None)
        started = time.perf_counter()
        self._state = "starting"
        self._abandon(SessionBrokenError("The group was restarted while the cell ran or waited."))
        try:
            self._stop_for_restart()
        except BaseException:
            self._state = "broken"
            raise
        transport = self._transport
        if transport is None:
            self._start_group()
        else:
            self._bring_up(lambda starter: (transport, starter.restart(transport)))
        self._start_seconds = time.perf_counter() - started

    def _abandon(self, reason: Exception) -> None:
        """Ends the wait for the running cell; cells that wait for their turn will not run."""
        self._generation += 1
        running = self._current
        if running is not None:
            running.abandon(reason)

    def _stop_for_restart(self) -> None:
        self._progress("stopping", "the old processes")
        transport = self._transport
        if transport is None or self._needs_fresh_group():
            self._end_group()
        else:
            self._group.stop_processes()
            for index in list(transport.engine_ids):
                transport.forget(index)
        self._deaths.clear()
        self._turns.wait_until_free(REPLY_SECONDS)

    def _needs_fresh_group(self) -> bool:
        # JAX reads its variables when it is imported, which the fork server has done already.
        changed = self._environment != _jax_environment()
        return changed or any(d.role != "engine" for d in self._deaths)

    def close(self) -> None:
        """Ends all processes of the group. A second call does nothing.

        Guarantees that none of them is alive when it returns. A running cell ends with an
        error. Exit handlers (``atexit``) of the processes run if they finish within a second.
        """
        if self._state == "closed":
            return
        # An interrupt must not leave a group that nobody owns any more.
        with sigint_held():
            self._closing = True
            self._abandon(SessionClosedError("The session was closed while the cell ran."))
            self._end_group()
            self._state = "closed"
            atexit.unregister(self._close_at_exit)

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
            self._strays.add(output)

    def _require_open(self) -> None:
        if self._closing or self._state == "closed":
            raise closed_error()

    def _require_ready(self, generation: int) -> None:
        self._require_open()
        if self._state == "ready" and generation == self._generation:
            return
        if self._deaths:
            raise death_error(self._deaths[0], self.num_processes, None)
        raise out_of_step_error() if self._state == "broken" else restarted_error()

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
