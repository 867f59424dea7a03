"""What a group of processes is, as users see it."""

from __future__ import annotations

from collections.abc import Sequence

from jaxnb import checking
from jaxnb.cluster import ProcessGroup
from jaxnb.deaths import Death
from jaxnb.launch.placement import Placement
from jaxnb.lifecycle import Lifecycle, Phase
from jaxnb.members import process_infos
from jaxnb.model import GroupInfo, ProcessInfo, ProcessReport, SessionState
from jaxnb.options import StartOptions
from jaxnb.result import CellResult
from jaxnb.running import RunningCell
from jaxnb.transport.client import Transport
from jaxnb.verbs import Verbs


class Group(Verbs):
    """The part of a session that tells what its group is.

    Attributes:
        options: How it was started.
    """

    options: StartOptions
    _placement: Placement
    _launcher: str
    _lifecycle: Lifecycle
    _group: ProcessGroup
    _reports: list[ProcessReport]
    _transport: Transport | None
    _current: RunningCell | None
    _left: RunningCell | None
    _last_result: CellResult | None
    _start_seconds: float
    _cells_run: int

    @property
    def state(self) -> SessionState:
        """``"starting"``, ``"ready"``, ``"busy"``, ``"broken"`` or ``"closed"``."""
        state = self._lifecycle.state
        return "busy" if state == "ready" and self._current is not None else state

    @property
    def num_processes(self) -> int:
        """Size of the group."""
        return self._placement.num_processes

    @property
    def processes(self) -> list[ProcessInfo]:
        """The processes, by process index."""
        return process_infos(
            self._reports,
            self.deaths,
            busy=self._in_cells(),
            engine_ids=self._transport.engine_ids if self._transport is not None else {},
            closed=self._lifecycle.phase is Phase.CLOSED,
        )

    @property
    def group(self) -> GroupInfo:
        """The whole group, for display."""
        return GroupInfo(
            processes=tuple(self.processes),
            state=self.state,
            platform=self._placement.platform,
            launcher=self._launcher,
            collectives="nccl" if self._placement.platform == "gpu" else self.options.collectives,
            jax_version=self._reports[0].jax_version,
            start_seconds=self._start_seconds,
            cells_run=self._cells_run,
            last_cell=self._last_result.cell if self._last_result is not None else None,
            running_cell=now.request.cell if (now := self._current) is not None else None,
            check=self.options.check,
            notes=checking.notes(self._reports, self.options.check),
        )

    def helper_pids(self) -> dict[str, int]:
        """Returns the process ids of what serves the group, by what it is."""
        return self._group.helper_pids()

    def __repr__(self) -> str:
        return (
            f"<jaxnb.{type(self).__name__}: {self.num_processes} {self._placement.platform} "
            f"processes, {self.state}>"
        )

    def _in_cells(self) -> dict[int, str]:
        """Returns which processes are in a cell, given up or not, and in which."""
        found = {}
        for running in (self._left, self._current):
            if running is not None:
                doing = f"is in cell [{running.request.cell}]"
                found.update(dict.fromkeys(running.still_in_cell(), doing))
        return found

    @property
    def deaths(self) -> Sequence[Death]:
        """Processes of the group that died without having been told to."""
        return self._lifecycle.deaths
