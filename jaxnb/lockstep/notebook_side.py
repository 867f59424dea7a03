"""What the notebook asks of a group's conductor."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jaxnb.lockstep.connections import Connection, connected
from jaxnb.lockstep.messages import Asking
from jaxnb.lockstep.wire import Ask, Interrupt, Packets, WireError, unpack_waits
from jaxnb.model.cells import JointRequest
from jaxnb.model.dispatches import CheckMode


class Serials:
    """Numbers cells and joint requests: of several the later one's is larger."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def __next__(self) -> int:
        return next(self._count)

    def joint(self, check: CheckMode, requests: Mapping[int, Any]) -> dict[int, JointRequest]:
        """Makes one question of what several processes are asked together.

        Args:
            check: How the group is checked.
            requests: Process index to request.
        """
        serial, ranks = next(self), tuple(sorted(requests))
        return {i: JointRequest(serial, ranks, check, each) for i, each in requests.items()}


SECONDS = 1.0
"""Who is stopped, and has no room for an interrupt, is not waited for longer."""


def interrupt(conductor: Path, num_processes: int, cell: int) -> None:
    """Has a cell interrupted on all its processes, after the same dispatch on each.

    Args:
        conductor: Where it listens.
        num_processes: Size of the group.
        cell: The cell's serial number.

    Raises:
        OSError: The conductor has ended, or is stopped.
    """
    with contextlib.closing(connected(conductor, SECONDS)) as connection:
        connection.send(Packets(num_processes).pack(Interrupt(cell)))


ANSWER_SECONDS = 0.05
"""An answer takes a fraction of a millisecond; one that has not come by then is read later."""

SILENT_SECONDS = 2.0
"""Who has not answered for so long is silent: on a busy machine an answer may take a while."""


class Looker:
    """Asks one conductor; call :meth:`close` in the end.

    Args:
        conductor: Where it listens.
        num_processes: Size of the group.

    Attributes:
        waits: Who waited when it was last asked; None if that is not known.
    """

    def __init__(self, conductor: Path, num_processes: int) -> None:
        self._path, self._question = conductor, Packets(num_processes).pack(Ask())
        self._connection: Connection | None = None
        self._asked_at: float | None = None
        self.waits: tuple[Asking, ...] | None = None

    def look(self) -> None:
        """Asks who waits, unless a question is without an answer."""
        try:
            if self._connection is None:
                self._connection = connected(self._path, ANSWER_SECONDS)
            if self._asked_at is None:
                self._asked_at = time.monotonic()
                self._connection.send(self._question)
            self.waits, self._asked_at = unpack_waits(self._connection.receive()), None
            self._connection.take()
        except TimeoutError:  # it is busy, or stopped
            self.waits = None
        except (OSError, WireError):  # it has ended, which is told of as the group's death
            self.close()

    def silent_seconds(self) -> float:
        """Returns for how long the conductor has not answered; 0 if it is not silent."""
        seconds = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
        return seconds if seconds >= SILENT_SECONDS else 0.0

    def close(self) -> None:
        """Hangs up."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._asked_at = self.waits = None
