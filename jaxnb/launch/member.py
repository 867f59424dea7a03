"""A host of a group over several, and its agent."""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxnb.launch.forkclient import NO_LINES, AgentClient
from jaxnb.launch.remote import RemoteAgentClient
from jaxnb.model.group import HostFacts


@dataclass
class Member:
    """A host of the group.

    Attributes:
        host: As the user named it; empty for the notebook's if it runs none of the processes.
        client: Its agent.
        facts: What it has, as it was last told.
        folder: The group's folder there.
        indices: The processes that run on it.
        pids: Those that have been started and have not ended, to their process ids there.
        address: By which the other hosts reach it.
        port: Of its door.
        store: What it has in common with hosts with which it shares the folder for variables.
        is_lost: Its agent has ended without having been told to.
        is_named: The user has named it. A job's hosts have no name before their agents come, of
            which there can be several on one host.
    """

    host: str
    client: AgentClient = field(init=False)
    facts: HostFacts = field(init=False)
    folder: str = ""
    indices: list[int] = field(default_factory=list)
    pids: dict[int, int] = field(default_factory=dict)
    address: str = ""
    port: int = 0
    store: str = ""
    is_lost: bool = False
    is_named: bool = True

    def name(self, host: str) -> None:
        """Calls it as its agent says that it is called."""
        assert isinstance(self.client, RemoteAgentClient)
        self.host, self.is_named = host, False
        self.client.called(host)

    @property
    def is_remote(self) -> bool:
        """Whether it is another host than the notebook's."""
        return isinstance(self.client, RemoteAgentClient)

    @property
    def silence(self) -> str:
        """For how long it has not answered, as a clause."""
        return f"{self.host} has not answered for {self.client.silent_seconds:.0f} s"

    def how_it_ended(self, status: int | None) -> str:
        """Returns why all on it have ended, as a clause.

        Args:
            status: The exit status of what reaches it, or of the agent.
        """
        if self.client.is_silent:
            return self.silence
        last = self.client.last_lines(4)
        # Slurm writes in stars why it ends a step; then srun writes more.
        told = next((each for each in last.splitlines() if "***" in each), last.split("\n")[-1])
        why = "" if last == NO_LINES else f" ({told})"
        return f"the connection to its agent ended with status {status}{why}"

    def give_up(self) -> None:
        """Takes a host that is silent for lost; its end has been told of then."""
        if self.client.is_silent and not self.is_lost:
            self.is_lost = True
            self.client.give_up()
            self.client.wait_until_told()


def is_here(host: str) -> bool:
    """Whether a name is that of the notebook's own host, which nothing has to reach."""
    name = socket.gethostname()
    return host.partition("#")[0] in ("localhost", name, name.partition(".")[0])


def name_apart(members: Sequence[Member]) -> None:
    """Gives each agent of a host with several a name of its own: ``hostA#2`` has rank 2."""
    hosts = Counter(each.host for each in members)
    for rank, member in enumerate(members):
        if hosts[member.host] > 1:
            member.name(f"{member.host}#{rank}")
