"""A session: a group of processes, and the cells that it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Self

from jaxnb.assist.completion import Assist
from jaxnb.cells.result import CellResult, calls_of
from jaxnb.cells.sinks import OutputSink, StderrNotices
from jaxnb.compiled import comparing
from jaxnb.compiled.comparison import Comparison
from jaxnb.labels import Outputs
from jaxnb.launch.deaths import Death
from jaxnb.launch.job import Progress
from jaxnb.lockstep.settings import KnownSettings
from jaxnb.model.cells import CellRequest
from jaxnb.model.dispatches import CheckMode, Recording
from jaxnb.model.group import SessionState, Whereabouts
from jaxnb.model.insight import CheckNans
from jaxnb.model.scripts import Script
from jaxnb.options import CHECKS, StartOptions, one_of, one_of_nans, process_indices
from jaxnb.profile.timelines import CellTimeline
from jaxnb.recovery.messages import Recovered
from jaxnb.session.group import Life, other_size
from jaxnb.session.reach import Reach
from jaxnb.session.records import CellHistory
from jaxnb.session.run_cells import Cells, Recoveries
from jaxnb.session.starting import untold
from jaxnb.session.values import Transfers
from jaxnb.session.work import Work


class Session(Transfers):
    """A group of JAX processes that are joined and checked.

    Made by :func:`jaxnb.start`. Use it as a context manager, or call :meth:`close`. The
    processes end with the session, and with this process, in whatever way it ends.
    """

    def __init__(self, options: StartOptions, progress: Progress | None = None) -> None:
        settings = KnownSettings()
        work = self._work = Work()
        life = Life(options, work, settings.joined, progress or untold)
        reach = Reach(life, work)
        super().__init__(life, reach)
        self._recoveries = Recoveries(life, work, reach)
        self._cells = Cells(life, work, reach, self._recoveries, settings, self._puller)
        self._records = self._cells.records
        self.assist = Assist(reach.first_told)

    def count_cells_by(self, next_cell: Callable[[], int]) -> None:
        """Has cells that are given no number get those of a notebook."""
        self._cells.next_cell, self._cells.is_in_notebook = next_cell, True

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
    def last_failed(self) -> CellResult | None:
        """What the last cell did that failed on some process; None if none has."""
        return self._work.last_failed

    @property
    def cells_run(self) -> Sequence[CellRequest]:
        """The cells that have run without an error, in order; those that a restart replays."""
        return self._records.replayable.cells

    @property
    def results(self) -> Mapping[int, CellResult]:
        """What the last 20 cells did, by their numbers; of those that wrote much four."""
        return self._work.results

    def __repr__(self) -> str:
        platform = self._life.placement.platform
        return f"<jaxnb.Session: {self.num_processes} {platform} processes, {self.state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends all processes of the group. A second call does nothing.

        Guarantees that none is alive when it returns; a silent host is named. A
        running cell ends with an error. Exit handlers (``atexit``) run if they take under a second.
        """
        self._work.notice(self._life.close())

    def helper_pids(self) -> dict[str, int]:
        """Returns the process ids of what serves the group, by what it is."""
        return self._life.cluster.helper_pids()

    def where(self, processes: Iterable[int] | None = None) -> dict[int, Whereabouts]:
        """Returns where the processes are: Python stacks, also while they wait in C++.

        One that is dead, stopped, or keeps its interpreter's lock is left out, and named on stderr.

        Args:
            processes: Their indices; all by default.
        """
        return self._reach.where_told(processes)

    def recordings(self, processes: Iterable[int] | None = None) -> dict[int, Recording]:
        """Returns what processes dispatch together in this cell, or the last: see :meth:`where`."""
        return self._reach.told(process_indices(processes, self.num_processes), "recording")

    def interrupt(self) -> bool:
        """Interrupts the running cell on all processes in it; returns whether one was running."""
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
            num_processes: Size of the new group; by default as before.
            devices_per_process: CPU devices of each; by default as before.
            replay: Run the cells again, in order, that have run well since the last restart (before
                it if none has run since), up to the first that fails; nothing is pushed again.

        Returns:
            How many cells were run again.

        Raises:
            StartError: The new processes could not start; the session is closed.
            SessionClosedError: The session was closed.
            JaxnbError: A cell failed when it was run again; the message says how far it went.
        """
        self._life.require_open()
        self._recoveries.give_up_silent_hosts(threading.Event())
        size = other_size(self._life, num_processes, devices_per_process)
        self._life.replace_all(progress or untold, size=size)
        if replay:
            return self._records.replayable.replay(self.run, progress or untold)
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
        main thread does not come back. What computations have not given by then is lost. Who takes
        the place of one that has died gets the variables that all others hold equal, byte by byte;
        its shards come from replicas. An array of which nobody else had one is lost on all: each
        use of it raises :class:`~jaxnb.errors.ArrayGoneError`.

        A group of another size lays arrays out anew, over meshes whose first axis has changed. What
        each process has for itself is that of its index; further ones have that of the first.

        Args:
            progress: Called with the name of each stage and a detail.
            num_processes: Size of the new group; by default as before.
            devices_per_process: CPU devices of each; by default as before.

        Raises:
            UsageError: An array does not fit a group of that size, and the message says which axis
                does not; or a process has died. Nothing has changed.
            SessionBrokenError: A helper process has died; ``restart()`` gives fresh processes.
            NotEnoughMemoryError: There is no room for a second copy. Nothing has changed.
            StartError: New processes could not start; the session is closed. A note names a copy.
            RecoveryInterrupted: Interrupt was pressed; it holds what was done all the same.
        """
        self._life.require_open()
        size = other_size(self._life, num_processes, devices_per_process)
        return self._recoveries.recover(progress or untold, size)

    def run(
        self,
        code: str,
        *,
        ranks: Iterable[int] | int | None = None,
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
        script: Script | None = None,
        profile: str = "",
        steps: bool = False,
    ) -> CellResult:
        """Runs code on every process, as IPython would run a cell.

        Blocks until all have finished. SIGINT in the main thread is passed on. One runs at a time.

        Args:
            code: The cell: Python, magics, ``!`` commands, top-level ``await``.
            ranks: The process indices to run on, or one; all by default.
            timeout: Seconds after which the cell is interrupted.
            raise_on_error: Raise if a process raised; else the result says so.
            check: Overrides the session's ``check`` for this cell.
            check_nans: Look for the first NaN, ``result.first_nan``; ``"inf"``: for Inf too.
            sink: Where output goes as it comes; by default jaxnb's sentences, to standard error.
            cell: The number to give it; counted by the session by default.
            first_line: The line number of the first line of ``code`` in tracebacks.
            outputs: ``"merged"``, ``"all"`` or ``"first"``: what the sink gets of equal lines.
            interrupted: Interrupts this run once it is set; it is cleared as processes are told.
            aside: What is shown in place of the code, an expression that is noted nowhere.
            time: Run it for about a second, and time each call with what it computes.
            repeats: How many calls after the first there are to be, if it is timed.
            script: Run in the place of the code, as ``jaxnb run`` does.
            profile: Where the files of ``jax.profiler`` go, if it is to run: ``result.profile``.
            steps: Note each line's values in a ``shard_map``, without ``jit``: ``result.steps``.

        Raises:
            CellError: A process raised (its ``result`` has everything).
            CellTimeoutError: It took longer than ``timeout``.
            ProcessDiedError: A process died; the session is broken now.
            UsageError: An option is not possible; or this JAX does not let ``check`` be strict.
            KeyboardInterrupt: It was interrupted before its turn came; nothing was run.
            JaxnbError: The session was closed, or broken before.
        """
        request = CellRequest(
            cell=0,  # it gets its number when its turn has come
            code=code,
            first_line=first_line,
            check=one_of("check", check or self.options.check, CHECKS, "Nothing was run."),
            ranks=tuple(process_indices(ranks, self.num_processes)),
            aside=aside,
            pitfalls=self.options.pitfalls,
            check_nans=one_of_nans(check_nans),
            calls=calls_of(repeats, steps) if time else 0,
            script=script,
            profile=profile,
            steps=steps,
        )
        return self._cells.run(
            request, sink or StderrNotices(), cell, outputs, timeout, interrupted, raise_on_error
        )

    def compare(
        self,
        call: str,
        *,
        specs: Mapping[str, str],
        mesh: str | Mapping[str, int] | None = None,
        out_specs: Mapping[str, str] | None = None,
        repeats: int | None = None,
        run: bool = True,
        devices: int | None = None,
        setup: str = "",
        sink: OutputSink | None = None,
        cell: int | None = None,
    ) -> Comparison:
        """Compiles and times a call under several shardings, on all processes.

        As :func:`jaxnb.compare`, of names on the processes: call, specs and mesh are text. Leaves
        nothing behind there. With ``devices`` it is planned for so many, as :meth:`collectives`.

        Args:
            call: The call, as an expression: ``"step(state, batch)"``.
            specs: Name of a variant to its specs, one for each argument:
                ``{"data": "P(), P('data')", "whole": "P()"}``.
            mesh: The mesh, as text or as axes and sizes, as for :func:`jaxnb.compare`.
            out_specs: Name of a variant to specs of its outputs.
            repeats: How many calls to measure.
            run: False compiles only.
            devices: How many devices to plan for.
            setup: Code that makes the mesh and the arguments of a plan.
            sink: Where output goes, as in :meth:`run`.
            cell: The number of the cell that asks.

        Raises:
            UsageError: There is nothing to compare, or something is no expression.
            CellError: A process raised: a name does not exist, or a call failed on some only.
            NotCompiledError: A plan's setup raised.
        """
        code = comparing.code_of(call, specs, mesh, out_specs, repeats, run and devices is None)
        if devices is None:
            comparing.require_no_setup(setup)
            return comparing.compare_on(partial(self.run, cell=cell), code, call, sink)
        return comparing.compare_planned(
            code, devices=devices, setup=setup, definitions=self._reach.definitions, label=call
        )

    def timeline(self, cell: int | None = None) -> CellTimeline:
        """Returns what each process did in a cell, when, and who kept the others waiting.

        Kept are the last 200 cells, over restarts too; nothing of who did not come back.

        Args:
            cell: The cell's number; by default the last cell's.

        Raises:
            UsageError: None is kept of such a cell.
        """
        return self._records.timelines.timeline(cell)
