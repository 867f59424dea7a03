"""The agent: the fork server of a group on another host than the notebook's.

It is started as ``python -m jaxnb.launch.agent LAUNCHER``, over ssh or srun, and commanded by its
standard input and output. Where these do not reach it (a job of a batch system), its environment
has :data:`~jaxnb.launch.tunnel.DIAL_BACK`, and it connects to the notebook's host by itself.

It writes the line :data:`~jaxnb.launch.forkclient.BEGINS`, reads a line with the variables that its
owner adds to its environment, as JSON, makes the group's folder on its host, and is a fork server
from then on. It knows by the end of its standard input that its owner or the connection has ended,
or by the beats that do not come any more.

What needs no secrets is on its command line; all else comes by its standard input, or stands in
that variable.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any, NoReturn

from jaxnb.errors import StartError
from jaxnb.launch import lifeline, tunnel
from jaxnb.launch.folder import make_folder
from jaxnb.launch.forkclient import BEGINS
from jaxnb.launch.forkserver import ForkServer, prepare
from jaxnb.launch.remote import ENDS_WITH_PARENT, LINGERS

FIRST_SECONDS, FIRST_OF_DIALLED_SECONDS = 600.0, 86400.0
"""An agent that hears no first beat for so long ends: what it imports may take long on a slow file
system, and other jobs of a group may wait in a queue. Each beat says how long it may be until the
next."""

CONNECT_SECONDS = 5.0
"""So long an address of the notebook's host may take to answer; then the next one is tried."""


CARRIER_SECONDS = 0.3
"""So long it may take until a process that is killed is known to have ended."""

LINGER_SECONDS = 5
"""MPICH kills all ranks as soon as one has ended, and the notebook would take what carries the
connection of an agent for it: so long the others have to remove what is theirs."""


class Agent(ForkServer):
    """A fork server whose owner is on another host.

    Args:
        command_fd: Where commands are read.
        event_fd: Where events and answers are written.
        folder: The group's folder on this host, removed at the end.
        environment: The host's own variables, to which those of the owner are added.
        peer: Where this agent was started from: other hosts reach it as that one does.
        first_seconds: So long it may be until the first beat.
        lingers: MPICH may have ended its connection, and not the notebook: complete variables stay.
        spawns: Children become programs of their own.
    """

    def __init__(
        self,
        command_fd: int,
        event_fd: int,
        folder: str,
        environment: dict[str, str],
        peer: str,
        first_seconds: float,
        *,
        lingers: bool,
        spawns: bool,
    ) -> None:
        self._environment, self._peer = environment, peer
        self._ends_at = time.monotonic() + first_seconds
        os.set_blocking(event_fd, False)
        # Here its owner is known by the connection only: what is left at its end is its own.
        super().__init__(command_fd, event_fd, os.getpid(), folder, spawns=spawns)
        self._carrier_pid = os.getppid() if lingers else 0

    def _has_lost_owner(self) -> NoReturn:
        # MPICH has killed what carries the connection, or else the notebook has ended. A process
        # closes its files before it is known to have ended.
        deadline = time.monotonic() + CARRIER_SECONDS
        while self._carrier_pid and os.getppid() == self._carrier_pid:
            if time.monotonic() > deadline:
                self._end()
            time.sleep(0.01)
        self._end(keeps_variables=bool(self._carrier_pid))

    def _next_timeout(self) -> float | None:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            self._end()
        due = super()._next_timeout()
        return left if due is None else min(due, left)

    def _wait_to_write(self) -> None:
        if not select.select([], [self._event_fd], [], max(0.0, self._ends_at - time.monotonic()))[
            1
        ]:
            self._end()

    def _do_beat(self, command: dict[str, Any]) -> None:
        self._ends_at = time.monotonic() + command["ends_after"]
        self._emit(reply=command["id"])

    def _execute(self, command: dict[str, Any]) -> None:
        for each in (command, *command.get("starts", ())):
            if "environment" in each:
                each["environment"] = {**self._environment, **each["environment"]}
            if "directory" in each:
                each["directory"] = folder_here(each["directory"])
        if command["op"] == "facts":
            command.setdefault("peer", self._peer)
        if command["op"] == "door":
            command["removes"] = True  # on the notebook's host, the notebook does
        super()._execute(command)


def owner_address(environment: Mapping[str, str]) -> str:
    """Returns where this agent was started from: other hosts reach it as that one does."""
    # srun passes the notebook's variables on, which may have come by ssh themselves.
    found = environment.get("SLURM_LAUNCH_NODE_IPADDR") or environment.get("SSH_CONNECTION", "")
    if not found:
        sys.exit(
            "SSH_CONNECTION, which sshd sets, is not set: what starts this shell has unset it."
        )
    return found.split()[0]


def folder_here(folder: str) -> str:
    """Returns a folder if this host has it and this user may enter it, else the user's home."""
    is_here = os.path.isdir(folder) and os.access(folder, os.X_OK)
    return folder if is_here else os.path.expanduser("~")


def read_line(fd: int) -> bytes:
    """Reads one line and nothing of what follows it; ends this process if its owner has ended."""
    line = b""
    while not line.endswith(b"\n"):
        if not (byte := os.read(fd, 1)):
            sys.exit("The owner of this agent has ended.")
        line += byte
    return line


def dial_back(
    addresses: list[str], port: int, certificate: str, *, options: Collection[str]
) -> tuple[int, str]:
    """Connects to the notebook through its door.

    The agent is a child from now on: this process carries its connection, and ends after it.

    Args:
        addresses: Of the notebook's host; the first that answers is taken.
        port: The door's.
        certificate: The group's.
        options: With :data:`ENDS_WITH_PARENT` the agent ends when who has started this process
            does (on Linux). With :data:`LINGERS` this process stays after the agent's end, until it
            gets SIGTERM.

    Returns:
        In the child, the connection as a file descriptor, and the address.
    """
    address = next(filter(lambda each: _answers(each, port), addresses), None)
    if address is None:
        sys.exit(f"The notebook cannot be reached at {' or '.join(addresses)}, port {port}.")
    ours, theirs = socket.socketpair()
    starter = os.getppid()
    child = os.fork()
    if child:
        theirs.close()
        _end_after(child, LINGER_SECONDS if LINGERS in options else 0)
        if ENDS_WITH_PARENT in options:
            lifeline.die_with_parent(starter, signal.SIGTERM)
        tunnel.dial(ours, address, port, certificate)
    ours.close()
    os.setpgid(0, 0)  # MPICH kills the process groups of all ranks as soon as one has ended
    return theirs.detach(), address


def _end_after(agent_pid: int, linger_seconds: int) -> None:
    """Has this process end after its child, the agent, which is sent on the SIGTERM that comes."""
    is_told = False

    def on_term(*_: object) -> None:
        nonlocal is_told
        is_told = True
        os.kill(agent_pid, signal.SIGTERM)  # nobody has asked for its status: it is there

    def on_end(*_: object) -> None:
        if is_told or not linger_seconds:
            os._exit(0)
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
        signal.alarm(linger_seconds)

    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGCHLD, on_end)


def _answers(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def main() -> None:
    """Runs the agent: ``python -m jaxnb.launch.agent LAUNCHER``."""
    launcher = sys.argv[1]
    dialled = os.environ.pop(tunnel.DIAL_BACK, "")
    if dialled:
        connection_fd, peer = dial_back(*json.loads(dialled), options=sys.argv[2:])
        os.dup2(connection_fd, 0)
        os.dup2(connection_fd, 1)
        os.close(connection_fd)
    else:
        peer = owner_address(os.environ)
    command_fd, event_fd = prepare()
    for name in [each for each in os.environ if each.startswith("IPP_")]:
        del os.environ[name]  # ipyparallel's for its engines: its programs here would take them
    environment = dict(os.environ)
    os.write(event_fd, b"\n" + BEGINS)  # what was printed before may have ended in mid-line
    os.environ.update(json.loads(read_line(command_fd)))
    try:
        folder = make_folder()
    except StartError as error:
        sys.exit(str(error))
    first_seconds = FIRST_OF_DIALLED_SECONDS if dialled else FIRST_SECONDS
    how = {"lingers": LINGERS in sys.argv, "spawns": launcher != "fork"}
    try:
        Agent(command_fd, event_fd, folder, environment, peer, first_seconds, **how).run()
    finally:  # only if it has failed
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
