"""Cells run: one at a time, from the request to the result."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial

from jaxnb.arrays.pulling import Puller
from jaxnb.cells.outcome import STILL_COMPUTING, cell_error, error_of, still_computing_error
from jaxnb.cells.result import CellResult
from jaxnb.cells.running import Collected, RunningCell
from jaxnb.cells.sinks import OutputSink
from jaxnb.debugging.asking import Asker
from jaxnb.errors import JaxnbError, RecoveryInterrupted, UsageError
from jaxnb.labels import Outputs, capitalized, processes_label
from jaxnb.launch.deaths import Death
from jaxnb.launch.folder import require_working_directory
from jaxnb.launch.job import Progress
from jaxnb.lockstep import settings
from jaxnb.lockstep.messages import Apart
from jaxnb.lockstep.provenance import unequal_names_text
from jaxnb.lockstep.settings import KnownSettings
from jaxnb.model.cells import CellRequest
from jaxnb.model.dispatches import Difference
from jaxnb.model.scripts import in_notebook
from jaxnb.profile.profiles import ProfiledCell
from jaxnb.recovery.carrier import Carrier
from jaxnb.recovery.messages import Recovered
from jaxnb.recovery.recovering import Recovery, recovered_text, wait_for_cells
from jaxnb.session.group import Life, info_of
from jaxnb.session.interrupts_and_timeouts import Supervisor
from jaxnb.session.lifecycle import Phase, Size
from jaxnb.session.reach import Reach
from jaxnb.session.records import Records, tell
from jaxnb.session.results import Examiner, Ran, result_of
from jaxnb.session.starting import untold
from jaxnb.session.work import Work
from jaxnb.wire.messages import Exchange

COME_BACK_SECONDS = 1.0
"""How long a process that has been interrupted may take to leave its cell: to format its error,
mostly."""


BACK_SECONDS = 5.0
"""So much later than those of its processes the connection of a host's agent may come back after a
link was cut: TCP tries each again by itself."""


class Recoveries:
    """Carries a session's variables over to new groups.

    Args:
        life: The group.
        work: What is done on it.
        reach: Reaches its processes.
    """

    def __init__(self, life: Life, work: Work, reach: Reach) -> None:
        self._life, self._work, self._reach = life, work, reach

    def recover(self, progress: Progress, size: Size | None = None) -> Recovered:
        """Waits for a turn, and carries the variables over.

        Args:
            progress: Told of each stage.
            size: That of the new group, if it is another.

        Raises:
            UsageError: A process has died, and the size is another: nothing has changed.
        """
        dead = self._life.lifecycle.dead
        if size is not None and dead:
            raise UsageError(
                f"{capitalized(processes_label(dead))} died, so some of its arrays are missing "
                "and cannot be resharded. Nothing was changed. Type `%spmd_recover` first."
            )
        interrupted = threading.Event()
        with self._work.turn(self._work.say_who_runs, interrupted):
            return self.carry_over(progress, interrupted, size=size)

    def carry_over(
        self,
        progress: Progress,
        interrupted: threading.Event,
        come_back_seconds: float = COME_BACK_SECONDS,
        notice: Callable[[str], None] | None = None,
        size: Size | None = None,
    ) -> Recovered:
        """Makes a new group with the variables of this one; the turn is ours.

        Args:
            progress: Told of each stage.
            interrupted: Ends it, as far as that is possible, once it is set.
            come_back_seconds: Who is still in a cell may take so long to come back.
            notice: Shows the user a sentence; by default on standard error.
            size: That of the new group, if it is another.
        """
        notice = notice or self._reach.notice
        try:
            while True:  # once more for each host that is lost meanwhile
                found = self._carry_over(progress, interrupted, come_back_seconds, notice, size)
                if found is not None:
                    return found
        finally:
            self._reach.notice("")

    def _carry_over(
        self,
        progress: Progress,
        interrupted: threading.Event,
        come_back_seconds: float,
        notice: Callable[[str], None],
        size: Size | None,
    ) -> Recovered | None:
        life, work = self._life, self._work
        life.require_open()
        require_working_directory()
        self.give_up_silent_hosts(interrupted)
        life.require_helpers()
        _ = life.transport  # there is one, else it raises
        generation, left = life.generation, work.left
        unended = wait_for_cells(
            lambda: work.unended() - life.lifecycle.dead,
            come_back_seconds if left is not None else 0.0,
            lambda seconds: left and left.still_in_cell(seconds),
        )
        carrier = Carrier(
            life.sentinels,
            range(life.num_processes),
            life.cluster.commands_to_continue,
            lambda: life.lifecycle.dead,
            interrupted,
            notice,
            partial(life.require_unchanged, generation),
            skips_unfinished=bool(unended) or life.lifecycle.phase is Phase.COMPUTING,
        )
        recovery = Recovery(
            lambda: life.cluster,
            carrier,
            self._reach.open_channel,
            partial(info_of, life),
            partial(life.replace_all, progress, generation, size),
            self._take_for_dead,
            progress,
            interrupted,
            None if size is None else size.numbers,
        )
        return recovery.run(unended)

    def _take_for_dead(self, processes: Collection[int]) -> None:
        """Takes new processes for dead: what they were to have was lost with a host."""
        how = "has no variables: they were lost with a host"
        for i in sorted(processes):
            died = Death("engine", i, self._life.reports[i].pid, None, "", how=how)
            self._life.lifecycle.note_death(died)

    def give_up_silent_hosts(self, interrupted: threading.Event) -> None:
        """Takes the processes on silent hosts for dead; waits a moment for hosts that come back.

        Args:
            interrupted: Ends that wait.
        """
        cluster = self._life.cluster
        deadline = time.monotonic() + BACK_SECONDS
        while (silent := cluster.silent_processes()) and self._reach.where(silent):
            if time.monotonic() > deadline or interrupted.wait(LOOK_SECONDS):
                break
        cluster.hosts.give_up_silent()


COMPUTED_SECONDS = 3.0
"""What an interrupted cell has dispatched may take so long to end: most of it is queued steps."""

LOOK_SECONDS = 0.05
"""How often it is looked whether it has ended."""


class Cells:
    """Runs cells on a group, one at a time, in the order in which they are asked for.

    Args:
        life: The group.
        work: What is done on it.
        reach: Reaches its processes.
        recoveries: Makes a new group where a cell has left the processes out of step.
        settings: What is known of the processes' settings.
        puller: Brings values that have stayed on the processes.

    Attributes:
        records: What is remembered of cells.
        next_cell: Returns the number of the next cell.
        is_in_notebook: That is the number of the notebook's cell that calls, whose lines are other
            ones than those that it has run.
    """

    def __init__(
        self,
        life: Life,
        work: Work,
        reach: Reach,
        recoveries: Recoveries,
        settings: KnownSettings,
        puller: Puller,
    ) -> None:
        self._life, self._work, self._reach = life, work, reach
        self._recoveries, self._settings = recoveries, settings
        self._puller, self.records = puller, Records(life, reach, settings)
        self._examiner = Examiner(life, reach)
        self.next_cell = itertools.count(1).__next__
        self.is_in_notebook = False

    def run(
        self,
        request: CellRequest,
        sink: OutputSink,
        cell: int | None,
        outputs: Outputs,
        timeout: float | None,
        interrupted: threading.Event | None,
        raise_on_error: bool,
    ) -> CellResult:
        """Runs a cell; :meth:`Session.run` says how, and what it raises."""
        self._life.require_open()
        generation = self._life.generation
        is_own, interrupted = interrupted is None, interrupted or threading.Event()
        is_aside = threading.current_thread() is not threading.main_thread()
        say = partial(self._work.say_who_runs, sink.notice if is_aside else None)
        with self._work.turn(say, interrupted):
            self._require_computed()
            self._life.require_ready(generation)
            self._require_checks(request.check, sink)
            began = datetime.now()
            request = replace(request, cell=self.next_cell() if cell is None else cell)
            profiled = ProfiledCell(request.profile, request.cell) if request.profile else None
            ran = self._run(request, sink, outputs, interrupted, timeout, profiled)
            died = self._died(ran)
            result = self._ended(ran, has_died=bool(died))
            if profiled is not None:
                result = replace(result, profile=str(profiled.folder))
            if cell is None and self.is_in_notebook:
                result = replace(result, is_called=True)
        error = ran.running.abandoned or error_of(
            result,
            deaths=died,
            began=ran.running.began,
            timed_out_after=timeout if ran.supervisor.timed_out else None,
            unshown=ran.running.sink_error,
            state=self._life.state,
            computed=ran.computed,
            raise_on_error=raise_on_error,
        )
        if not request.aside:
            failure = error or (cell_error(result) if result.errors else None)
            self.records.note(ran, result, began, failure)
        if is_own and interrupted.is_set() and not ran.supervisor.interrupted:
            raise KeyboardInterrupt  # the cell had ended; or the group was being formed
        tell(ran.running, result, error)
        if error is not None:
            raise error
        return result

    def _run(
        self,
        request: CellRequest,
        sink: OutputSink,
        outputs: Outputs,
        interrupted: threading.Event,
        timeout: float | None,
        profiled: ProfiledCell | None,
    ) -> Ran:
        """Has processes run a cell; the group is in step then, if that is possible."""
        self._work.cells_run += not request.aside
        generation, starts = self._life.generation, self._life.lifecycle.starts
        request = replace(request, serial=next(self._life.serials))
        running = self._send(request, sink, outputs, interrupted)
        collected, supervisor = self._wait(running, timeout)
        apart = self._apart(collected, supervisor.interrupted)
        self._settings.replied(collected.replies, collected.silent)
        is_apart = apart is not None or self._is_out_of_step(collected, supervisor.interrupted)
        computed = "" if is_apart else self._still_computed(running, supervisor)
        found = self._examiner.examine(
            running,
            collected,
            was_interrupted=supervisor.interrupted,
            is_apart=apart is not None or bool(computed),
        )
        if profiled is not None and running.abandoned is None:
            running.notice(self._profiles(running, profiled))
        is_alike = not (supervisor.interrupted or self._life.deaths or collected.errors)
        tell_names = partial(unequal_names_text, request.cell, has_ended_alike=is_alike)
        if apart is not None and not supervisor.told_apart:
            running.notice(f"{apart}.")
        if request.script is not None:
            pass  # its group ends with it
        elif supervisor.gave_up or is_apart:
            wait = 0.0 if supervisor.gave_up else COME_BACK_SECONDS
            names = self._mend(running, found.unequal_names, tell_names, wait)
            found = replace(found, unequal_names=names)
        elif found.unequal_names and not running.is_shown:  # a card has them
            running.notice(tell_names(found.unequal_names))
        return Ran(running, generation, starts, collected, found, supervisor, computed)

    def _profiles(self, running: RunningCell, profiled: ProfiledCell) -> str:
        """Takes the profiles of a cell from its processes; returns what became of them."""
        channel = self._work.channel = self._reach.open_channel(running.interrupted)
        try:
            return profiled.save(running.processes, self._life.reports, channel)
        finally:
            self._work.channel = None
            channel.end()

    def _require_computed(self) -> None:
        """Has a group count as ready again that was not because of a computation which has ended.

        Raises:
            SessionBrokenError: It has not ended.
        """
        if self._life.lifecycle.phase is Phase.COMPUTING:
            if computed := self._reach.still_computed():
                raise still_computing_error(computed)
            self._life.lifecycle.note_computed()

    def _send(
        self,
        request: CellRequest,
        sink: OutputSink,
        outputs: Outputs,
        interrupted: threading.Event,
    ) -> RunningCell:
        transport, exchange = self._life.transport, Exchange()
        indices = list(request.ranks)
        running = RunningCell(
            request, exchange, indices, self._life.num_processes, sink, interrupted, outputs
        )
        self._work.begin(running)  # before the first process can be in the cell
        for index in indices:
            transport.send_to(exchange, index, request)
        self._work.hand_strays(running)
        return running

    def _wait(self, running: RunningCell, timeout: float | None) -> tuple[Collected, Supervisor]:
        """Waits for a cell; returns what was sent, and how the wait ended."""
        asker = Asker(self._life.sentinels.ask, is_shown=running.is_shown)
        supervisor = Supervisor(self._reach, running, timeout, asker)
        try:
            while supervisor.go_on():
                running.step()
                errors = running.errors.values()
                is_ending = any(each.type_name == "KeyboardInterrupt" for each in errors)
                is_ending |= supervisor.interrupted
                asker.look(running.questions, running.waiting_for, is_ending=is_ending)
        finally:
            supervisor.close()
            asker.close()
            self._work.end(running)
            collected = running.finish()
        return collected, supervisor

    def _apart(self, collected: Collected, was_interrupted: bool) -> Apart | None:
        """Returns the processes of which not the same has failed: nothing more is let run on them.

        It is looked for where something went wrong.
        """
        life = self._life
        has_failed = any(each.has_failed for each in collected.replies.values())
        if not (has_failed or collected.errors or was_interrupted):
            return None
        return self._reach.apart() if life.lifecycle.state == "ready" else None

    def _still_computed(self, running: RunningCell, supervisor: Supervisor) -> str:
        """Returns what an interrupted cell has dispatched that does not end soon, in words.

        No cell is run until it has ended. Another interrupt meanwhile gives it up.
        """
        life = self._life
        is_ready = life.lifecycle.state == "ready"
        if not (is_ready and supervisor.interrupted) or running.request.script is not None:
            return ""
        deadline = time.monotonic() + COMPUTED_SECONDS
        while computed := self._reach.still_computed():
            if running.interrupted.wait(LOOK_SECONDS):
                running.interrupted.clear()
                supervisor.gave_up = True
                life.lifecycle.mark_broken()
                break
            if time.monotonic() > deadline:
                life.lifecycle.mark_computing()
                break
        if computed and not (supervisor.gave_up or supervisor.timed_out):
            ways = in_notebook(f" {STILL_COMPUTING}")
            running.notice(f"Interrupted, but still computing: {computed}.{ways}")
        return computed

    def _is_out_of_step(self, collected: Collected, was_interrupted: bool) -> bool:
        """Whether collectives may be pending on some processes that others have not begun.

        They would pair with the wrong ones later, in silence. Where processes agree on each
        dispatch there are none. Else nobody knows how far each got when it was interrupted: with
        several CPU devices calls return before their collectives have run.
        """
        life = self._life
        if life.lifecycle.state != "ready" or self._reach.is_recorded(collected.request):
            return False
        errors = [collected.errors.get(i) for i in collected.replies]
        ends = {error and (error.type_name, error.line) for error in errors}
        is_asynchronous = life.placement.devices_per_process > 1 and life.num_processes > 1
        return was_interrupted and (len(ends) > 1 or is_asynchronous)

    def _mend(
        self,
        running: RunningCell,
        names: tuple[Difference, ...],
        tell_names: Callable[[Sequence[Difference]], str],
        come_back_seconds: float,
    ) -> tuple[Difference, ...]:
        """Makes a new group after a cell whose processes are out of step; tells what it cost.

        Who was ended by force was read while it went on: what it had made by then may be of
        another step than with the others.

        Returns:
            The names that hold parts of different arrays since this cell.
        """
        generation = self._life.generation
        try:
            recovered = self._recoveries.carry_over(
                untold, running.interrupted, come_back_seconds, running.notice
            )
        except RecoveryInterrupted as error:
            recovered = error.recovered
        except (JaxnbError, KeyboardInterrupt) as error:
            if self._life.generation == generation:
                self._life.lifecycle.mark_broken()
            told = [str(error), *getattr(error, "__notes__", ())]
            running.notice(" ".join(filter(None, told)))
            if names and not running.is_shown:
                running.notice(tell_names(names))
            return names
        names = names or self._examiner.names_since(running.request.cell)
        gone = {each.path for each in recovered.lost}
        names = tuple(each for each in names if each.place not in gone)
        running.notice(recovered_text(recovered, () if running.is_shown else names, tell_names))
        return names

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

    def _ended(self, ran: Ran, *, has_died: bool) -> CellResult:
        """Makes the result of a cell, and notes it for the next."""
        pitfalls = self.records.new_pitfalls(ran)
        cause = "dead" if has_died else ran.cause
        result = result_of(ran, self._life.num_processes, self._puller, pitfalls, cause)
        self._work.note_result(result)
        if not ran.collected.request.aside:
            self._work.last_cell = result.cell
            self._work.last_failed = result if result.errors else self._work.last_failed
        again = replace(ran.collected.request, calls=0, profile="")
        self.records.replayable.note(again, result)
        return result
