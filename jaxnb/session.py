"""A session: a group of processes, and the cells that it runs."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterable
from functools import partial
from typing import Any

from jaxnb.display.labels import Outputs
from jaxnb.errors import JaxnbError
from jaxnb.life import Life
from jaxnb.model import CellRequest, PackRequest
from jaxnb.options import process_indices
from jaxnb.outcome import error_of, recovered_text
from jaxnb.patience import Patience, sigint_sets
from jaxnb.pulling import CellKey
from jaxnb.result import CellResult
from jaxnb.running import NoSink, OutputSink, RunningCell
from jaxnb.transport.client import Exchange


class Session(Life):
    """A group of JAX processes that are joined and checked.

    Made by :func:`jaxnb.start`. Use it as a context manager, or call :meth:`close`. The
    processes end with the session, and with this process, in whatever way it ends.

    Attributes:
        options: How it was started.
    """

    @property
    def last_result(self) -> CellResult | None:
        """What the last cell did; None before the first."""
        return self._last_result

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
            KeyboardInterrupt: It was interrupted before its turn came; nothing was run.
            SessionClosedError: The session was closed.
            SessionBrokenError: The session was broken before.
        """
        indices = process_indices(ranks, self.num_processes)
        sink = sink or NoSink()
        ticket = object() if ticket is None else ticket
        generation = self._generation
        interrupted = threading.Event()
        on_wait = partial(self._say_who_runs, sink)
        with sigint_sets(interrupted), self._turns.turn(ticket, on_wait, interrupted):
            self._require_ready(generation)
            number = next(self._cells) if cell is None else cell
            request = CellRequest(cell=number, code=code, first_line=first_line)
            self._current_ticket = ticket
            running = self._send_cell(request, indices, sink, outputs, interrupted)
            result, timed_out, was_interrupted = self._wait(running, timeout)
            if self._is_out_of_step(running, result, was_interrupted):
                self._recover_after(running)
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
        exchange = Exchange()
        running = RunningCell(
            request,
            exchange,
            indices,
            self.num_processes,
            sink,
            fetch=partial(self._fetch, request, generation),
            gather=partial(
                self._puller.gather, request.request_id, CellKey(request.cell, generation)
            ),
            interrupted=interrupted,
            outputs=outputs,
        )
        self._current = running  # before the first process can be in the cell
        for index in indices:
            self._transport.send_to(exchange, index, request)
        if dropped := self._strays.move_to(exchange):
            running.notice(f"{dropped} pieces of output that came between cells were dropped")
        self._cells_run += 1
        return running

    def _wait(self, running: RunningCell, timeout: float | None) -> tuple[CellResult, bool, bool]:
        """Waits for a cell; returns its result, and whether it timed out, or was interrupted."""
        patience = Patience(self, running, timeout)
        try:
            while patience.go_on():
                running.step()
        finally:
            self._current = None
            self._left = running if running.waiting_for else None
            result = self._last_result = running.finish()
        return result, patience.timed_out, patience.interrupted

    def _is_out_of_step(
        self, running: RunningCell, result: CellResult, was_interrupted: bool
    ) -> bool:
        """Whether collectives may be pending on some processes that others have not begun.

        They would pair with the wrong ones later, in silence. With one CPU device a process
        waits in C++ for its collective, and has been freed from it. With several, calls return
        before their collectives have run: after an interrupt nobody knows how far each got.
        """
        if self._deaths or self._state != "ready":
            return False
        errors = [each.error for each in result.per_process.values()]
        ends = {error and (error.type_name, error.line) for error in errors}
        is_asynchronous = self._placement.devices_per_process > 1 and self.num_processes > 1
        return bool(running.freed) or (was_interrupted and (len(ends) > 1 or is_asynchronous))

    def _recover_after(self, running: RunningCell) -> None:
        """Forms the group anew after a cell whose processes are out of step."""
        try:
            recovered = self._reform()
        except JaxnbError as error:
            running.notice(f"the group could not be formed anew: {error}")
            return
        running.notice(recovered_text(recovered))

    def _fetch(
        self, request: CellRequest, generation: int, index: int, digest: bytes, gather: Any
    ) -> Any:
        transfer = uuid.uuid4().hex
        asked = PackRequest(transfer=transfer, cell=request.request_id, digest=digest)
        return self._puller.cell_value(index, asked, CellKey(request.cell, generation), gather)
