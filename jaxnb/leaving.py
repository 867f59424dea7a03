"""Taking processes out of a group that is to reconnect: all that come, the others by force."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from jaxnb.labels import processes_label
from jaxnb.lifecycle import Lifecycle
from jaxnb.model.recovery import Rescued
from jaxnb.recovery.putting_away import LeftGroup, put_away
from jaxnb.recovery.rescue import rescue
from jaxnb.replacing import end_by_force
from jaxnb.starting import Progress
from jaxnb.transport.client import Transport
from jaxnb.transport.sidechannel import Sentinels

FREE_AGAIN_SECONDS = 1.0
"""Who has not come back so long after it was freed is freed again."""


class Free(Protocol):
    """What shuts the connections of collectives."""

    def __call__(self, *, is_all: bool = False) -> None:
        """Frees whoever waits in a collective; with ``is_all`` whatever is left to be sent."""


@dataclass(frozen=True, slots=True)
class Leaver:
    """Takes the processes of a group out of what they are in, before it is left.

    Attributes:
        sentinels: Who answers for the processes.
        send_signal: Sends a signal to processes.
        lifecycle: Knows who has died.
        progress: Told of each stage.
        free: Frees whoever waits in a collective.
    """

    sentinels: Sentinels
    send_signal: Callable[[list[int], int], None]
    lifecycle: Lifecycle
    progress: Progress
    free: Free

    def wait(
        self,
        in_cells: Callable[[], set[int]],
        seconds: float,
        pause: Callable[[float], object],
    ) -> dict[int, Rescued]:
        """Waits for processes that were given up, or ends them.

        Args:
            in_cells: Returns who has not come back.
            seconds: How long to wait.
            pause: Waits for so long at most for one of them.

        Returns:
            What was read out of those that were ended.
        """
        deadline, again = time.monotonic() + seconds, time.monotonic() + FREE_AGAIN_SECONDS
        is_all = False
        while stuck := in_cells() - self.lifecycle.dead:
            now = time.monotonic()
            if now >= deadline:
                return self.end(stuck)
            if now > again:  # there may be new connections; then those that are written to, too
                self.free(is_all=is_all)
                again, is_all = now + FREE_AGAIN_SECONDS, True
            pause(0.05)
        return {}

    def put_away(
        self, transport: Transport, num_processes: int
    ) -> tuple[dict[int, str], dict[int, Rescued]]:
        """Has the living copy what they have, and ends those that cannot.

        Returns:
            Why each of those could not, and what was read out of them.
        """
        living = set(range(num_processes)) - self.lifecycle.dead
        self.progress("copying", f"variables of {processes_label(living)}")
        group = LeftGroup(
            where=self.sentinels.where,
            dead=lambda: self.lifecycle.dead,
            free_all=lambda: self.free(is_all=True),
        )
        failed = put_away(transport, living, group)
        return failed, self.end(failed)

    def end(self, stuck: Collection[int]) -> dict[int, Rescued]:
        """Ends processes by force; returns what was read out of them before."""
        if not stuck:
            return {}
        self.progress("ending by force", processes_label(stuck))
        rescued = rescue(self.sentinels, stuck)
        end_by_force(stuck, self.send_signal, lambda: self.lifecycle.dead)
        return rescued
