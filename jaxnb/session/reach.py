"""How a session reaches the processes of its group: their main threads, and around these."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from jaxnb.cells.sinks import StderrNotices
from jaxnb.labels import processes_label
from jaxnb.launch.deaths import Death
from jaxnb.lockstep.messages import Apart, apart, conductor_beside
from jaxnb.lockstep.notebook_side import Looker, interrupt
from jaxnb.model.cells import CellRequest
from jaxnb.model.group import Whereabouts
from jaxnb.options import process_indices
from jaxnb.recovery.files import Contents
from jaxnb.session.group import Life
from jaxnb.session.work import Work
from jaxnb.wire.asking import Channel
from jaxnb.wire.sentinels import TOLD

TOLD_SECONDS = 5.0
"""To look through compiled programs for collectives takes a while."""

DEFINITIONS = "jaxnb.compiled.process_compiled.definitions"
DEFINITIONS_SECONDS = 10.0
"""A process gives up packing its variables sooner."""

COMPUTED_SECONDS = 1.0
"""Who does not answer by then is not known to compute anything."""

FAILURES_SECONDS = 0.5
"""Who does not answer by then is not known to have failed."""


class Reach:
    """Asks and signals the processes of a group; what pulls, cells and the panel need of it.

    Args:
        life: The group.
        work: What is done on it.
    """

    def __init__(self, life: Life, work: Work) -> None:
        self._life, self._work = life, work

    def notice(self, text: str) -> None:
        """Shows who is waited for outside of cells; with an empty text, that this is over."""
        self._work.show_wait(text)

    @property
    def num_processes(self) -> int:
        """Size of the group."""
        return self._life.num_processes

    @property
    def generation(self) -> int:
        """How often the group has been restarted."""
        return self._life.generation

    @property
    def last_cell(self) -> int:
        """The number of the cell that has run last; 0 before the first."""
        return self._work.last_cell or 0

    @property
    def deaths(self) -> Sequence[Death]:
        """Processes of the group that died without having been told to."""
        return self._life.deaths

    def mark_out_of_step(self) -> None:
        """Notes that processes did not come back, so nothing more can be run on the group."""
        self._life.lifecycle.mark_broken()

    # ---------------------------------------------------------------------- main threads

    def channel(self) -> AbstractContextManager[Channel]:
        """Waits until no cell runs, and keeps others out while the channel is used.

        Works on a broken session too, with the processes that are left. SIGINT in the main
        thread ends it with KeyboardInterrupt.
        """
        self._life.require_open()
        return self._work.converse(self.open_channel)

    def open_channel(self, interrupted: threading.Event) -> Channel:
        """Returns a channel, where the turn is ours.

        Args:
            interrupted: Ends what is asked over it, once it is set.
        """
        life = self._life
        self._work.end_wait()
        life.require_open()
        return Channel(
            life.transport.direct,
            lambda: life.deaths,
            self._work.in_cells(),
            life.num_processes,
            interrupted,
            life.cluster.signal,
            self._give_up,
            self.notice,
            lambda requests: life.serials.joint(life.options.check, requests),
            self._why_quiet,
        )

    def _why_quiet(self, processes: Iterable[int]) -> str:
        """Returns what keeps processes from answering, as a clause; empty if that is not known."""
        if stopped := self.stopped_text(processes):
            return stopped
        found = self._life.sentinels.where(processes).items()
        compiling = {i: each.compiling.program for i, each in found if each.compiling is not None}
        if not compiling:
            return ""
        programs = ", ".join(f"`{each}`" for each in sorted(set(compiling.values())))
        are = "is" if len(compiling) == 1 else "are"
        return f"{processes_label(sorted(compiling))} {are} compiling {programs}"

    def _give_up(self, indices: Iterable[int]) -> None:
        self._work.note_stuck(indices)
        self._life.lifecycle.mark_broken()

    def send_interrupt(self, processes: Iterable[int]) -> None:
        """Sends SIGINT to processes; one that runs nothing for the notebook ignores it."""
        self._life.cluster.interrupt(sorted(processes))

    def stopped_text(self, processes: Iterable[int]) -> str:
        """Returns which of processes are stopped, as a clause; empty if none is."""
        return self._life.cluster.stopped_text(processes)

    def silence_text(self, processes: Iterable[int]) -> str:
        """Returns which hosts of processes do not answer, as a clause; empty if all do."""
        return self._life.cluster.silence_text(tuple(processes))

    # ---------------------------------------------------------------------- around these

    def where_told(self, processes: Iterable[int] | None) -> dict[int, Whereabouts]:
        """Does what :meth:`where` does; says who has not answered, and why."""
        found = self.where(processes)
        missing = set(process_indices(processes, self.num_processes)) - found.keys()
        dead = missing & self._life.lifecycle.dead
        notice = StderrNotices().notice
        if dead:
            notice(f"{processes_label(dead)} {'has' if len(dead) == 1 else 'have'} died")
        if silent := missing - dead:
            holds = f"{processes_label(silent)} did not answer: C code keeps Python from running"
            notice(self.stopped_text(silent) or holds)
        return found

    def where(self, processes: Iterable[int] | None = None) -> dict[int, Whereabouts]:
        """Returns where the processes are: Python stacks, also while they wait in C++.

        A process that is dead, stopped, or keeps the lock of its interpreter is left out.

        Args:
            processes: Their indices; all by default.
        """
        life = self._life
        life.require_not_closed()
        asked = process_indices(processes, life.num_processes)
        return dict(sorted(life.sentinels.where(set(asked) - life.lifecycle.dead).items()))

    def told(
        self,
        processes: Iterable[int],
        function: str,
        /,
        seconds: float | None = None,
        **data: Any,
    ) -> dict[int, Any]:
        """Returns what those processes tell of their cell that answer.

        Args:
            processes: Their indices.
            function: Which of ``jaxnb.session.process_endpoint`` is asked.
            seconds: How long an answer may take.
            data: What it is given.
        """
        seconds = TOLD_SECONDS if seconds is None else seconds
        return self._life.sentinels.ask(processes, f"{TOLD}.{function}", seconds=seconds, **data)

    def first_told(self, function: str, seconds: float, **data: Any) -> Any:
        """Returns what a function returns on the first living process; None if it is silent."""
        found = self._life.sentinels.ask(self._living()[:1], function, seconds=seconds, **data)
        return next(iter(found.values()), None)

    def definitions(self) -> Contents | None:
        """Returns what a plan may use of the first living process; None if it is silent."""
        found: Contents | None = self.first_told(DEFINITIONS, DEFINITIONS_SECONDS)
        return found

    def _living(self) -> list[int]:
        return sorted(set(range(self.num_processes)) - self._life.lifecycle.dead)

    def still_computed(self) -> str:
        """Returns what processes have dispatched that has not ended, in words; empty for nothing.

        Who does not answer is not known to compute anything.
        """
        by_text: dict[str, list[int]] = {}
        found = self.told(self._living(), "still_computed", COMPUTED_SECONDS)
        for index, texts in sorted(found.items()):
            for text in texts:
                by_text.setdefault(text, []).append(index)
        return "; ".join(f"{text} on {processes_label(who)}" for text, who in by_text.items())

    def apart(self, silent: Iterable[int] = ()) -> Apart | None:
        """Returns the processes of which not the same has failed; None if there are none.

        Args:
            silent: Who is not asked, as it would not answer.
        """
        asked = set(self._living()) - set(silent)
        return apart(self.told(asked, "failures", FAILURES_SECONDS))

    # ---------------------------------------------------------------------- the conductor

    def is_recorded(self, request: CellRequest) -> bool:
        """Whether processes agree on what a cell dispatches, and keep record of it."""
        return request.check != "off" and not any(r.unrecorded for r in self._life.reports)

    def interrupt_in_lockstep(self, request: CellRequest) -> None:
        """Has a cell's processes raise KeyboardInterrupt after the same dispatch."""
        conductor = conductor_beside(self._life.cluster.service_address)
        with contextlib.suppress(OSError):  # it has ended: the group's death is told of
            interrupt(conductor, self.num_processes, request.serial)

    def looker(self, request: CellRequest) -> Looker | None:
        """Returns what asks the conductor who waits in a cell; None where it is not asked."""
        if not self.is_recorded(request) or self.num_processes < 2:
            return None
        conductor = conductor_beside(self._life.cluster.service_address)
        return Looker(conductor, self.num_processes)
