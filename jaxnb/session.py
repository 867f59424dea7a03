"""A session: a group of processes, and the cells that it runs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial, reduce
from typing import Any, Literal

from jaxnb import checking, comparing, divergence
from jaxnb.answers import ending_of
from jaxnb.callers import levels_to_caller
from jaxnb.cells import Cells, RanRequest
from jaxnb.comparison import Comparison
from jaxnb.errors import (
    DivergenceWarning,
    NanWarning,
    PitfallWarning,
    UsageError,
)
from jaxnb.history import CellHistory, record_of
from jaxnb.labels import Outputs
from jaxnb.model import CellRequest, CheckMode
from jaxnb.model.cells import code_seconds
from jaxnb.model.dispatches import Cause
from jaxnb.model.nans import CheckNans
from jaxnb.options import StartOptions, one_of_checks, one_of_nans, process_indices
from jaxnb.outcome import cell_error, error_of, outcome_of
from jaxnb.patience import sigint_sets
from jaxnb.pitfalls import Said, describe
from jaxnb.result import CellResult
from jaxnb.running import RunningCell
from jaxnb.settings import as_pitfalls
from jaxnb.sinks import OutputSink, ScriptNotices
from jaxnb.starting import Progress
from jaxnb.timelines import CellTimeline, Timelines, Told
from jaxnb.timing import first_calls, joined


class Session(Cells):
    """A group of JAX processes that are joined and checked.

    Made by :func:`jaxnb.start`. Use it as a context manager, or call :meth:`close`. The
    processes end with the session, and with this process, in whatever way it ends.

    Attributes:
        options: How it was started.
        history: A line for each cell that was run.
    """

    def __init__(self, options: StartOptions, progress: Progress | None = None) -> None:
        self._said = Said()
        self.history = CellHistory()
        self._timelines = Timelines()
        super().__init__(options, progress)

    @property
    def last_result(self) -> CellResult | None:
        """What the last cell did; None before the first."""
        return self._last_result

    @property
    def cells_run(self) -> Sequence[CellRequest]:
        """The cells that have run without an error, in order; those that a restart replays."""
        return self._replayable.cells

    def interrupt(self) -> bool:
        """Interrupts the running cell on every process that is still in it.

        Code that is in Python, or in a sleep, raises KeyboardInterrupt there.

        Returns:
            Whether a cell was running; else nothing was done.
        """
        interrupted = self._interrupted
        if interrupted is not None:
            interrupted.set()
        return interrupted is not None

    def run(
        self,
        code: str,
        *,
        ranks: Iterable[int] | None = None,
        timeout: float | None = None,
        raise_on_error: bool = True,
        check: CheckMode | None = None,
        check_nans: CheckNans = False,
        sink: OutputSink | None = None,
        cell: int | None = None,
        first_line: int = 1,
        outputs: Outputs = "merged",
        interrupted: threading.Event | None = None,
        aside: str = "",
        time: bool = False,
        repeats: int | None = None,
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
            check_nans: Look for the first NaN: the results of each computation of the cell are
                waited for, and looked at on every process, which takes its time. The cell runs to
                its end; ``result.first_nan`` tells where it appeared. ``"inf"`` looks for Inf too.
            sink: Where output goes as it comes; the result has it all in any case. By default it
                goes nowhere else, and jaxnb's own sentences about the running cell (where all
                processes wait, who did not answer an interrupt) go to standard error.
            cell: The number to give it; counted by the session by default.
            first_line: The line number of the first line of ``code`` in tracebacks.
            outputs: ``"merged"``, ``"all"`` or ``"first"``: what the sink gets of equal lines.
            interrupted: Interrupts this run once it is set; if that is before its turn comes,
                nothing is run. SIGINT sets it too. It is cleared when the processes are told.
            aside: The code is an expression, evaluated beside the user's cells: it leaves nothing
                in ``In``, ``Out`` and ``_``, and a restart does not replay it. This is the text
                that is shown in its place.
            time: Run it once, then again as often as fits into about a second, and time each
                call: ``result.timing``. All processes make the same number of calls. What the
                cell does, it does that many times; what it prints is in the result of each call.
                A call ends when the arrays of the last expression, and of the variables that
                the cell binds, are there.
            repeats: How many calls after the first there are to be, if it is timed.

        Returns:
            What every process printed, returned or raised.

        Raises:
            CellError: A process raised (its ``result`` has everything).
            CellTimeoutError: It took longer than ``timeout``.
            ProcessDiedError: A process died; the session is broken now.
            UsageError: ``ranks`` names a process that there is not, or ``repeats`` is not possible;
                or ``check`` is strict and this JAX does not let dispatches be recorded.
            KeyboardInterrupt: It was interrupted before its turn came; nothing was run.
            SessionClosedError: The session was closed.
            SessionBrokenError: The session was broken before.
        """
        indices = process_indices(ranks, self.num_processes)
        mode = one_of_checks(check or self.options.check)
        sink = sink or ScriptNotices()
        generation = self._open_generation()
        is_own = interrupted is None
        interrupted = interrupted or threading.Event()
        on_wait = partial(self._say_who_runs, sink)
        with sigint_sets(interrupted), self._turns.turn(on_wait, interrupted):
            self._require_ready(generation)
            self._require_checks(mode, sink)
            number = self.next_cell() if cell is None else cell
            request = CellRequest(
                cell=number,
                code=code,
                first_line=first_line,
                check=mode,
                ranks=tuple(indices),
                aside=aside,
                pitfalls=self.options.pitfalls,
                check_nans=one_of_nans(check_nans),
                calls=first_calls(repeats) if time else 0,
            )
            self._cells_run += 1
            began = datetime.now()
            self._interrupted = interrupted  # before anything can be in the cell
            try:
                ran = [self._run_request(request, sink, outputs, interrupted, timeout)]
                if time and repeats is None and self._may_repeat(ran[0], interrupted):
                    ran += self._run_repeats(ran[0], sink, outputs, interrupted, timeout)
            finally:
                self._interrupted = None
            self._replayable.note(replace(request, calls=0), ran[-1].result)
            result = reduce(joined, [each.result for each in ran])
            result = self._last_result = self._with_pitfalls(ran, result)
            last = ran[-1]
        died = [d for d in self.deaths if d.role != "engine" or d.index in result.per_process]
        result = self._last_result = replace(result, cause=self._cause(last, bool(died)))
        error = last.running.abandoned or error_of(
            result,
            deaths=died if self._lifecycle.state == "broken" else (),
            began=last.running.began,
            timed_out_after=timeout if last.patience.timed_out else None,
            unshown=last.running.sink_error,
            state=self.state,
            raise_on_error=raise_on_error,
        )
        failure = error or (cell_error(result) if result.errors else None)
        if not aside:
            self._note(ran, result, began, failure)
        if is_own and interrupted.is_set() and not last.patience.interrupted:
            raise KeyboardInterrupt  # the cell had ended; or the group was being formed
        if isinstance(sink, ScriptNotices):
            _warn(last)
        self._tell_pitfalls(last.running, result, sink, error)
        if error is not None:
            raise error
        return result

    def _require_checks(self, mode: str, sink: OutputSink) -> None:
        """Refuses strict mode where nothing can be checked; says so if the start has not."""
        if refusal := checking.refusal(self._reports, checking.TO_RUN):
            if mode == "strict":
                raise UsageError(refusal)
            if mode != self.options.check == "off":
                sink.notice(" ".join(checking.notes(self._reports, mode)))

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
        sink: OutputSink | None = None,
        cell: int | None = None,
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
            sink: Where output goes, as in :meth:`run`.
            cell: The number of the cell that asks.

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
            run_in = partial(self.run, cell=cell)
            return comparing.compare_on(run_in, code, call, sink)
        return comparing.compare_planned(
            code, devices=devices, setup=setup, cells=self.cells_run, label=call
        )

    def _note(
        self, ran: Sequence[RanRequest], result: CellResult, began: datetime, error: object
    ) -> None:
        """Notes a cell that has ended, well or not, for its timeline and the history."""
        self._timelines.note(result.cell, [self._told(each.running) for each in ran])
        is_recorded = self._is_recorded(ran[0].running.request)
        last = ran[-1]
        parted = None if last.parted is None else divergence.describe(last.parted)
        record = record_of(
            result,
            began=began,
            trails=[each.running.trails for each in ran] if is_recorded else None,
            outcome=outcome_of(
                result,
                error,
                is_parted=result.divergence is not None,
                was_abandoned=last.running.abandoned is not None,
                was_interrupted=last.patience.interrupted,
            ),
            detail=str(error or parted or result.first_nan or result.suspect),
            cause=result.cause,
            generation=self._generation,
        )
        self.history.note(record)

    def _cause(self, ran: RanRequest, has_died: bool) -> Cause | Literal[""]:
        """Returns why the cell's processes diverged, or waited without end; empty if neither."""
        if has_died and self._lifecycle.state == "broken":
            return "dead"
        if ran.result.divergence is not None:
            return ran.result.divergence.cause
        was_cut = ran.patience.interrupted or ran.running.abandoned is not None
        return ran.running.wait_cause if was_cut else ""

    def _told(self, running: RunningCell) -> dict[int, Told]:
        hosts = {report.process_index: report.host for report in self._reports}
        told = {}
        for index, reply in running.replies.items():
            seconds = code_seconds(reply.seconds, reply.error)
            told[index] = Told(reply.activity, seconds, hosts.get(index, ""), ending_of(reply))
        return told

    def timeline(self, cell: int | None = None) -> CellTimeline:
        """Returns what each process did in a cell, when, and who kept the others waiting.

        Kept are the last 200 cells, over restarts too; those that failed or were interrupted among
        them. Of a process that did not come back from its cell there is nothing. A notebook shows
        it as a picture, ``print`` as text. What is measured and what is sampled, its notes say.

        Args:
            cell: The cell's number; by default the last cell's.

        Raises:
            UsageError: None is kept of such a cell.
        """
        return self._timelines.timeline(cell)

    def _with_pitfalls(self, ran: Sequence[RanRequest], result: CellResult) -> CellResult:
        """Returns a result with those pitfalls that no cell before it has told of.

        Among them are settings that differ, also where no other pitfall is looked for.
        """
        generation = self._generation
        settings = (
            as_pitfalls(self._settings.differences())
            if ran[-1].running.request.check != "off"
            else ()
        )
        found = tuple(p for e in ran for p in self._said.new(e.running.pitfalls, generation))
        self._said.forget_mended("settings", settings)
        found += self._said.new(settings, generation)
        return replace(result, pitfalls=found) if found else result

    def _tell_pitfalls(
        self, running: RunningCell, result: CellResult, sink: OutputSink, error: Exception | None
    ) -> None:
        """Tells them to who does not see the cell's card; and of the first NaN in a script."""
        if result.first_nan is not None and isinstance(sink, ScriptNotices):
            warnings.warn(str(result.first_nan), NanWarning, stacklevel=levels_to_caller())
        if not result.pitfalls or sink.shows_cards:
            return
        text = describe(result.pitfalls, len(result.per_process))
        if not isinstance(sink, ScriptNotices):
            running.notice(text)
        elif error is not None:
            error.add_note(text)
        else:
            warnings.warn(text, PitfallWarning, stacklevel=levels_to_caller())


def _warn(ran: RanRequest) -> None:
    """Warns the line that ran a cell of an order that was not the same on all processes."""
    if ran.parted is not None:
        text = divergence.describe(ran.parted)
        warnings.warn(text, DivergenceWarning, stacklevel=levels_to_caller())
