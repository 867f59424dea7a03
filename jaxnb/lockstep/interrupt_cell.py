"""The notebook's side: asks the conductor to interrupt a cell."""

from __future__ import annotations

import contextlib
from pathlib import Path

from jaxnb.lockstep.connections import connected
from jaxnb.lockstep.wire import Interrupt, Packets

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
