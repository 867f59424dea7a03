"""The life of a group: it starts, is ready, busy or broken, is restarted or recovered, ends."""

from __future__ import annotations

import atexit
import itertools
import os
import signal
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import partial
from typing import Self

from jaxnb.asking import REPLY_SECONDS, Channel
from jaxnb.cluster import ProcessGroup
from jaxnb.conversing import Conversations
from jaxnb.deaths import Death, OomKills
from jaxnb.errors import (
    JaxnbError,
    SessionBrokenError,
    SessionClosedError,
    StartError,
    UsageError,
)
from jaxnb.group import Group
from jaxnb.labels import capitalized, processes_label
from jaxnb.launch.gpus import visible_gpus
from jaxnb.launch.placement import place
from jaxnb.lifecycle import Lifecycle, Phase
from jaxnb.model import (
    ProcessReport,
    StreamChunk,
    Whereabouts,
)
from jaxnb.options import StartOptions, default_launcher, process_indices
from jaxnb.outcome import (
    closed_error,
    death_error,
    forked_error,
    out_of_step_error,
    restarted_error,
    restarting_error,
)
from jaxnb.patience import sigint_held, sigint_sets
from jaxnb.recovery.carrying import Carrier
from jaxnb.recovery.messages import Recovered
from jaxnb.recovery.recovering import Recovery, wait_for_cells
from jaxnb.replaying import Replayable
from jaxnb.result import CellResult
from jaxnb.running import RunningCell
from jaxnb.sinks import OutputSink, StderrNotices
from jaxnb.sizes import Size, require_room
from jaxnb.starting import Progress, Start, Starter, jax_environment, untold
from jaxnb.strays import Strays
from jaxnb.transport.client import Output, Transport
from jaxnb.turns import WAITS_FOR, Turns
from jaxnb.wire.sentinels import Sentinels

COME_BACK_SECONDS = 1.0
"""How long a process that has been interrupted may take to leave its cell: to format its error,
mostly."""


class Life(Group):
    """A group of JAX processes, from its start to its end, whatever happens to it.

    Attributes:
        options: How it was started.
    """

    def __init__(self, options: StartOptions, progress: Progress | None = None) -> None:
        super().__init__()
        started = time.perf_counter()
        self.options = options
        self._placement = place(options, visible_gpus() if options.platform != "cpu" else ())
        require_room(self._placement)
        self._launcher = options.launcher or default_launcher()
        self._lifecycle = Lifecycle()
        self._generation = 0
        self._strays = Strays()
        self._turns = Turns()
        self._current: RunningCell | None = None
        self._left: RunningCell | None = None
        self._stuck: set[int] = set()  # in what an interrupted pull asked for
        self._conversations = Conversations(self._turns)
        self._replacing = threading.RLock()
        self._interrupted: threading.Event | None = None
        self.next_cell: Callable[[], int] = itertools.count(1).__next__
        self._cells_run = 0
        self._replayable = Replayable()
        self._oom_kills = OomKills()
        self._last_result: CellResult | None = None
        self._reports: list[ProcessReport] = []
        self._transport: Transport | None = None
        self._sentinels = Sentinels(b"", ())
        self._owner_pid = os.getpid()
        self._start_group(progress or untold)
        self._start_seconds = time.perf_counter() - started
        atexit.register(self._close_at_exit)

    def _start_group(self, progress: Progress) -> None:
        self._environment = jax_environment()
        try:
            with sigint_held():  # a group that nobody knows of could not be ended
                self._group = ProcessGroup(self._launcher, self._on_death, self._on_text)
        except KeyboardInterrupt:
            if hasattr(self, "_group"):  # else the making was interrupted, and has cleaned up
                self.close()
            raise
        self._bring_up(lambda starter: starter.start(), progress)

    def _bring_up(self, start: Start, progress: Progress) -> None:
        try:
            self._transport, reports = start(self._starter(progress))
            self._take_reports(self._transport, reports)
        except BaseException as error:
            self.close()
            if isinstance(error, StartError):
                raise StartError(
                    f"{error}\nEverything that had started has been stopped."
                ) from error.__cause__
            raise
        self._lifecycle.finish_start()

    def _starter(self, progress: Progress) -> Starter:
        group, options, placement = self._group, self.options, self._placement
        return Starter(
            group, options, placement, progress, lambda: self._lifecycle.deaths, self._on_stray
        )

    def _take_reports(self, transport: Transport, reports: list[ProcessReport]) -> None:
        self._reports = reports
        self._sentinels.close()
        self._sentinels = Sentinels(transport.key, reports, self._notice)

    def _say_who_runs(self, sink: OutputSink) -> None:
        if (current := self._current) is not None:
            sink.notice(WAITS_FOR.format(current.request.cell))
        elif self._conversations.current is not None:
            sink.notice("waits for a pull or push to end")

    @property
    def generation(self) -> int:
        """How often the group has been restarted."""
        return self._generation

    def channel(self) -> AbstractContextManager[Channel]:
        """Waits until no cell runs, and keeps others out while the channel is used.

        Works on a broken session too, with the processes that are left. SIGINT in the main
        thread ends it with KeyboardInterrupt.
        """
        self._require_open()
        return self._conversations.begin(
            lambda: self._say_who_runs(StderrNotices()), self._open_channel
        )

    @property
    def sentinels(self) -> Sentinels:
        """What answers for the processes while cells run."""
        self._require_not_closed()
        if self._lifecycle.phase is Phase.STARTING:
            raise restarting_error()
        return self._sentinels

    def _open_channel(self, interrupted: threading.Event) -> Channel:
        self._require_open()
        if self._lifecycle.phase is Phase.STARTING:
            raise restarting_error()
        if self._transport is None or self._lifecycle.phase is Phase.STOPPED:
            raise out_of_step_error()
        return Channel(
            self._transport,
            lambda: self._lifecycle.deaths,
            self._in_cells(),
            self.num_processes,
            interrupted,
            self._group.signal,
            self._give_up,
            StderrNotices().notice,
            lambda requests: self._serials.joint(self.options.check, requests),
        )

    def where(self, processes: Iterable[int] | None = None) -> dict[int, Whereabouts]:
        """Returns where the processes are: Python stacks, also while they wait in C++.

        A process that is dead, stopped, or keeps the lock of its interpreter is left out.

        Args:
            processes: Their indices; all by default.
        """
        self._require_not_closed()
        asked = process_indices(processes, self.num_processes)
        return dict(sorted(self._sentinels.where(set(asked) - self._lifecycle.dead).items()))

    def send_interrupt(self, processes: Iterable[int]) -> None:
        """Sends SIGINT to processes; one that runs nothing for the notebook ignores it."""
        self._group.signal(sorted(processes), signal.SIGINT)

    @abstractmethod
    def run(
        self,
        code: str,
        *,
        ranks: Iterable[int] | None = None,
        cell: int | None = None,
        first_line: int = 1,
    ) -> CellResult:
        """Runs code on every process, as IPython would run a cell."""

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
        self._require_open()
        progress = progress or untold
        self._replace_all(progress, size=self._other_size(num_processes, devices_per_process))
        if replay:
            return self._replayable.replay(self.run, progress)
        self._replayable.end()
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
        self._require_open()
        size = self._other_size(num_processes, devices_per_process)
        if size is not None and self._lifecycle.dead:
            raise UsageError(
                f"{capitalized(processes_label(self._lifecycle.dead))} died: not all of its arrays "
                "are there to be laid out anew. Nothing has changed. Type `%spmd_recover` first."
            )
        interrupted = threading.Event()
        with (
            sigint_sets(interrupted),
            self._turns.turn(lambda: self._say_who_runs(StderrNotices()), interrupted),
        ):
            self._interrupted = interrupted
            try:
                return self._carry_over(progress or untold, interrupted, size=size)
            finally:
                self._interrupted = None

    def _carry_over(
        self,
        progress: Progress,
        interrupted: threading.Event,
        come_back_seconds: float = COME_BACK_SECONDS,
        notice: Callable[[str], None] | None = None,
        size: Size | None = None,
    ) -> Recovered:
        """Makes a new group with the variables of this one; the turn is ours."""
        self._require_open()
        self._require_helpers()
        if self._transport is None or self._lifecycle.phase is Phase.STOPPED:
            raise out_of_step_error()
        generation = self._generation
        left = self._left
        unended = wait_for_cells(
            lambda: (set(self._in_cells()) | self._stuck) - self._lifecycle.dead,
            come_back_seconds if left is not None else 0.0,
            lambda seconds: left and left.still_in_cell(seconds),
        )
        pids = {report.process_index: report.pid for report in self._reports}
        sentinels, dead = self._sentinels, lambda: self._lifecycle.dead
        notice = notice or StderrNotices().notice
        is_resized = size is not None
        carrier = Carrier(sentinels, pids, dead, interrupted, notice, is_resized=is_resized)
        replace_all = partial(self._replace_all, progress, generation, size)
        return Recovery(
            carrier,
            self._open_channel,
            lambda: self.group,
            replace_all,
            progress,
            interrupted,
            None if size is None else size.numbers,
        ).run(unended)

    def _other_size(self, num_processes: int | None, devices: int | None) -> Size | None:
        gpus = () if self._placement.platform == "cpu" else visible_gpus()
        return Size(self.options, self._placement).other(num_processes, devices, gpus)

    def _replace_all(
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
            if generation not in (None, self._generation):
                raise restarted_error()
            self._replace(progress, size, is_ours=generation is not None)

    def _replace(self, progress: Progress, size: Size | None, *, is_ours: bool) -> None:
        started = time.perf_counter()
        if not self._lifecycle.begin_start():
            raise closed_error()
        self._left = None
        self._stuck.clear()
        if not is_ours:
            self._abandon(SessionBrokenError, "The group was restarted")
        try:
            self._stop_for_restart(progress)
            if not is_ours:
                self._turns.wait_until_free(REPLY_SECONDS)
        except BaseException:
            self._lifecycle.fail_start()
            raise
        if size is not None:  # who waits, or has an array, knows other processes
            self.options, self._placement = size
            self._generation += is_ours
        transport = self._transport
        if transport is None:
            self._start_group(progress)
        else:
            self._bring_up(lambda starter: (transport, starter.restart(transport)), progress)
        self._start_seconds = time.perf_counter() - started

    def _require_helpers(self) -> None:
        for death in self._lifecycle.deaths:
            if death.role != "engine":
                raise death_error(death, self.num_processes, None)

    def _abandon(self, kind: type[JaxnbError], reason: str) -> None:
        """Ends the wait for the running cell, or for data; what waits for its turn will not run."""
        self._generation += 1
        running = self._current
        if running is not None:
            running.abandon(kind(f"{reason} while the cell ran or waited."))
        self._conversations.abandon(kind(f"{reason} while data were on the way."))

    def _stop_for_restart(self, progress: Progress) -> None:
        progress("stopping", "the old processes")
        transport = self._transport
        if transport is None or self._needs_fresh_group():
            self._end_group()
        else:
            self._group.stop_processes()
            for index in list(transport.engine_ids):
                transport.forget(index)
        self._lifecycle.note_stopped()

    def _needs_fresh_group(self) -> bool:
        # JAX reads its variables when it is imported, which the fork server has done already.
        changed = self._environment != jax_environment()
        return changed or any(d.role != "engine" for d in self._lifecycle.deaths)

    def close(self) -> None:
        """Ends all processes of the group. A second call does nothing.

        Guarantees that none of them is alive when it returns. A running cell ends with an
        error. Exit handlers (``atexit``) of the processes run if they finish within a second.
        """
        # An interrupt must not leave a group that nobody owns any more.
        with sigint_held():
            if not self._lifecycle.begin_close():
                return
            self._abandon(SessionClosedError, "The session was closed")
            self._end_group()
            self._lifecycle.finish_close()
            atexit.unregister(self._close_at_exit)

    def _end_group(self) -> None:
        if self._transport is not None:
            self._transport.close()
            self._transport = None
            self._sentinels.close()
        self._group.close()

    def _close_at_exit(self) -> None:
        # A process forked from this one by its user inherits the handler, not the group.
        if os.getpid() == self._owner_pid:
            self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _on_death(self, death: Death) -> None:
        self._lifecycle.note_death(self._oom_kills.judge(death))
        if self._lifecycle.phase is Phase.BROKEN:
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
        if running is not None and output.process_index in running.processes:
            running.exchange.events.put(output)
        elif self._lifecycle.phase is not Phase.STARTING:
            self._strays.add(output)

    def _require_not_closed(self) -> None:
        if not self._lifecycle.is_open:
            raise closed_error()

    def _require_open(self) -> None:
        """Raises where nothing can be asked of the group but what sentinels answer."""
        self._require_not_closed()
        if os.getpid() != self._owner_pid:
            raise forked_error()

    def _open_generation(self) -> int:
        """Returns the generation; raises before a turn is waited for that never comes."""
        self._require_open()
        return self._generation

    def _require_ready(self, generation: int) -> None:
        self._require_open()
        state, deaths = self._lifecycle.state, self._lifecycle.deaths
        if state == "ready" and generation == self._generation:
            return
        if deaths:
            raise death_error(deaths[0], self.num_processes, None, others=deaths[1:])
        raise out_of_step_error() if state == "broken" else restarted_error()

    def _give_up(self, indices: Iterable[int]) -> None:
        self._stuck.update(indices)
        self.mark_out_of_step()

    def mark_out_of_step(self) -> None:
        """Notes that processes did not come back, so nothing more can be run on the group."""
        self._lifecycle.mark_broken()
