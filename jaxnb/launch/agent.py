"""The agent: the fork server of a group on another host than the notebook's.

It is started as ``python -m jaxnb.launch.agent LAUNCHER``, over ssh or srun. It writes the line
:data:`~jaxnb.launch.forkclient.BEGINS`, reads a line with the variables that its owner adds to its
environment, as JSON, makes the group's folder on its host, and is a fork server from then on. It
knows by the end of its standard input that its owner or the connection has ended, or by the beats
that do not come any more.

What needs no secrets is on its command line; all else comes by its standard input.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from jaxnb.errors import StartError
from jaxnb.launch.folder import make_folder
from jaxnb.launch.forkclient import BEGINS
from jaxnb.launch.forkserver import ForkServer, prepare

FIRST_SECONDS = 600.0
"""An agent that hears no first beat for so long ends: what it imports may take long on a slow file
system. Each beat says how long it may be until the next."""


class Agent(ForkServer):
    """A fork server whose owner is on another host.

    Args:
        command_fd: Where commands are read.
        event_fd: Where events and answers are written.
        folder: The group's folder on this host, removed at the end.
        environment: The host's own variables, to which those of the owner are added.
        spawns: Children become programs of their own.
    """

    def __init__(
        self,
        command_fd: int,
        event_fd: int,
        folder: str,
        environment: dict[str, str],
        *,
        spawns: bool,
    ) -> None:
        self._environment = environment
        self._ends_at = time.monotonic() + FIRST_SECONDS
        # Here its owner is known by the connection only: what is left at its end is its own.
        super().__init__(command_fd, event_fd, os.getpid(), folder, spawns=spawns)

    def _next_timeout(self) -> float | None:
        left = self._ends_at - time.monotonic()
        if left <= 0:
            self._end()
        due = super()._next_timeout()
        return left if due is None else min(due, left)

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
            command.setdefault("peer", owner_address(os.environ))
        if command["op"] == "door":
            command["removes"] = True  # on the notebook's host, the notebook does
        super()._execute(command)


def owner_address(environment: Mapping[str, str]) -> str:
    """Returns where this agent was started from: other hosts reach it as that one does."""
    # srun passes the notebook's variables on, which may have come by ssh themselves.
    return environment.get("SLURM_LAUNCH_NODE_IPADDR") or environment["SSH_CONNECTION"].split()[0]


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


def main() -> None:
    """Runs the agent: ``python -m jaxnb.launch.agent LAUNCHER``."""
    launcher = sys.argv[1]
    command_fd, event_fd = prepare()
    environment = dict(os.environ)
    os.write(event_fd, b"\n" + BEGINS)  # what was printed before may have ended in mid-line
    os.environ.update(json.loads(read_line(command_fd)))
    try:
        folder = make_folder()
    except StartError as error:
        sys.exit(str(error))
    Agent(command_fd, event_fd, folder, environment, spawns=launcher != "fork").run()


if __name__ == "__main__":
    main()
