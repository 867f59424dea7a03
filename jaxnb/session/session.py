"""A session: a group of processes, and the cells that it runs."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Any, Self

from jaxnb import checking, comparing
from jaxnb.comparison import Comparison
from jaxnb.deaths import Death
from jaxnb.errors import UsageError
from jaxnb.history import CellHistory
from jaxnb.labels import Outputs
from jaxnb.model import CellRequest, CheckMode, Recording, SessionState, Whereabouts
from jaxnb.model.nans import CheckNans
from jaxnb.options import StartOptions, one_of_checks, one_of_nans, process_indices
from jaxnb.outcome import cell_error, error_of
from jaxnb.recovery.messages import Recovered
from jaxnb.result import CellResult
from jaxnb.session.cells import Cells
from jaxnb.session.life import Life
from jaxnb.session.reach import Reach
from jaxnb.session.records import Records, tell
from jaxnb.session.recovering import Recoveries
from jaxnb.session.results import Ran, Results
from jaxnb.session.transfers import Transfers
from jaxnb.session.work import Work
from jaxnb.settings import KnownSettings
from jaxnb.sinks import OutputSink, ScriptNotices
from jaxnb.starting import Progress, untold
from jaxnb.timelines import CellTimeline
from jaxnb.timing import first_calls


class Session(Transfers):
    """A group of JAX processes that are joined and checked.

    Made by :func:`jaxnb.start`. Use it as a context manager, or call :meth:`close`. The
    processes end with the session, and with this process, in whatever way it ends.
    """

    def __init__(self, options: StartOptions, progress: Progress | None = None) -> None:
        settings = KnownSettings()
        self._work = work = Work()
        life = Life(options, work, settings.joined, progress or untold)
        reach = Reach(life, work)
        self._records = Records(life, reach, settings)
        super().__init__(life, reach, lambda: self.cells_run)
        self._recoveries = Recoveries(life, work, reach)
        self._cells = Cells(life, work, reach, self._recoveries, settings)
        self._results = Results(self._puller)
        self.next_cell = itertools.count(1).__next__

    @property
    def options(self) -> StartOptions:
        """How it was started."""
        return self._life.options

    @property
    def state(self) -> SessionState:
        """``"starting"``, ``"ready"``, ``"busy"``, ``"broken"`` or ``"closed"``."""
        return self._life.state

    @property
    def deaths(self) -> Sequence[Death]:
        """Processes of the group that died without having been told to."""
        return self._life.deaths

    @property
    def history(self) -> CellHistory:
        """A line for each cell that was run."""
        return self._records.history

    @property
    def last_result(self) -> CellResult | None:
        """What the last cell did; None before the first."""
        return self._work.last_result

    @property
    def cells_run(self) -> Sequence[CellRequest]:
        """The cells that have run without an error, in order; those that a restart replays."""
        return self._records.replayable.cells

    def __repr__(self) -> str:
        platform = self._life.placement.platform
        return f"<jaxnb.Session: {self.num_processes} {platform} processes, {self.state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes of the group. A second call does nothing.

        Guarantees that none of them is alive when it returns. A running cell ends with an
        error. Exit handlers (``atexit``) of the processes run if they finish within a second.
        """
        self._life.close()

    def helper_pids(self) -> dict[str, int]:
        """Returns the process ids of what serves the group, by what it is."""
        return self._life.cluster.helper_pids()

    def where(self, processes: Iterable[int] | None = None) -> dict[int, Whereabouts]:
        """Returns where the processes are: Python stacks, also while they wait in C++.

        A process that is dead, stopped, or keeps the lock of its interpreter is left out.

        Args:
            processes: Their indices; all by default.
        """
        return self._reach.where(processes)

    def recordings(self, processes: Iterable[int] | None = None) -> dict[int, Recording]:
        """Returns what processes have dispatched together in their last cell, or in this one.

        Answered while they wait in C++ too. One that is silent for some seconds is left out.

        Args:
            processes: Process indices; all by default.
        """
        return self._reach.told(process_indices(processes, self.num_processes), "recording")

    def interrupt(self) -> bool:
        """Interrupts the running cell on every process that is still in it.

        Code that is in Python, or in a sleep, raises KeyboardInterrupt there.

        Returns:
            Whether a cell was running; else nothing was done.
        """
        return self._work.interrupt()

    def restart(
        self,
        progress: Progress | None = None,
        *,
        replay: bool = False,
        num_processes: int | None = None,
        devices_per_process: int | None = None,
    ) -> int:
        """Replaces all processes by fresh ones, joined and checked; variables are lost.

        Works from a broken session too. A running cell ends with an error.

        Args:
            progress: Called with the name of each stage and a detail.
            num_processes: How many there are to be; by default as many as before.
            devices_per_process: How many CPU devices each is to have; by default as before.
            replay: Run the session's successful cells again, in order, up to the first that fails:
                those since the last restart, or before it if none has run since. Values that were
                pushed are not pushed again.

        Returns:
            How many cells were run again.

        Raises:
            StartError: The new processes could not start; the session is closed.
            SessionClosedError: The session was closed.
            JaxnbError: A cell failed when it was run again; the message says how far it went.
        """
        self._life.require_open()
        progress = progress or untold
        size = self._life.other_size(num_processes, devices_per_process)
        self._life.replace_all(progress, size=size)
        if replay:
            return self._records.replayable.replay(self.run, progress)
        self._records.replayable.end()
        return 0

    def recover(
        self,
        progress: Progress | None = None,
        *,
        num_processes: int | None = None,
        devices_per_process: int | None = None,
    ) -> Recovered:
        """Makes a new group with the variables of this one; what is lost is named.

        Every process packs its variables, and new processes take them: also those of one whose
        main thread does not come back. What computations have not given by then is lost. Functions
        are compiled anew when they are next called. Who takes the place of one that has died gets
        the variables that all others hold equal, byte by byte; its shards of arrays come from
        replicas. An array of which nobody else had one is lost on all processes: each use of it
        raises :class:`~jaxnb.errors.ArrayGoneError`.

        A group of another size lays arrays out anew: a mesh of all devices becomes one of all that
        there are then, whose first axis has changed. Values that each process has for itself are
        those of the process of its index; further processes have those of the first.

        Args:
            progress: Called with the name of each stage and a detail.
            num_processes: How many there are to be; by default as many as before.
            devices_per_process: How many CPU devices each is to have; by default as before.

        Raises:
            UsageError: An array does not fit a group of that size, and the message says which axis
                does not; or a process has died. Nothing has changed.
            SessionBrokenError: A helper process has died; ``restart()`` gives fresh processes.
            NotEnoughMemoryError: There is no room for a second copy. Nothing has changed.
            StartError: The new processes could not start; the session is closed. A note says where
                the variables are.
            RecoveryInterrupted: Interrupt was pressed; it holds what was done all the same.
        """
        self._life.require_open()
        size = self._life.other_size(num_processes, devices_per_process)
        return self._recoveries.recover(progress or untold, size)

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
        generation = self._life.open_generation()
        is_own = interrupted is None
        interrupted = interrupted or threading.Event()
        with self._work.turn(partial(self._work.say_who_runs, sink), interrupted):
            self._life.require_ready(generation)
            self._require_checks(mode, sink)
            request = CellRequest(
                cell=self.next_cell() if cell is None else cell,
                code=code,
                first_line=first_line,
                check=mode,
                ranks=tuple(indices),
                aside=aside,
                pitfalls=self.options.pitfalls,
                check_nans=one_of_nans(check_nans),
                calls=first_calls(repeats) if time else 0,
            )
            began = datetime.now()
            as_fits = time and repeats is None
            ran = self._cells.run(
                request, sink, outputs, interrupted, timeout, repeats_as_fits=as_fits
            )
            died = self._died(ran[-1])
            result = self._ended(ran, has_died=bool(died))
        last = ran[-1]
        error = last.running.abandoned or error_of(
            result,
            deaths=died,
            began=last.running.began,
            timed_out_after=timeout if last.supervisor.timed_out else None,
            unshown=last.running.sink_error,
            state=self.state,
            raise_on_error=raise_on_error,
        )
        if not aside:
            failure = error or (cell_error(result) if result.errors else None)
            self._records.note(ran, result, began, failure)
        if is_own and interrupted.is_set() and not last.supervisor.interrupted:
            raise KeyboardInterrupt  # the cell had ended; or the group was being formed
        tell(last, result, sink, error)
        if error is not None:
            raise error
        return result

    def _require_checks(self, mode: str, sink: OutputSink) -> None:
        """Refuses strict mode where nothing can be checked; says so if the start has not."""
        reports = self._life.reports
        if refusal := checking.refusal(reports, checking.TO_RUN):
            if mode == "strict":
                raise UsageError(refusal)
            if mode != self.options.check == "off":
                sink.notice(" ".join(checking.notes(reports, mode)))

    def _died(self, ran: Ran) -> list[Death]:
        """Returns the deaths that have to do with a cell."""
        if self._life.lifecycle.state != "broken":
            return []
        deaths, replies = self._life.deaths, ran.collected.replies
        return [d for d in deaths if d.role != "engine" or d.index in replies]

    def _ended(self, ran: Sequence[Ran], *, has_died: bool) -> CellResult:
        """Makes the result of a cell, and notes it for the next."""
        pitfalls = self._records.new_pitfalls(ran)
        cause = "dead" if has_died else ran[-1].cause
        result = self._results.result_of(ran, self.num_processes, pitfalls, cause)
        self._work.last_result = result
        if not ran[0].collected.request.aside:
            self._work.last_cell = result.cell
        self._records.replayable.note(replace(ran[0].collected.request, calls=0), result)
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
        return self._records.timelines.timeline(cell)
