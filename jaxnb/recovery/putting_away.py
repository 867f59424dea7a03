"""The notebook's side of the first step of a reconnect: every process copies what it has.

Nothing is lost yet by who cannot: it can be replaced, with its variables read out. So all that may
block or fail in a process is done in this step, and nobody waits for it at the new coordination
service.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from jaxnb.model import ReformRequest, RequestFailed, Whereabouts
from jaxnb.model.recovery import PutAway
from jaxnb.transport.client import Exchange, Reply, Transport

SETTLE_SECONDS = 1.5
"""So long a process itself waits for what it has under way, and computes nothing."""

STUCK_SECONDS = 1.0
"""Who stands still for so long, beyond what settling may take, is freed."""

NO_EFFECT_SECONDS = 2.0
"""Who still does so long after that is replaced."""

LOOK_SECONDS = 0.25
"""How often who has not answered is looked at."""

COMPUTES = 0.1
"""Of a processor: who copies, or computes what was under way, uses more."""

SILENT_SECONDS = 6.0
"""So much longer it is waited for who tells nothing."""

MAX_SECONDS = 30.0
"""So long at most for who computes all the while: it need not be the main thread that does."""


@dataclass(frozen=True, slots=True)
class LeftGroup:
    """What is needed of the group that is being left.

    Attributes:
        where: Returns where processes are, for those that tell.
        dead: Returns who has died so far.
        free_all: Shuts all connections of collectives, whatever is left to be sent.
    """

    where: Callable[[Collection[int]], Mapping[int, Whereabouts]]
    dead: Callable[[], Collection[int]]
    free_all: Callable[[], None]


class _Watch:
    """Tells for how long a process has computed nothing, since it was asked."""

    def __init__(self, now: float) -> None:
        self._begun = self._looked = self._since = now
        self._used: float | None = None

    def is_stuck(self, where: Whereabouts | None, now: float, seconds: float) -> bool:
        """Looks at it again; returns whether it has computed nothing for so long.

        A process that is silent is given longer: on a busy machine its sentinel is late too.
        """
        if where is None:
            return now - self._since > seconds + SILENT_SECONDS
        used, self._used = self._used, where.cpu_seconds
        elapsed, self._looked = now - self._looked, now
        computes = used is None or where.cpu_seconds - used > COMPUTES * elapsed
        if (computes or where.runnable) and now - self._begun < MAX_SECONDS:
            self._since = now
        return now - self._since > seconds


def put_away(transport: Transport, processes: Collection[int], group: LeftGroup) -> dict[int, str]:
    """Has processes copy what belongs to their backends to host memory.

    Who does not answer, and computes nothing either, is freed by all means, and then given up.

    Args:
        transport: The connection.
        processes: The living processes, none of which is in a cell.
        group: Their group.

    Returns:
        Those that cannot, and why, as the end of a sentence; they have to be replaced.
    """
    exchange = transport.send({i: ReformRequest(PutAway()) for i in processes})
    started = looked = time.monotonic()
    left, failed = set(processes), dict[int, str]()
    watches = {i: _Watch(started) for i in processes}
    was_freed = False
    while left := left - set(group.dead()):
        answered = _take(exchange, failed)
        left -= answered
        now = time.monotonic()
        if not left or now - looked < LOOK_SECONDS:
            continue
        looked, found = now, group.where(left)
        seconds = SETTLE_SECONDS + (NO_EFFECT_SECONDS if was_freed else STUCK_SECONDS)
        stuck = [i for i in left if watches[i].is_stuck(found.get(i), now, seconds)]
        if stuck and not was_freed:
            group.free_all()
            was_freed = True
        elif stuck:
            failed |= dict.fromkeys(stuck, "did not come back from what it was in")
        left -= failed.keys()
    return failed


def _take(exchange: Exchange, failed: dict[int, str]) -> set[int]:
    """Takes what has come; returns who has answered, and notes who failed."""
    answered = set()
    for event in (exchange.get(0.05), *exchange.drain()):
        if isinstance(event, Reply):
            answered.add(event.process_index)
            if isinstance(event.answer, RequestFailed):
                failed[event.process_index] = f"raised {event.answer.error}"
    return answered
