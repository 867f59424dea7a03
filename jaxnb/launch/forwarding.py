"""Which sockets the tunnel carries between the hosts of a group."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from jaxnb.errors import StartError
from jaxnb.launch.answers import answered
from jaxnb.launch.folder import LOOPBACK
from jaxnb.launch.host import network_towards
from jaxnb.launch.member import Member

FORWARDS = {"ipp": "forwards"} | dict.fromkeys(("sentinel", "direct"), "engine forwards")
"""By the first letters of a socket's name, the role of what carries it between hosts: it ends with
whom the socket belongs to."""

SERVICE_FORWARDS = "service forwards"

CONNECT_SECONDS = 10.0
"""So long it may take to connect to a host."""


class Forwarding:
    """The tunnel between the hosts of a group, as the notebook directs it.

    Args:
        members: The hosts of the processes; the first has what serves the group.
        own: The notebook's.
        ask: Sends a command to one host.
        certificate: The group's.

    Raises:
        StartError: Two names are those of one host, or a host cannot listen.
        SessionBrokenError: A host does not answer.
    """

    def __init__(
        self,
        members: Sequence[Member],
        own: Member,
        ask: Callable[..., Future[Any]],
        certificate: str,
    ) -> None:
        self._members, self._own, self._ask = members, own, ask
        self._published: dict[str, set[str]] = {}
        self._certificate = certificate
        self._open_doors()

    def _open_doors(self) -> None:
        """Has each host listen for the others, who show the group's certificate."""
        remote = next((each for each in self._members if each.is_remote), None)
        here = network_towards(remote.address)["address"] if remote else LOOPBACK
        for member in (self._own, *(each for each in self._members if not each.is_remote)):
            member.address = here
        require_different(self._members)
        asked = [
            (each, self._ask(each, "door", address=each.address, certificate=self._certificate))
            for each in self._members
        ]
        for member, answer in asked:
            member.port = int(answered(member, answer)["line"])
            if member is not self._own:
                require_reachable(member)

    def publish(self) -> None:
        """Has new sockets reached from other hosts: the first host's from all, others' from here.

        Raises:
            StartError: A host cannot listen on them.
            SessionBrokenError: A host is lost.
        """
        live = [each for each in self._members if not each.is_lost]
        asked = [(each, self._ask(each, "sockets")) for each in live]
        forwards = []
        for owner, answer in asked:
            routes: dict[str, list[tuple[str, str, int]]] = {}
            for name in answered(owner, answer)["names"]:
                role = FORWARDS.get(re.split(r"[-:]", name)[0], SERVICE_FORWARDS)
                if all(name not in names for names in self._published.values()):
                    routes.setdefault(role, []).append((name, owner.address, owner.port))
            users = live if owner is self._members[0] else []
            for role, those in routes.items():
                self._published.setdefault(role, set()).update(name for name, *_ in those)
                forwards += [
                    (user, self._ask(user, "forwards", role=role, routes=those,
                                     certificate=self._certificate))
                    for user in {id(each): each for each in (*users, self._own)}.values()
                    if user is not owner
                ]  # fmt: skip
        for user, answer in forwards:
            answered(user, answer)

    def forget(self, roles: Sequence[str]) -> list[str]:
        """Takes what belongs to roles for ended; returns the roles of what has carried it."""
        forwards = forwards_of(roles)
        for role in forwards:
            self._published.pop(role, None)
        return forwards


def forwards_of(roles: Sequence[str]) -> list[str]:
    """Returns the roles of what carries what belongs to roles."""
    return [f"{role} forwards" for role in roles]


def require_different(members: Sequence[Member]) -> None:
    """Raises StartError if two names are those of one host."""
    names: dict[str, str] = {}
    for member in members:
        if not member.is_named:
            continue
        other = names.setdefault(member.address, member.host)
        if other != member.host:
            raise StartError(
                f"{other} and {member.host} are one host ({member.address}). Nothing was started. "
                f"Name it once; `{other}:2` runs two processes there."
            )


def require_reachable(member: Member) -> None:
    """Raises StartError if this machine cannot connect to the door of a host."""
    where = (member.address, member.port)
    try:
        socket.create_connection(where, CONNECT_SECONDS).close()
    except OSError as error:
        raise StartError(
            f"{member.host} has an agent, and {where[0]} port {where[1]} there cannot be reached "
            f"({error}). The hosts of a group, and the notebook's, connect to each other on ports "
            "that the system chooses. Nothing was started. Let a firewall between them pass TCP."
        ) from None
