"""A session's group is replaced by a new one, with the variables of the old one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

from jaxnb.errors import UsageError
from jaxnb.labels import capitalized, processes_label
from jaxnb.recovery.messages import Recovered
from jaxnb.recovery.recovering import Carrier, Recovery, wait_for_cells
from jaxnb.session.group import Life
from jaxnb.session.lifecycle import Phase, Size
from jaxnb.session.reach import Reach
from jaxnb.session.starting import Progress
from jaxnb.session.work import Work

COME_BACK_SECONDS = 1.0
"""How long a process that has been interrupted may take to leave its cell: to format its error,
mostly."""


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
        life, work = self._life, self._work
        life.require_open()
        life.require_helpers()
        _ = life.transport  # there is one, else it raises
        generation, left = life.generation, work.left
        unended = wait_for_cells(
            lambda: work.unended() - life.lifecycle.dead,
            come_back_seconds if left is not None else 0.0,
            lambda seconds: left and left.still_in_cell(seconds),
        )
        pids = {report.process_index: report.pid for report in life.reports}
        carrier = Carrier(
            life.sentinels,
            pids,
            lambda: life.lifecycle.dead,
            interrupted,
            notice or self._reach.notice,
            partial(life.require_unchanged, generation),
            is_given_up=bool(unended) or life.lifecycle.phase is Phase.COMPUTING,
        )
        recovery = Recovery(
            carrier,
            self._reach.open_channel,
            life.info,
            partial(life.replace_all, progress, generation, size),
            progress,
            interrupted,
            None if size is None else size.numbers,
        )
        try:
            return recovery.run(unended)
        finally:
            self._reach.notice("")
