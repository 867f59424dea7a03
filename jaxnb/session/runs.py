"""Runs a cell as its user asked: in its turn, then its result, what is noted, what is raised."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial

from jaxnb.cells.outcome import cell_error, error_of
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import OutputSink
from jaxnb.errors import UsageError
from jaxnb.labels import Outputs
from jaxnb.launch.deaths import Death
from jaxnb.lockstep import settings
from jaxnb.model.cells import CellRequest
from jaxnb.session.cells import Cells
from jaxnb.session.group import Life
from jaxnb.session.records import Records, tell
from jaxnb.session.results import Ran, Results
from jaxnb.session.work import Work


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a user wants of a run, beside the cell itself.

    Attributes:
        cell: The number to give the cell; None for the next.
        sink: Where its output goes.
        outputs: Whose lines the sink gets.
        timeout: Seconds after which it is interrupted.
        interrupted: Interrupts it once it is set; None if only SIGINT does.
        raise_on_error: Raise if a process raised.
        repeats_as_fits: Run it again as often as fits into about a second.
    """

    cell: int | None
    sink: OutputSink
    outputs: Outputs
    timeout: float | None
    interrupted: threading.Event | None
    raise_on_error: bool
    repeats_as_fits: bool


class Runs:
    """Runs cells, one at a time, in the order in which they are asked for.

    Args:
        life: The group.
        work: What is done on it.
        cells: Has processes run a cell.
        results: Makes results.
        records: Takes what is noted.

    Attributes:
        next_cell: Returns the number of the next cell.
        is_in_notebook: That is the number of the notebook's cell that calls, whose lines are other
            ones than those that it has run.
    """

    def __init__(
        self, life: Life, work: Work, cells: Cells, results: Results, records: Records
    ) -> None:
        self._life, self._work, self._cells = life, work, cells
        self._results, self._records = results, records
        self.next_cell = itertools.count(1).__next__
        self.is_in_notebook = False

    def run(self, request: CellRequest, wanted: Wanted) -> CellResult:
        """Runs a cell; :meth:`Session.run` says how, and what it raises."""
        sink = wanted.sink
        generation = self._life.open_generation()
        interrupted = wanted.interrupted or threading.Event()
        with self._work.turn(partial(self._work.say_who_runs, sink), interrupted):
            self._cells.require_computed()
            self._life.require_ready(generation)
            self._require_checks(request.check, sink)
            number = self.next_cell() if wanted.cell is None else wanted.cell
            began = datetime.now()
            ran = self._cells.run(
                replace(request, cell=number),
                sink,
                wanted.outputs,
                interrupted,
                wanted.timeout,
                repeats_as_fits=wanted.repeats_as_fits,
            )
            died = self._died(ran[-1])
            result = self._ended(ran, has_died=bool(died))
            if wanted.cell is None and self.is_in_notebook:
                result = replace(result, label=f"code that cell [{number}] has run")
        last = ran[-1]
        error = last.running.abandoned or error_of(
            result,
            deaths=died,
            began=last.running.began,
            timed_out_after=wanted.timeout if last.supervisor.timed_out else None,
            unshown=last.running.sink_error,
            state=self._life.state,
            computed=last.computed,
            raise_on_error=wanted.raise_on_error,
        )
        if not request.aside:
            failure = error or (cell_error(result) if result.errors else None)
            self._records.note(ran, result, began, failure)
        is_own = wanted.interrupted is None
        if is_own and interrupted.is_set() and not last.supervisor.interrupted:
            raise KeyboardInterrupt  # the cell had ended; or the group was being formed
        tell(last, result, sink, error)
        if error is not None:
            raise error
        return result

    def _require_checks(self, mode: str, sink: OutputSink) -> None:
        """Refuses strict mode where nothing can be checked; says so if the start has not."""
        reports = self._life.reports
        if refusal := settings.why_not_checked(reports, settings.TO_RUN):
            if mode == "strict":
                raise UsageError(refusal)
            if mode != self._life.options.check == "off":
                sink.notice(" ".join(settings.notes(reports, mode)))

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
        result = self._results.result_of(ran, self._life.num_processes, pitfalls, cause)
        self._work.note_result(result)
        if not ran[0].collected.request.aside:
            self._work.last_cell = result.cell
            self._work.last_failed = result if result.errors else self._work.last_failed
        self._records.replayable.note(replace(ran[0].collected.request, calls=0), result)
        return result
