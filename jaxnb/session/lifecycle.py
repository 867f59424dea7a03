"""The phases of a group, its members, and the sizes that it can have."""

from __future__ import annotations

import enum
import threading
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from jaxnb.errors import UsageError
from jaxnb.labels import format_bytes
from jaxnb.launch.deaths import Death, dead_processes, describe_status
from jaxnb.launch.placement import Placement
from jaxnb.model.group import ProcessInfo, ProcessReport, SessionState
from jaxnb.options import StartOptions

# Processes die when they like, and their deaths are reported from another thread, in the middle of
# whatever the session does. Each change of state therefore looks at the deaths under the same
# lock:
# none is lost while others are taken, and no group is called ready over one.


class Phase(enum.Enum):
    """What a group is in."""

    STARTING = "starting"
    """Its processes are being started or restarted; a death is the start's to report."""
    READY = "ready"
    """Cells may be run on it."""
    BROKEN = "broken"
    """A process has died, or did not come back."""
    COMPUTING = "computing"
    """All came back from a cell, and a computation of it has not ended."""
    STOPPED = "stopped"
    """A restart has stopped its processes and has not got as far as new ones."""
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
        starts: How often its processes have joined: after a recovery, too.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._phase = Phase.STARTING
        self._deaths: tuple[Death, ...] = ()
        self.starts = 0

    @property
    def phase(self) -> Phase:
        """What the group is in."""
        return self._phase

    @property
    def state(self) -> SessionState:
        """The same as users see it; ``"busy"`` is a ready group with a cell."""
        return _SHOWN[self._phase]

    @property
    def is_open(self) -> bool:
        """Nobody has begun to close it."""
        return self._phase not in (Phase.CLOSING, Phase.CLOSED)

    @property
    def deaths(self) -> tuple[Death, ...]:
        """The deaths that nothing has made good yet, in the order in which they were reported."""
        return self._deaths

    @property
    def dead(self) -> set[int]:
        """The processes among them."""
        return dead_processes(self._deaths)

    def note_death(self, death: Death) -> None:
        """Notes a death; a group that was ready, or will be, is broken from then on."""
        with self._lock:
            self._deaths = (*self._deaths, death)
            if self._phase in (Phase.READY, Phase.COMPUTING):
                self._phase = Phase.BROKEN

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
            self._phase = self._allowed(Phase.STARTING)
            return True

    def note_stopped(self) -> None:
        """Notes that a restart has ended the processes; their deaths are of no interest now."""
        with self._lock:
            self._deaths = ()

    def fail_start(self) -> None:
        """Notes that a restart got no further than to stop the processes, if so far."""
        self._move(Phase.STOPPED, Phase.STARTING)

    def finish_start(self) -> bool:
        """Notes that all processes have joined; returns whether the group is ready."""
        self.starts += 1
        with self._lock:
            if self._phase is Phase.STARTING:  # else somebody is closing it
                self._phase = Phase.BROKEN if self._deaths else Phase.READY
            return self._phase is Phase.READY

    def begin_close(self) -> bool:
        """Notes that the group is being ended; returns False if it has been already."""
        with self._lock:
            if self._phase is Phase.CLOSED:
                return False
            self._phase = Phase.CLOSING
            return True

    def finish_close(self) -> None:
        """Notes that the group has ended."""
        self._move(Phase.CLOSED, Phase.CLOSING)

    def _move(self, to: Phase, *of: Phase) -> bool:
        with self._lock:
            if self._phase not in of:
                return False
            self._phase = self._allowed(to)
            return True

    def _allowed(self, to: Phase) -> Phase:
        if to is not self._phase and to not in _NEXT[self._phase]:
            raise ValueError(f"a group that is {self._phase.value} cannot be {to.value}")
        return to


def process_infos(
    reports: Iterable[ProcessReport],
    deaths: Iterable[Death],
    *,
    stopped: Collection[int],
    busy: Collection[int],
    engine_ids: Mapping[int, int],
    closed: bool,
) -> list[ProcessInfo]:
    """Returns the processes, by process index.

    Args:
        reports: What each said at the start.
        deaths: Who has died since.
        stopped: The process indices that are stopped.
        busy: Those that are in a cell.
        engine_ids: Process index to ipyparallel's number.
        closed: The session has been closed.
    """
    dead = {death.index: death for death in deaths if death.role == "engine"}
    infos = []
    for report in reports:
        index = report.process_index
        ended = describe_status(dead[index].status) if index in dead else "stopped"
        is_dead = closed or index in dead
        is_paused = not is_dead and index in stopped
        paused = f"stopped, `kill -CONT {report.pid}` lets it go on" if is_paused else ""
        infos.append(
            ProcessInfo(
                process_index=index,
                pid=report.pid,
                host=report.host,
                devices=report.local_devices,
                engine_id=engine_ids.get(index, -1),
                state="dead" if is_dead else "busy" if index in busy else "ready",
                detail=ended if is_dead else paused,
            )
        )
    return infos


PROCESS_BYTES = 60 << 20
"""What a process takes that has computed nothing, beside what it shares with others."""


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


def require_room(placement: Placement, room: int, there_are: int = 0) -> None:
    """Looks whether so many processes fit into memory at all.

    Args:
        placement: Of a group that is to be started.
        room: The bytes that are left where they would be.
        there_are: Processes that will have ended by then.

    Raises:
        UsageError: They do not.
    """
    needed = placement.num_processes * PROCESS_BYTES
    if needed > room + there_are * PROCESS_BYTES:
        raise UsageError(
            f"{placement.num_processes} processes take at least {format_bytes(needed)} of "
            f"memory, and {format_bytes(room)} is free. Nothing was changed. Ask for fewer (-n)."
        )
