"""The sockets of gloo, the CPU's collectives: found, and shut to free whoever waits on them."""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Collection, Iterator


def _tcp_sockets() -> Iterator[socket.socket]:
    """Yields this process's TCP sockets, each open by another descriptor for as long as it is used.

    The sockets are asked themselves: ``/proc/net/tcp`` lists all connections of the host, which
    takes the kernel 5 ms where there are few of them.
    """
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # other threads close theirs meanwhile
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with _shared(int(entry)) as shared:
                is_ip = shared.family in (socket.AF_INET, socket.AF_INET6)
                if is_ip and shared.type == socket.SOCK_STREAM:
                    yield shared


def _shared(fd: int) -> socket.socket:
    """Returns an open socket as an object of its own; whether it waits stays as it is.

    Where the user has called ``socket.setdefaulttimeout()`` Python has each new object wait for
    nothing, and with it all that share the socket.
    """
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    shared = socket.socket(fileno=os.dup(fd))
    if fcntl.fcntl(fd, fcntl.F_GETFL) != flags:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags)
    return shared


def _is_listening(shared: socket.socket) -> bool:
    return bool(shared.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))


def listening_ports() -> set[int]:
    """Returns the ports that this process listens on."""
    return {each.getsockname()[1] for each in _tcp_sockets() if _is_listening(each)}


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
    for shared in _tcp_sockets():
        with contextlib.suppress(OSError):  # it is not connected (any more)
            ends = {shared.getsockname()[1], shared.getpeername()[1]}
            if not ends.isdisjoint(ports):
                shared.shutdown(socket.SHUT_RDWR)
                count += 1
    return count
