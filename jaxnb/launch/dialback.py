"""Dial-back: where agents connect to that no standard input reaches.

The notebook's host opens a door of the tunnel, behind which the notebook waits on a Unix socket.
What such an agent needs to come through it stands in one variable of its environment, with the
group's certificate and its key: who has that variable is of the group, and nobody else gets in.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
from typing import IO, Any

import psutil

from jaxnb.launch.answers import answered
from jaxnb.launch.folder import LOOPBACK
from jaxnb.launch.member import Member
from jaxnb.launch.tunnel import AGENTS, DIAL_BACK
from jaxnb.lockstep.connections import refuse_other_users


class Dialled:
    """A connection to an agent, in the place of a process that reaches it: see ``Reached``."""

    pid = 0
    returncode = None

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.stdin: IO[bytes] = connection.makefile("wb")
        self.stdout: IO[bytes] = connection.makefile("rb")

    def send_signal(self, sig: int) -> None:
        """Does nothing: no process of this host is in between but the tunnel's, which goes on."""

    def kill(self) -> None:
        """Ends the connection; the agent ends when it sees that."""
        with contextlib.suppress(OSError):  # it has ended
            self._connection.shutdown(socket.SHUT_RDWR)

    terminate = kill

    def wait(self, timeout: float | None = None) -> None:
        """Waits until the other end has nothing more to say, and ends the connection."""
        if self._connection.fileno() < 0:
            return
        end = select.poll()
        end.register(self._connection, getattr(select, "POLLRDHUP", 0))
        if not end.poll(None if timeout is None else 1000 * timeout):
            raise subprocess.TimeoutExpired("an agent", timeout or 0.0)
        self.kill()
        self._connection.close()


class DialBack:
    """The notebook's side: listens until all agents have connected.

    Args:
        own: The notebook's host.
        certificate: The group's.
        count: How many agents come.

    Raises:
        StartError: This host cannot listen.
        SessionBrokenError: Its fork server has ended.
    """

    def __init__(self, own: Member, certificate: str, count: int) -> None:
        self.count = count
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(own.folder, AGENTS))
        self.listener.listen(count)
        addresses = addresses_here()
        everywhere = "0.0.0.0" if any("." in each for each in addresses) else "::"
        door = own.client.request(
            "door", role="agents' door", address=everywhere, certificate=certificate, most=count
        )
        port = int(answered(own, door)["line"])
        self.variables = {DIAL_BACK: json.dumps([addresses, port, certificate])}

    def accept(self) -> Dialled:
        """Returns the connection of an agent that has come."""
        connection, _ = self.listener.accept()
        refuse_other_users(connection)
        return Dialled(connection)

    def close(self) -> None:
        """Ends the listening."""
        self.listener.close()


def addresses_here(interfaces: dict[str, Any] | None = None) -> list[str]:
    """Returns the addresses by which other hosts may reach this one; IPv4 first.

    Of a host without a network, that of the loopback.
    """
    found = psutil.net_if_addrs() if interfaces is None else interfaces
    addresses = [
        each.address
        for each_of_one in found.values()
        for each in each_of_one
        if each.family in (socket.AF_INET, socket.AF_INET6)
    ]
    reachable = [
        each
        for each in addresses
        if not each.startswith(("127.", "fe80:", "169.254.")) and each != "::1"
    ]
    return sorted(reachable, key=lambda each: ":" in each) or [LOOPBACK]
