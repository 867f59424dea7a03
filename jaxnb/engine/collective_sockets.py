"""The sockets of gloo, the CPU's collectives: found, and shut to free whoever waits on them."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Collection, Iterator
from pathlib import Path

_LISTENING = "0A"


def _tcp_sockets() -> Iterator[tuple[int, int, int, str]]:
    """Yields descriptor, local port, remote port and state of this process's TCP sockets."""
    known = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(table).read_text().splitlines()[1:]:
                fields = line.split()
                local, remote = (int(end.rpartition(":")[2], 16) for end in fields[1:3])
                known[fields[9]] = (local, remote, fields[3])
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{entry}")
            found = known.get(target.removeprefix("socket:[").removesuffix("]"))
            if found is not None:
                yield (int(entry), *found)


def listening_ports() -> set[int]:
    """Returns the ports that this process listens on."""
    return {local for _, local, _, state in _tcp_sockets() if state == _LISTENING}


def shut_down(ports: Collection[int]) -> int:
    """Shuts the connections down of which one end is one of the ports.

    What waits on them in gloo, in whatever thread, gets an error within milliseconds. The
    collectives of this process are of no use from then on: the group has to be formed anew.

    Args:
        ports: The ports that the group's processes have gloo listen on.

    Returns:
        How many connections there were.
    """
    count = 0
    for descriptor, local, remote, state in _tcp_sockets():
        if state != _LISTENING and (local in ports or remote in ports):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as shared:
                shared.shutdown(socket.SHUT_RDWR)
                count += 1
    return count
