"""The life of a group: it starts, is ready or broken, is replaced, ends."""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial

from jaxnb.cells.outcome import (
    STILL_COMPUTING,
    closed_error,
    not_restarted_text,
    out_of_step_text,
    restarted_error,
    restarting_error,
)
from jaxnb.compat.ipython import installed, newer_than_tested
from jaxnb.errors import SessionBrokenError, SessionClosedError, StartError, UsageError
from jaxnb.launch.cluster import ProcessGroup
from jaxnb.launch.deaths import Death, death_error, describe_death
from jaxnb.launch.folder import OFF, programs_folder, require_working_directory
from jaxnb.launch.job import Progress
from jaxnb.launch.placement import Placement, counts_of, parse_hosts, place, place_on_hosts
from jaxnb.launch.slurm import with_nodes
from jaxnb.lockstep import settings
from jaxnb.lockstep.notebook_side import Serials
from jaxnb.model.group import GroupInfo, ProcessInfo, ProcessReport, SessionState
from jaxnb.options import StartOptions, shown_launcher, with_job
from jaxnb.session.lifecycle import (
    Lifecycle,
    Phase,
    Size,
    process_infos,
    require_allowed,
    require_room,
)
from jaxnb.session.starting import Starter, connections, jax_environment
from jaxnb.session.work import Work, sigint_held
from jaxnb.wire.client import Transport
from jaxnb.wire.messages import Output
from jaxnb.wire.sentinels import Sentinels

FREE_SECONDS = 30.0
"""How long a restart waits for those whose cells and pulls it has ended to leave."""


class Life:
    """A group of JAX processes, from its start to its end, whatever happens to it.

    Args:
        options: What was asked for.
        work: What is done on it; ended with an error when the processes are.
        on_join: Told what processes report that have joined.
        progress: Told of each stage of the start.

    Attributes:
        options: How it was started.
        placement: Who gets what.
        cluster: Its processes, for the system.
        reports: What each process has told at its start.
        lifecycle: Its phase, and its deaths.
        work: What is done on it.
        generation: How often it has been restarted.
        start_seconds: How long its last start took.
        notes: What is to be told of how it was started.
        serials: Counts what processes are asked together.
        sentinels: What answers for the processes while cells run.
    """

    cluster: ProcessGroup

    def __init__(
        self,
        options: StartOptions,
        work: Work,
        on_join: Callable[[list[ProcessReport]], None],
        progress: Progress,
    ) -> None:
        started = time.perf_counter()
        require_working_directory()
        self.lifecycle, self.generation = Lifecycle(), 0
        self.reports: list[ProcessReport] = []
        self.serials, self._replacing = Serials(), threading.RLock()
        self.work, self._on_join = work, on_join
        self.options = with_job(with_nodes(options))
        self._hosts = self.options.hosts  # those of a job are others each time
        self._transport: Transport | None = None
        self.sentinels = Sentinels(b"", {})
        self._owner_pid, self._at_exit = os.getpid(), partial(at_exit, self.close)
        self._make_cluster(progress)
        try:
            asked = with_hosts_of_job(
                self.options, () if self._hosts else self.cluster.hosts.names()
            )
            self.options, self.placement, self.notes = _prepared(asked, self.cluster)
        except BaseException:
            self.close()
            raise
        self._bring_up(progress)
        self.start_seconds = time.perf_counter() - started
        atexit.register(self._at_exit)

    # ---------------------------------------------------------------------- what it is now

    @property
    def state(self) -> SessionState:
        """``"starting"``, ``"ready"``, ``"busy"``, ``"broken"`` or ``"closed"``."""
        state = self.lifecycle.state
        return "busy" if state == "ready" and self.work.current is not None else state

    @property
    def num_processes(self) -> int:
        """Size of the group."""
        return self.placement.num_processes

    @property
    def deaths(self) -> Sequence[Death]:
        """Processes of the group that died without having been told to."""
        return self.lifecycle.deaths

    @property
    def processes(self) -> list[ProcessInfo]:
        """The processes, by process index."""
        return process_infos(
            self.reports,
            self.deaths,
            absent=self.cluster.absent(range(len(self.reports))),
            busy=self.work.in_cells(),
            engine_ids=self._transport.engine_ids if self._transport is not None else {},
            closed=self.lifecycle.phase is Phase.CLOSED,
        )

    def _broken_error(self) -> SessionBrokenError:
        unended = self.work.unended()
        return SessionBrokenError(broken_text(self.lifecycle.phase, unended, "Nothing was run. "))

    @property
    def transport(self) -> Transport:
        """What main threads are asked over.

        Raises:
            SessionBrokenError: The processes are being started, or have not come up.
        """
        if self.lifecycle.phase is Phase.STARTING:
            raise restarting_error()
        if self._transport is None or self.lifecycle.phase is Phase.STOPPED:
            raise self._broken_error()
        return self._transport

    # ---------------------------------------------------------------------- whether it may be asked

    def require_sentinels(self) -> Sentinels:
        """Returns what answers while cells run; raises where the processes are closed or not up."""
        self.require_not_closed()
        if self.lifecycle.phase is Phase.STARTING:
            raise restarting_error()
        return self.sentinels

    def require_not_closed(self) -> None:
        """Raises where nothing is there to ask."""
        if not self.lifecycle.is_open:
            raise closed_error()

    def require_open(self) -> None:
        """Raises where nothing can be asked of the group but what sentinels answer."""
        self.require_not_closed()
        if os.getpid() != self._owner_pid:
            raise UsageError(
                "The group belongs to the process that started it. This is a forked child "
                "(`os.fork`, multiprocessing), which receives no answers from the group: use the "
                "group in the parent, or start another one here with `jaxnb.start()`."
            )

    def require_ready(self, generation: int) -> None:
        """Raises where no cell can be run on the group of a generation."""
        self.require_open()
        state, deaths = self.lifecycle.state, self.lifecycle.deaths
        if state == "ready" and generation == self.generation:
            return
        if deaths:
            raise death_error(deaths[0], self.num_processes, others=deaths[1:])
        if state == "broken":
            raise self._broken_error()
        raise restarted_error()

    def require_unchanged(self, generation: int) -> None:
        """Raises if the processes of a generation have been ended, or are about to be."""
        self.require_open()
        if generation != self.generation:
            raise SessionBrokenError(
                "The group was restarted while its variables were packed. Nothing was carried over."
            )

    def require_helpers(self) -> None:
        """Raises if a process that serves the group has died."""
        for death in self.lifecycle.deaths:
            if death.role != "engine":
                raise death_error(death, self.num_processes)

    # ---------------------------------------------------------------------- start, restart, end

    def replace_all(
        self, progress: Progress, generation: int | None = None, size: Size | None = None
    ) -> None:
        """Ends the processes, and starts new ones.

        Args:
            progress: Told of each stage.
            generation: Those of which restart it is to be, where the turn is ours. Else what runs,
                and waits for its turn, ends with an error.
            size: What they are started with, if that changes.
        """
        with self._replacing:
            if generation not in (None, self.generation):
                raise restarted_error()
            self._replace(progress, size, is_ours=generation is not None)

    def _replace(self, progress: Progress, size: Size | None, *, is_ours: bool) -> None:
        started = time.perf_counter()
        require_working_directory()
        if not self.lifecycle.begin_start():
            raise closed_error()
        self.work.forget_left()
        if not is_ours:
            self._abandon(SessionBrokenError, "The group was restarted")
            self.work.forget_output()
        try:
            self._stop_for_restart(progress)
            if not is_ours:
                self.work.turns.wait_until_free(FREE_SECONDS)
            if size is not None:  # who waits, or has an array, knows other processes
                self.options, self.placement = size
                self.generation += is_ours
            if self._transport is None:
                self._make_cluster(progress)
                if not self._hosts and self.options.hosts:  # a job's, which are others now
                    self.options = with_hosts_of_job(self.options, self.cluster.hosts.names())
                    self.placement = _placed(self.options, self.cluster)
        except BaseException as error:
            self.lifecycle.fail_start()
            if isinstance(error, StartError):
                raise StartError(f"{error}\n{not_restarted_text()}") from error.__cause__
            raise
        self._bring_up(progress)
        self.start_seconds = time.perf_counter() - started

    def _make_cluster(self, progress: Progress) -> None:
        self._environment = jax_environment()
        try:
            with sigint_held():  # a group that nobody knows of could not be ended
                asked, notice = replace(self.options, hosts=self._hosts), self.work.notice
                self.cluster = ProcessGroup(asked, self._on_death, self._on_stray, notice)
            self.cluster.hosts.gather(progress)
        except BaseException:
            if hasattr(self, "cluster"):  # else the making was interrupted, and has cleaned up
                with sigint_held():
                    self.work.notice(self.cluster.close())
            raise

    def _bring_up(self, progress: Progress) -> None:
        try:
            self._start(progress)
            assert self._transport is not None
            self.sentinels, self._transport.direct = connections(
                self._transport.key, self.cluster.directory, self.reports, self.work.notice
            )
            self._on_join(self.reports)
        except BaseException as error:
            if not self.lifecycle.is_open:  # it was closed meanwhile, by another thread
                raise closed_error() from error
            left = self.close() or "Everything that had started has been stopped."
            if isinstance(error, StartError):
                raise StartError(f"{error}\n{left}") from error.__cause__
            raise
        self.lifecycle.finish_start()

    def _start(self, progress: Progress) -> None:
        """Starts processes; if a host is lost meanwhile, those of a restart on the other hosts."""
        cluster, lost = self.cluster, self.cluster.hosts.lost()
        cluster.hosts.place(self.placement.counts)
        starter = Starter(
            cluster, self.options, self.placement, progress, lambda: self.deaths, self._on_stray
        )
        try:
            self._transport, self.reports = starter.start(self._transport)
        except StartError:
            may_go_on = self._transport is not None and self.lifecycle.is_open
            may_go_on &= cluster.replaces_processes and not self.lifecycle.has_lost_helper
            if not may_go_on or cluster.hosts.lost() == lost:
                raise
            self._stop_for_restart(progress)
            self._start(progress)

    def _stop_for_restart(self, progress: Progress) -> None:
        progress("stopping", "the old processes")
        transport = self._transport
        # JAX reads its variables when it is imported, which the fork server has done already.
        has_changed = self._environment != jax_environment()
        goes_on = not has_changed and self.cluster.replaces_processes
        if transport is not None and goes_on and not self.lifecycle.has_lost_helper:
            self.cluster.stop_processes()
            for index in list(transport.engine_ids):
                transport.forget(index)
        # Something that serves the group may have ended meanwhile.
        is_ended = transport is None or not goes_on or self.lifecycle.has_lost_helper
        if is_ended:
            self.work.notice(self._end_group())
        self.lifecycle.note_stopped(helpers_too=is_ended)

    def _abandon(self, kind: type[SessionBrokenError | SessionClosedError], reason: str) -> None:
        """Ends the wait for what runs; what waits for its turn will not run."""
        self.generation += 1
        self.work.abandon(kind, reason)

    def close(self) -> str:
        """Ends all processes of the group, if that has not been done; returns what may be left."""
        if os.getpid() != self._owner_pid:
            return ""  # a child that this process has forked has no group of its own
        # An interrupt must not leave a group that nobody owns any more.
        with sigint_held():
            if not self.lifecycle.begin_close():
                return ""
            self._abandon(SessionClosedError, "The session was closed")
            left = self._end_group()
            self.lifecycle.finish_close()
            atexit.unregister(self._at_exit)
        return left

    def _end_group(self) -> str:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
        return self.cluster.close()

    # ---------------------------------------------------------------------- what comes by itself

    def _on_death(self, death: Death) -> None:
        self.lifecycle.note_death(death)
        if self.lifecycle.phase is Phase.BROKEN:
            transport = self._transport
            if transport is not None and death.role == "engine":
                transport.forget(death.index)
        self.work.wake()

    def _on_stray(self, output: Output) -> None:
        self.work.take_output(output, is_kept=self.lifecycle.phase is not Phase.STARTING)


def info_of(life: Life) -> GroupInfo:
    """Returns the whole group, for display."""
    work, platform, state = life.work, life.placement.platform, life.state
    first = life.reports[0]
    notes = [*life.cluster.hosts.notes(), *settings.notes(life.reports, life.options.check)]
    if state == "broken" and not life.deaths:  # which processes have died is in the table
        broken = [broken_text(life.lifecycle.phase, work.unended())]
    else:
        helpers = [each for each in life.deaths if each.role != "engine"]
        broken = [f"{describe_death(each, 0)}. Type `%spmd_restart`." for each in helpers]
    return GroupInfo(
        processes=tuple(life.processes),
        state=state,
        platform=platform,
        launcher=shown_launcher(life.options),
        collectives="nccl" if platform == "gpu" else life.options.collectives,
        jax_version=first.jax_version,
        start_seconds=life.start_seconds,
        cells_run=work.cells_run,
        last_cell=work.last_cell,
        running_cell=now.request.cell if (now := work.current) is not None else None,
        check=life.options.check,
        notes=(*broken, *notes, *newer_than_tested(installed() | {"JAX": first.jax_version}),
               *life.notes),
    )  # fmt: skip


def broken_text(phase: Phase, unended: Collection[int], done: str = "") -> str:
    """Returns what is the matter with a broken group of which no process has died."""
    if phase is Phase.COMPUTING:
        return f"The group still computes what a cell dispatched. {STILL_COMPUTING}"
    return not_restarted_text(done) if phase is Phase.STOPPED else out_of_step_text(unended, done)


def at_exit(close: Callable[[], str]) -> None:
    """Closes a group at the end of this process; what may be left is a line of standard error."""
    if left := close():
        sys.stderr.write(f"jaxnb: {left}\n")


def _prepared(
    options: StartOptions, cluster: ProcessGroup
) -> tuple[StartOptions, Placement, list[str]]:
    """Returns what is started, and what is to be told of where programs are kept."""
    placement = _placed(options, cluster)
    asked = options.compile_cache
    if placement.platform == "cpu":
        folder, note = programs_folder(asked)
        if folder and asked and options.hosts:
            note = f"Each host keeps compiled programs for the group's life, and none in {asked}."
    else:
        folder = ""
        note = "On GPUs each process compiles by itself." if asked else ""
    return replace(options, compile_cache=folder or OFF), placement, [note] if note else []


def with_hosts_of_job(options: StartOptions, hosts: Sequence[str]) -> StartOptions:
    """Returns options with the hosts that a job has; if there are none, the same.

    Args:
        options: What was asked for.
        hosts: The hosts, with the number of processes of each if that is known.
    """
    if not hosts:
        return options
    n = options.num_processes
    names = [*hosts] if n is None else [host.partition(":")[0] for host in hosts]
    each = ":1" if len(names) == n else ""
    return replace(options, hosts=",".join(f"{name}{each}" for name in names))


def _placed(
    options: StartOptions, cluster: ProcessGroup, ending: Placement | None = None
) -> Placement:
    """Places the processes of a group, where there is room for them.

    Args:
        options: What was asked for.
        cluster: Knows what its hosts have.
        ending: Whose processes will have ended by then.

    Raises:
        UsageError: It is not possible.
    """
    facts = cluster.facts(gpus=options.platform != "cpu")
    if options.hosts:
        placement = place_on_hosts(options, parse_hosts(options.hosts), facts)
        if placement.platform == "gpu" and (lost := cluster.hosts.lost()):
            raise UsageError(
                f"{' and '.join(lost)}: lost, with the GPUs there, and the other hosts' GPUs have "
                "a process each. Nothing was changed. Type `%spmd_stop`, and start a group on the "
                "hosts that are left."
            )
    else:
        placement = place(options, facts[0].gpus)
    require_allowed(placement)
    ends = counts_of(ending) if ending is not None else (0,) * len(facts)
    for host, count, end in zip(facts, counts_of(placement), ends, strict=True):
        require_room(replace(placement, num_processes=count), host.available_bytes, end)
    return placement


def other_size(life: Life, num_processes: int | None, devices: int | None) -> Size | None:
    """Returns how a group of another size is started; None if it has the same size.

    Args:
        life: The group.
        num_processes: How many processes it is to have; None for as many.
        devices: How many devices each is to have; None for as many.

    Raises:
        UsageError: There are too few GPUs, or too little memory; or a number is not possible.
    """
    if num_processes is None and devices is None:  # a host that is lost need not be asked
        return None
    now = life.placement
    if devices is None:
        devices = life.options.devices_per_process
    if life.options.attach:  # one for each engine was for the start
        hosts = ",".join(each.name for each in parse_hosts(life.options.hosts))
        life.options = replace(life.options, hosts=hosts)
    elif num_processes not in (None, now.num_processes) and "#" in life.options.hosts:
        launcher = life.options.launcher
        raise UsageError(
            f"{launcher} has started one agent for each process, and starts as many again. Nothing "
            f"was changed. Type `%spmd_stop`, then `%spmd_start -n {num_processes} --launcher "
            f"{launcher}`."
        )
    options = replace(
        life.options,
        num_processes=now.num_processes if num_processes is None else num_processes,
        devices_per_process=devices,
        platform=now.platform,
    )
    size = Size(options, _placed(options, life.cluster, now))
    return None if size.numbers == Size(options, now).numbers else size
