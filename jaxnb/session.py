"""A session: a group of processes, and the cells that it runs."""

from __future__ import annotations

import threading
import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from jaxnb import comparing, divergence
from jaxnb.comparison import Comparison
from jaxnb.errors import DivergenceWarning, JaxnbError, PitfallWarning, UsageError
from jaxnb.labels import Outputs
from jaxnb.life import COME_BACK_SECONDS, Life
from jaxnb.model import CellRequest, CheckMode, PackRequest, Recording
from jaxnb.options import CHECKS, StartOptions, one_of, process_indices
from jaxnb.outcome import error_of, recovered_text
from jaxnb.patience import Patience, sigint_sets
from jaxnb.pitfalls import Said, describe
from jaxnb.pulling import CellKey
from jaxnb.replicas import levels_to_caller
from jaxnb.result import CellResult
from jaxnb.running import NoSink, OutputSink, RunningCell
from jaxnb.starting import Progress
from jaxnb.transport.client import Exchange

COME_BACK_AGAIN_SECONDS = 0.5
"""The same for a process that has not answered an interrupt for seconds, and another one."""


class Session(Life):
    """A group of JAX processes that are joined and checked.

    Made by :func:`jaxnb.start`. Use it as a context manager, or call :meth:`close`. The
    processes end with the session, and with this process, in whatever way it ends.

    Attributes:
        options: How it was started.
    """

    def __init__(self, options: StartOptions, progress: Progress | None = None) -> None:
        self._said = Said()
        super().__init__(options, progress)

    @property
    def last_result(self) -> CellResult | None:
        """What the last cell did; None before the first."""
        return self._last_result

    @property
    def cells_run(self) -> Sequence[CellRequest]:
        """The cells that have run without an error, in order; those that a restart replays."""
        return self._history.cells

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
        check: CheckMode | None = None,
        sink: OutputSink | None = None,
        cell: int | None = None,
        first_line: int = 1,
        outputs: Outputs = "merged",
        ticket: object = None,
        aside: bool = False,
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
            check: Overrides the session's ``check`` for this cell.
            sink: Where output goes as it comes; the result has it all in any case.
            cell: The number to give it; counted by the session by default.
            first_line: The line number of the first line of ``code`` in tracebacks.
            outputs: ``"merged"``, ``"all"`` or ``"first"``: what the sink gets of equal lines.
            ticket: Names this run to :meth:`interrupt`.
            aside: The code is an expression, evaluated beside the user's cells: it leaves nothing
                in ``In``, ``Out`` and ``_``, and a restart does not replay it.

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
        mode = one_of("check", check or self.options.check, CHECKS)
        sink = sink or NoSink()
        ticket = object() if ticket is None else ticket
        generation = self._generation
        interrupted = threading.Event()
        on_wait = partial(self._say_who_runs, sink)
        with sigint_sets(interrupted), self._turns.turn(ticket, on_wait, interrupted):
            self._require_ready(generation)
            number = next(self._cells) if cell is None else cell
            request = CellRequest(
                cell=number,
                code=code,
                first_line=first_line,
                check=cast(CheckMode, mode),
                ranks=tuple(indices),
                aside=aside,
                pitfalls=self.options.pitfalls,
            )
            self._current_ticket = ticket
            running = self._send_cell(request, indices, sink, outputs, interrupted)
            result, patience = self._wait(running, timeout)
            self._history.note(request, result)
            was_cut = patience.interrupted or bool(running.waiting_for)
            if not patience.gave_up:  # whoever is stopped would be waited for
                result = self._last_result = self._compared(running, result)
            result = self._last_result = self._with_pitfalls(running, result)
            # Where the user stopped them anywhere, or some failed and others waited for them,
            # there is nothing to warn of.
            parted = None if was_cut or running.freed else result.divergence
            if parted is not None:
                running.notice(divergence.describe(parted))
            if patience.gave_up:
                self._recover_after(running, COME_BACK_AGAIN_SECONDS)
            elif self._is_out_of_step(running, result, patience.interrupted):
                self._recover_after(running)
        if (
            interrupted.is_set() and not patience.interrupted
        ):  # it came when the cell had ended, or while the group was formed
            raise KeyboardInterrupt
        if parted is not None and type(sink) is NoSink:
            text = divergence.describe(parted)
            warnings.warn(text, DivergenceWarning, stacklevel=levels_to_caller())
        died = [d for d in self._deaths if d.role != "engine" or d.index in result.per_process]
        error = running.abandoned or error_of(
            result,
            death=died[0] if died and self._state == "broken" else None,
            timed_out_after=timeout if patience.timed_out else None,
            unshown=running.sink_error,
            state=self.state,
            raise_on_error=raise_on_error,
        )
        self._tell_pitfalls(running, result, sink, error)
        if error is not None:
            raise error
        return result

    def compare(
        self,
        call: str,
        *,
        specs: Mapping[str, Any],
        mesh: Any = None,
        meshes: Mapping[str, Any] | None = None,
        out_specs: Mapping[str, Any] | None = None,
        repeats: int | None = None,
        run: bool = True,
        devices: int | None = None,
        setup: str = "",
    ) -> Comparison:
        """Compiles and times a call under several shardings, on all processes.

        As :func:`jaxnb.compare`, of names that live on the processes: the call, the specs and the
        mesh are expressions in text, evaluated there as in a cell. It can be interrupted, and
        leaves nothing behind on the processes.

        With ``devices`` it is compiled for that many CPU devices in a scratch process, as
        :meth:`collectives` does, and not run.

        Args:
            call: The call, as an expression: ``"step(state, batch)"``.
            specs: Name of a variant to its specs, one for each argument:
                ``{"data": "P(), P('data')", "whole": "P()"}``.
            mesh: The mesh, as text or as axes and sizes (``{"data": 4, "model": 2}``); by default
                the one that the arguments are on, or the one there is.
            meshes: Name of a variant to a mesh of its own.
            out_specs: Name of a variant to specs of its outputs; else the compiler chooses.
            repeats: How many calls to measure; by default as many as take about a second.
            run: False compiles only.
            devices: How many devices to plan for.
            setup: Code that makes the mesh and the arguments of a plan.

        Raises:
            UsageError: There is nothing to compare, or something is no expression.
            CellError: A process raised: a name does not exist, or a call failed on some only.
            NotCompiledError: A plan's setup raised.
            ProcessDiedError: A process died meanwhile.
        """
        runs = run and devices is None
        code = comparing.code_of(call, specs, mesh, meshes, out_specs, repeats, runs)
        if devices is None:
            if setup:
                raise UsageError(
                    "`setup` is for a plan: give `devices` too. Nothing was run. On the group's "
                    "own devices, run the setup as a cell."
                )
            return comparing.compare_on(self.run, code)
        return comparing.compare_planned(
            code, devices=devices, setup=setup, cells=self.cells_run, label=call
        )

    def recordings(self, processes: Iterable[int] | None = None) -> dict[int, Recording]:
        """Returns what processes have dispatched together in their last cell, or in this one.

        Answered while they wait in C++ too. One that is silent for some seconds is left out.

        Args:
            processes: Process indices; all by default.
        """
        return self._sentinels.recordings(process_indices(processes, self.num_processes))

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
        if dropped := self._strays.move_to(exchange, indices):
            running.notice(f"{dropped} pieces of output that came between cells were dropped")
        self._cells_run += 1
        return running

    def _wait(self, running: RunningCell, timeout: float | None) -> tuple[CellResult, Patience]:
        """Waits for a cell; returns its result, and how the wait ended."""
        patience = Patience(self, running, timeout)
        try:
            while patience.go_on():
                running.step()
        finally:
            self._current = None
            self._left = running if running.waiting_for else None
            result = self._last_result = running.finish()
        return result, patience

    def _is_out_of_step(
        self, running: RunningCell, result: CellResult, was_interrupted: bool
    ) -> bool:
        """Whether collectives may be pending on some processes that others have not begun.

        They would pair with the wrong ones later, in silence. With one CPU device a process
        waits in C++ for its collective, and has been freed from it. With several, calls return
        before their collectives have run. What they have dispatched is compared; where it is
        not recorded, nobody knows how far each got when it was interrupted.
        """
        if self._deaths or self._state != "ready":
            return False
        if running.freed:
            return True
        if self._is_recorded(running.request):
            return result.divergence is not None and result.divergence.pending
        errors = [each.error for each in result.per_process.values()]
        ends = {error and (error.type_name, error.line) for error in errors}
        is_asynchronous = self._placement.devices_per_process > 1 and self.num_processes > 1
        return was_interrupted and (len(ends) > 1 or is_asynchronous)

    def _is_recorded(self, request: CellRequest) -> bool:
        return request.check != "off" and not any(r.unrecorded for r in self._reports)

    def _compared(self, running: RunningCell, result: CellResult) -> CellResult:
        """Compares what the processes dispatched together in a cell."""
        asked = list(result.per_process)
        trails = {i: running.trails.get(i, ()) for i in range(self.num_processes)}
        if self._deaths or not self._is_recorded(running.request) or divergence.agree(trails):
            return result
        recordings = {i: Recording(i, trails[i], ()) for i in asked}
        recordings |= self._sentinels.recordings(asked)
        notes = {i: "was not asked to run the cell" for i in trails if i not in asked}
        notes |= {i: error.ending for i, error in result.errors.items()}
        return replace(result, divergence=divergence.compare(result.cell, recordings, notes))

    def _with_pitfalls(self, running: RunningCell, result: CellResult) -> CellResult:
        """Returns a result with those pitfalls that no cell before it has told of."""
        found = self._said.new(running.pitfalls, self._generation)
        return replace(result, pitfalls=found) if found else result

    def _tell_pitfalls(
        self, running: RunningCell, result: CellResult, sink: OutputSink, error: Exception | None
    ) -> None:
        """Tells them to who does not see the cell's card."""
        if not result.pitfalls or sink.shows_cards:
            return
        text = describe(result.pitfalls, len(result.per_process))
        if type(sink) is not NoSink:
            running.notice(text)
        elif error is not None:
            error.add_note(text)
        else:
            warnings.warn(text, PitfallWarning, stacklevel=levels_to_caller())

    def _recover_after(
        self, running: RunningCell, come_back_seconds: float = COME_BACK_SECONDS
    ) -> None:
        """Forms the group anew after a cell whose processes are out of step."""
        try:
            recovered = self._reform(come_back_seconds)
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
