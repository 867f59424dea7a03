"""The notebook's side: asks the conductor to interrupt a cell."""

from __future__ import annotations

import socket
from pathlib import Path

from jaxnb.lockstep.wire import Interrupt, Packets


def interrupt(conductor: Path, num_processes: int, cell: int) -> None:
    """Has a cell interrupted on all its processes, after the same dispatch on each.

    Args:
        conductor: Where it listens.
        num_processes: Size of the group.
        cell: The cell's serial number.

    Raises:
        OSError: The conductor has ended.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.connect(str(conductor))
        connection.send(Packets(num_processes).pack(Interrupt(cell)))
