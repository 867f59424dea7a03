"""Pure: what is done, step by step, to free processes from a wait that never ends.

=============  ==================================================================================
stage          what has been done
=============  ==================================================================================
``NONE``       nothing, or it has had its effect
``SHUT``       connections of collectives are shut for reading, once nothing is left to be written
``SHUT_ALL``   all are, whatever is left: who waits to receive on those is freed too
``REPLACE``    neither has had an effect: those that are left are to be replaced, their variables
               rescued first
``ASK``        likewise, but somebody who is left is not known to wait in JAX: it may do something
               of the user's in C code, and the user has to say so
=============  ==================================================================================
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping

SHUT_ALL_SECONDS = 1.0
"""Who still stands at the same place so long after the first step: then the second is taken."""

NO_EFFECT_SECONDS = 2.0
"""The same for the last step, counted from the first too."""


class Stage(enum.Enum):
    """What has been done so far."""

    NONE = 0
    SHUT = 1
    SHUT_ALL = 2
    REPLACE = 3
    ASK = 4


class Escalation:
    """The attempt to free some processes of one cell.

    Attributes:
        stage: What has been done so far.
        processes: Who is to be freed.
    """

    def __init__(self) -> None:
        self.stage = Stage.NONE
        self.processes: frozenset[int] = frozenset()

    def begin(self, processes: Collection[int]) -> bool:
        """Notes that processes are being freed; returns whether that begins now.

        Those that are added while others are being freed already are freed with them.
        """
        is_new = self.stage is Stage.NONE or not self.processes.issuperset(processes)
        self.processes |= frozenset(processes)
        if is_new:
            self.stage = Stage.SHUT
        return is_new

    def look(
        self, still: Mapping[int, float], left: Collection[int], known: Collection[int]
    ) -> Stage | None:
        """Goes on to the next step if the last one has had no effect.

        Args:
            still: For how many seconds processes have stood at one place since the first step, and
                done nothing but wait; who is left out is on the move.
            left: Who is still in the cell.
            known: Who is known to wait in JAX, not in code of the user's.

        Returns:
            The stage, if it is another one now.
        """
        before, stuck = self.stage, self.processes & frozenset(left)
        if before is not Stage.NONE:
            self.processes = stuck
            self.stage = self._next(
                min((still.get(i, 0.0) for i in stuck), default=0.0), left, known
            )
        return None if self.stage is before else self.stage

    def _next(self, seconds: float, left: Collection[int], known: Collection[int]) -> Stage:
        if not self.processes:
            return Stage.NONE
        if self.stage is Stage.SHUT and seconds >= SHUT_ALL_SECONDS:
            return Stage.SHUT_ALL
        if self.stage in (Stage.SHUT_ALL, Stage.ASK) and seconds >= NO_EFFECT_SECONDS:
            is_sure = self.processes == frozenset(left) and self.processes <= frozenset(known)
            return Stage.REPLACE if is_sure else Stage.ASK
        return self.stage
