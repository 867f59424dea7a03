"""The phases of a group, its members, and the sizes that it can have."""

from __future__ import annotations

import enum
import os
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from jaxnb.errors import UsageError
from jaxnb.labels import format_bytes, plural
from jaxnb.launch.deaths import Death, dead_processes, describe_status
from jaxnb.launch.placement import Placement
from jaxnb.model.group import ProcessInfo, ProcessReport, SessionState
from jaxnb.options import StartOptions

# Processes die when they like, and their deaths are reported from another thread, in the middle of
# whatever the session does. Each change of phase therefore looks at the deaths under the same lock,
# so no death is missed while another is handled, and no group is called ready after one.


class Phase(enum.Enum):
    """The phase of a group."""

    STARTING = "starting"
    """Its processes are being started or restarted; the start reports a death."""
    READY = "ready"
    """Cells may be run on it."""
    BROKEN = "broken"
    """A process has died, or did not come back."""
    COMPUTING = "computing"
    """All came back from a cell, and a computation of it has not ended."""
    STOPPED = "stopped"
    """A restart failed before it started new processes; it may have stopped the old ones."""
    CLOSING = "closing"
    """It is being ended."""
    CLOSED = "closed"
    """It has ended; no process is left."""


_NEXT: Mapping[Phase, frozenset[Phase]] = {
    Phase.STARTING: frozenset({Phase.READY, Phase.BROKEN, Phase.STOPPED, Phase.CLOSING}),
    Phase.READY: frozenset({Phase.STARTING, Phase.BROKEN, Phase.COMPUTING, Phase.CLOSING}),
    Phase.BROKEN: frozenset({Phase.STARTING, Phase.CLOSING}),
    Phase.COMPUTING: frozenset({Phase.READY, Phase.STARTING, Phase.BROKEN, Phase.CLOSING}),
    Phase.STOPPED: frozenset({Phase.STARTING, Phase.CLOSING}),
    Phase.CLOSING: frozenset({Phase.CLOSED}),
    Phase.CLOSED: frozenset(),
}

_SHOWN: Mapping[Phase, SessionState] = {
    Phase.STARTING: "starting",
    Phase.READY: "ready",
    Phase.BROKEN: "broken",
    Phase.COMPUTING: "broken",
    Phase.STOPPED: "broken",
    Phase.CLOSING: "broken",
    Phase.CLOSED: "closed",
}


class Lifecycle:
    """Holds a group's phase and its deaths. Safe to use from any thread.

    Attributes:
        starts: How often its processes have joined, recoveries included.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._deaths: tuple[Death, ...] = ()
        self.starts = 0

    @property
    def phase(self) -> Phase:
        """The phase of the group."""
        return self._phase

    @property
    def state(self) -> SessionState:
        """The phase as users see it, except ``"busy"``, which the group adds."""
        return _SHOWN[self._phase]

    @property
    def is_open(self) -> bool:
        """Nobody has begun to close it."""
        return self._phase not in (Phase.CLOSING, Phase.CLOSED)

    @property
    def deaths(self) -> tuple[Death, ...]:
        """The deaths since a restart last stopped the processes, in the order of their reports."""
        return self._deaths

    @property
    def dead(self) -> set[int]:
        """The processes among them."""
        return dead_processes(self._deaths)

    @property
    def has_lost_helper(self) -> bool:
        """Whether something that serves the group is among them."""
        return any(each.role != "engine" for each in self._deaths)

    def note_death(self, death: Death) -> None:
        """Notes a death: a group that is ready or computing is broken from then on.

        One that is starting is broken once it has started.
        """
        with self._lock:
            self._deaths = (*self._deaths, death)
            if self._phase in (Phase.READY, Phase.COMPUTING):
                self._enter(Phase.BROKEN)

    def mark_broken(self) -> bool:
        """Notes that processes are out of step; returns whether they were in step."""
        return self._move(Phase.BROKEN, Phase.READY, Phase.COMPUTING)

    def mark_computing(self) -> None:
        """Notes that a computation of a cell has not ended with it."""
        self._move(Phase.COMPUTING, Phase.READY)

    def note_computed(self) -> None:
        """Notes that it has ended."""
        self._move(Phase.READY, Phase.COMPUTING)

    def begin_start(self) -> bool:
        """Notes that its processes are being replaced; returns False if it is being closed."""
        with self._lock:
            if not self.is_open:
                return False
            self._enter(Phase.STARTING)
            return True

    def note_stopped(self, *, helpers_too: bool = True) -> None:
        """Notes that a restart has ended the processes; their deaths are of no interest now.

        Args:
            helpers_too: It has also ended what serves the group.
        """
        with self._lock:
            left = [] if helpers_too else [each for each in self._deaths if each.role != "engine"]
            self._deaths = tuple(left)

    def fail_start(self) -> None:
        """Notes that a restart failed, after or before it stopped the old processes."""
        self._move(Phase.STOPPED, Phase.STARTING)

    def finish_start(self) -> None:
        """Notes that all processes have joined: the group is ready, unless one has died."""
        with self._lock:
            self.starts += 1
            if self._phase is Phase.STARTING:  # else somebody is closing it
                self._enter(Phase.BROKEN if self._deaths else Phase.READY)

    def begin_close(self) -> bool:
        """Notes that the group is being ended; returns False if it has ended already."""
        with self._lock:
            if self._phase is Phase.CLOSED:
                return False
            self._enter(Phase.CLOSING)
            return True

    def finish_close(self) -> None:
        """Notes that the group has ended."""
        self._move(Phase.CLOSED, Phase.CLOSING)

    def _move(self, to: Phase, *of: Phase) -> bool:
        with self._lock:
            if self._phase not in of:
                return False
            self._enter(to)
            return True

    def _enter(self, to: Phase) -> None:
        """Changes the phase, with the lock held."""
        if to is not self._phase and to not in _NEXT[self._phase]:
            raise ValueError(f"a group that is {self._phase.value} cannot be {to.value}")
        self._phase = to


def process_infos(
    reports: Iterable[ProcessReport],
    deaths: Iterable[Death],
    *,
    absent: Mapping[int, str],
    busy: Collection[int],
    engine_ids: Mapping[int, int],
    closed: bool,
) -> list[ProcessInfo]:
    """Returns the processes, in the order of the reports.

    Args:
        reports: What each said at the start.
        deaths: Who has died since.
        absent: Those that are stopped, by SIGSTOP say, or on a silent host, with a clause for each.
        busy: Those that are in a cell.
        engine_ids: Process index to ipyparallel's number.
        closed: The session has been closed.
    """
    dead = {death.index: death for death in deaths if death.role == "engine"}
    infos = []
    for report in reports:
        index = report.process_index
        ended = "ended"
        if index in dead:
            ended = dead[index].how or describe_status(dead[index].status)
        is_dead = closed or index in dead
        infos.append(
            ProcessInfo(
                process_index=index,
                pid=report.pid,
                host=report.host,
                devices=report.local_devices,
                engine_id=engine_ids.get(index, -1),
                state="dead" if is_dead else "busy" if index in busy else "ready",
                detail=ended if is_dead else absent.get(index, ""),
            )
        )
    return infos


PROCESS_BYTES = 60 << 20
"""The memory of a process that has computed nothing, apart from what it shares with others."""


class Size(NamedTuple):
    """How a group is started.

    Attributes:
        options: What is asked for.
        placement: Who gets what.
    """

    options: StartOptions
    placement: Placement

    @property
    def numbers(self) -> tuple[int, int]:
        """Processes, and devices of each."""
        return self.placement.num_processes, self.placement.devices_per_process


MOST_PROCESSES = "JAXNB_MAX_PROCESSES"
"""In the notebook kernel's environment: how many processes a group may have. An administrator of
shared machines sets it."""


def require_allowed(placement: Placement) -> None:
    """Checks that a group may have this many processes.

    Raises:
        UsageError: It may not, or what is set is not a number.
    """
    said = os.environ.get(MOST_PROCESSES, "")
    if said and not said.isdecimal():
        raise UsageError(f"{MOST_PROCESSES} must be a number, not {said!r}. Nothing was started.")
    if said and placement.num_processes > int(said):
        raise UsageError(
            f"A group may have at most {plural(int(said), 'process')} here ({MOST_PROCESSES}), not "
            f"{placement.num_processes}. Nothing was changed. Ask for fewer with `-n`."
        )


def require_room(placement: Placement, room: int, ending: int = 0) -> None:
    """Checks that this many processes fit into memory.

    Args:
        placement: Of a group that is to be started.
        room: The bytes that are left where they would be.
        ending: How many processes will have ended by then.

    Raises:
        UsageError: They do not.
    """
    needed = placement.num_processes * PROCESS_BYTES
    free = room + ending * PROCESS_BYTES
    if needed > free:
        n = placement.num_processes
        takes, then = "take", "Ask for fewer with `-n`."
        if n == 1:
            takes, then = "takes", "Free some memory first."
        once = " once the present processes have ended" if ending else ""
        raise UsageError(
            f"{plural(n, 'process')} {takes} at least {format_bytes(needed)} of memory, and "
            f"{format_bytes(free)} is free{once}. Nothing was changed. {then}"
        )
