"""The agents of a group over several hosts, behind the interface of one fork server.

Each host has a fork server, its agent: over ssh, or, on the notebook's own host, as a child. The
group's services run on the first host. Processes are named by their index in the group; their
agents find the process ids.

Every host has a folder of the group's, and in all of them a socket has the same name: the tunnel
carries what comes to it from one host to another. Paths in one of them are translated on their way:
the notebook sees those of its own host, each process those of the host that it runs on.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import quote

from jaxnb.errors import JaxnbError, SessionBrokenError, StartError
from jaxnb.launch.answers import joined
from jaxnb.launch.forkclient import NO_LINES, AgentClient, EventHandler, take
from jaxnb.launch.host import facts as facts_here
from jaxnb.launch.host import network_towards
from jaxnb.launch.ssh import SshAgentClient, require_same, travelling
from jaxnb.launch.tunnel import make_certificate
from jaxnb.model.group import HostFacts

START_SECONDS = 60.0
"""So long all hosts together may take to start their agents, and those to report."""

OF_ONE = {"controller", "service"}
"""Commands to the first host's agent."""

SPLIT: Mapping[str, tuple[str, Callable[[Any], int]]] = {
    "engines": ("starts", lambda start: start["join"]["process_index"]),
    "signal": ("processes", lambda index: index),
    "scratch": ("sizes", lambda pair: pair[0]),
    "scratch_hold": ("folders", lambda pair: pair[0]),
}
"""Commands of which each agent gets the part of its processes: the list that is split, and to which
process one of its entries belongs. All others go to all agents."""

SPARES_THE_LOST = {"signal", "look", "stop", "scratch_end"}
"""Commands that concern nothing on a host that is lost: the others' answers are enough."""

FORWARDS = {"ipp": "forwards", "sentinel": "engine forwards"}
"""By the first letters of a socket's name, the role of what carries it between hosts: it ends with
whom the socket belongs to."""

SERVICE_FORWARDS = "service forwards"

TUNNEL_SECONDS = 30.0
"""So long each end of the tunnel may take to be there."""


@dataclass
class Member:
    """A host of the group.

    Attributes:
        host: As the user named it; empty for the notebook's if it runs none of the processes.
        launcher: ``"fork"`` or ``"local"``.
        client: Its agent.
        folder: The group's folder there.
        indices: The processes that run on it.
        pids: Those that have been started and have not ended, to their process ids there.
        address: By which the other hosts reach it.
        port: Of its door.
        is_lost: Its agent has ended without having been told to.
    """

    host: str
    launcher: str
    client: AgentClient = field(init=False)
    folder: str = ""
    indices: range = range(0)
    pids: dict[int, int] = field(default_factory=dict)
    address: str = ""
    port: int = 0
    is_lost: bool = False

    @property
    def is_remote(self) -> bool:
        """Whether it is another host than the notebook's."""
        return isinstance(self.client, SshAgentClient)


class Agents:
    """Owns the agents of several hosts, and passes commands to those that they concern.

    They end, with their descendants and folders, when this object is closed, and when this process
    ends in whatever way.

    Args:
        hosts: Their names, as ssh takes them. The notebook's own needs no ssh.
        on_event: Called in reader threads for every event, to which ``host`` is added. If an agent
            ends, it is told of the agent's death, and then of that of each of its processes.
        launcher: ``"fork"`` or ``"local"``.
        python: The Python on other hosts; empty for the path of the notebook's.
        names: Variables of the notebook's environment that processes on other hosts get, beside
            those of JAX, XLA and NCCL.

    Attributes:
        directory: The group's folder on the notebook's host. Whoever closes this removes it.
        facts: What each host has, in the order of the hosts.

    Raises:
        StartError: A host cannot be reached or has not what it needs; nothing is left on any.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        on_event: EventHandler,
        *,
        launcher: str,
        python: str = "",
        names: Sequence[str] = (),
    ) -> None:
        self.on_event = on_event
        self.launcher = launcher
        self._python = python or sys.executable
        self._names = names
        self._is_closing = False
        self._members: list[Member] = []
        self._published: dict[str, set[str]] = {}
        here = next(filter(is_here, hosts), None)
        # The notebook's own host runs no process then, and one end of the tunnel.
        self._own = self._started(Member(here or "", launcher if here else "local"))
        self.directory = self._own.folder
        try:
            for host in hosts:
                is_own = host == here
                self._members.append(self._own if is_own else self._started(Member(host, launcher)))
            self.facts = self._first_facts()
            self._open_doors()
        except BaseException:
            with suppress(SessionBrokenError):
                self.close()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def _started(self, member: Member) -> Member:
        def on_event(event: dict[str, Any]) -> None:
            self._on_event(member, event)

        if not member.host or is_here(member.host):
            member.client = own = take(member.launcher, on_event)
            member.folder = own.directory
            return member
        member.client = SshAgentClient(
            member.host,
            self._python,
            member.launcher,
            os.path.join(self.directory, f"agent-{len(self._members)}.log"),
            travelling(os.environ, self._names),
            on_event,
        )
        return member

    def _first_facts(self) -> tuple[HostFacts, ...]:
        """Returns what each host has; its versions fit.

        Raises:
            StartError: Of all that do not answer, or have other versions.
        """
        deadline = time.monotonic() + START_SECONDS
        own = asdict(facts_here(self.directory, None))
        asked = [self._ask(each, "facts", gpus=True) for each in self._members]
        found, refused = [], []
        for member, future in zip(self._members, asked, strict=True):
            try:
                (facts,) = future.result(max(0.0, deadline - time.monotonic()))["facts"]
                require_same(member.host, self._python, facts, own)
                member.folder, member.address = facts["folder"], facts["address"]
                found.append(HostFacts(**{**facts, "gpus": tuple(facts["gpus"])}))
            except TimeoutError:
                refused.append(silent(member.host, START_SECONDS))
            except JaxnbError as error:
                refused.append(str(error))
        if refused:
            raise StartError("\n".join(refused))
        return tuple(found)

    # ------------------------------------------------------------------ the tunnel

    def _open_doors(self) -> None:
        """Has each host listen for the others, who show the group's certificate.

        Raises:
            StartError: There is no ``openssl``, or a host cannot listen.
        """
        self._certificate = make_certificate()
        remote = next((each for each in self._members if each.is_remote), None)
        if remote is not None:
            self._own.address = network_towards(remote.address)["address"]
        asked = [
            (each, self._ask(each, "door", address=each.address, certificate=self._certificate))
            for each in self._members
        ]
        for member, answer in asked:
            member.port = int(answer.result(TUNNEL_SECONDS)["line"])

    def publish(self) -> None:
        """Has new sockets reached from other hosts: the first host's from all, others' from here.

        Raises:
            StartError: A host cannot listen on them.
            SessionBrokenError: A host is lost.
        """
        asked = [(each, self._ask(each, "sockets")) for each in self._members]
        forwards = []
        for owner, answer in asked:
            routes: dict[str, list[tuple[str, str, int]]] = {}
            for name in answer.result(TUNNEL_SECONDS)["names"]:
                role = FORWARDS.get(re.split(r"[-:]", name)[0], SERVICE_FORWARDS)
                if all(name not in names for names in self._published.values()):
                    routes.setdefault(role, []).append((name, owner.address, owner.port))
            users = self._members if owner is self._members[0] else []
            for role, those in routes.items():
                self._published.setdefault(role, set()).update(name for name, *_ in those)
                forwards += [
                    self._ask(user, "forwards", role=role, routes=those,
                              certificate=self._certificate)
                    for user in {id(each): each for each in (*users, self._own)}.values()
                    if user is not owner
                ]  # fmt: skip
        for each in forwards:
            each.result(TUNNEL_SECONDS)

    # ------------------------------------------------------------------ who is where

    def place(self, counts: Sequence[int]) -> None:
        """Says how many processes each host runs, in the order of the hosts."""
        first = 0
        for member, count in zip(self._members, counts, strict=True):
            member.indices = range(first, first + count)
            first += count

    def host_of(self, process_index: int) -> str:
        """Returns the name of the host that a process runs on."""
        return self._member_of(process_index).host

    def _member_of(self, process_index: int) -> Member:
        return next(each for each in self._members if process_index in each.indices)

    def address_of(self, process_index: int) -> str:
        """Returns the address by which a process is reached from the other hosts."""
        return self._member_of(process_index).address

    def silent_hosts(self) -> tuple[str, ...]:
        """Returns the hosts that owe an answer."""
        return tuple(each.host for each in self._members if each.client.is_awaited)

    @property
    def pid(self) -> int:
        """The process of the agent on the notebook's host."""
        return self._own.client.pid

    def last_lines(self, lines: int = 20) -> str:
        """Returns the last lines that the same agent wrote to its standard error."""
        return self._own.client.last_lines(lines)

    # ------------------------------------------------------------------ commands

    def request(
        self, op: str, read: Callable[[dict[str, Any]], Any] = dict, **arguments: Any
    ) -> Future[Any]:
        """Sends a command to the agents that it concerns.

        Args:
            op: The command.
            read: Makes the result of the answer, in a reader thread.
            arguments: Those of the command.

        Returns:
            A future of the answer: the first host's to a command for what serves the group, else
            that of all, whose lists are joined in the order of the hosts. If one fails it fails, as
            that of an :class:`~jaxnb.launch.forkclient.AgentClient`. A host that is lost counts
            only if it was to start or hold something.
        """
        if op in OF_ONE:
            first = self._members[0]
            return first.client.request(
                op, lambda answer: read(self._seen(first, answer)), **arguments
            )
        spared = op in SPARES_THE_LOST
        everywhere = self._all() if op == "stop" else self._members
        members = [each for each in everywhere if not (spared and each.is_lost)]
        if op == "stop":
            forwards = [f"{role} forwards" for role in arguments["roles"]]
            arguments["roles"] = [*arguments["roles"], *forwards]
            for role in forwards:
                self._published.pop(role, None)
        if op not in SPLIT:
            asked = {each.host: self._ask(each, op, **arguments) for each in members}
        else:
            name, index_of = SPLIT[op]
            parts = {
                each.host: [x for x in arguments[name] if index_of(x) in each.indices]
                for each in members
            }
            asked = {
                each.host: self._ask(each, op, **{**arguments, name: parts[each.host]})
                for each in members
                if parts[each.host]
            }
        return joined(asked, read, spared=spared)

    def _ask(self, member: Member, op: str, **arguments: Any) -> Future[Any]:
        """Sends a command to one host, in its own terms."""
        if op == "facts":
            arguments = {"environment": dict(os.environ), **arguments}
        if "environment" in arguments and member.is_remote:
            arguments["environment"] = travelling(arguments["environment"], self._names)
        if op == "engines":
            arguments["starts"] = [self._as_on(member, each) for each in arguments["starts"]]

        def read(answer: dict[str, Any]) -> dict[str, Any]:
            if op == "engines":
                member.pids.update(answer["pids"])
            if op == "stop" and "engine" in arguments["roles"]:
                member.pids.clear()
            return answer

        return member.client.request(op, read, **arguments)

    def _as_on(self, member: Member, start: dict[str, Any]) -> dict[str, Any]:
        """Returns what an engine is started with, as it is on its host."""
        environment = start["environment"]
        if member.is_remote:
            environment = travelling(environment, self._names) | start["join"]["environment"]
        there = {name: translated(start[name], self.directory, member.folder)
                 for name in ("connection_info", "join")}  # fmt: skip
        return {**start, **there, "environment": environment}

    def _seen(self, member: Member, answer: dict[str, Any]) -> dict[str, Any]:
        """Returns an answer as the notebook's host has it."""
        return dict(translated(answer, member.folder, self.directory))

    def share_scratch(
        self, files: Mapping[int, str], hosts: Collection[str], step: Callable[[], None]
    ) -> None:
        """Copies files from the folders for variables to those of other hosts.

        Args:
            files: Process index to the name of a file on its host.
            hosts: The hosts that need all of them.
            step: Called before each piece; what it raises ends the copying.

        Raises:
            NotEnoughMemoryError: A host has no room for them.
            SessionBrokenError: A host is lost.
        """
        for index, name in files.items():
            owner = self._member_of(index)
            users = [each for each in self._members if each.host in hosts and each is not owner]
            start, data = 0, "" if not users else None
            while data != "":
                step()
                answer = self._ask(owner, "scratch_read", name=name, start=start)
                data = answer.result(TUNNEL_SECONDS)["data"]
                start += len(base64.b64decode(data))
                for each in [self._ask(u, "scratch_append", name=name, data=data) for u in users]:
                    each.result(TUNNEL_SECONDS)

    # ------------------------------------------------------------------ events and the end

    def _on_event(self, member: Member, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "press":
            self._press(event["index"])
        elif kind == "ended":
            self._lose(member, event)
        else:
            if kind == "died" and event["role"] == "engine":
                member.pids.pop(event["index"], None)
            self.on_event({**event, "host": member.host})

    def _press(self, index: int) -> None:
        """Has the agent of a process interrupt it, and the conductor told once that is done."""
        pressed = self._member_of(index).client.request(
            "signal", processes=[index], interrupts=True
        )
        conductor = self._members[0].client
        pressed.add_done_callback(lambda _: conductor.request("pressed", index=index))

    def _all(self) -> list[Member]:
        """The hosts of the processes, and the notebook's."""
        return [*self._members, *([] if self._own in self._members else [self._own])]

    def _lose(self, member: Member, event: dict[str, Any]) -> None:
        member.is_lost = True
        if self._is_closing:
            return
        role = "connection" if member.is_remote else "fork server"
        last = member.client.last_lines()
        tail = last if last != NO_LINES else ""
        self.on_event({**event, "role": role, "pid": member.client.pid, "tail": tail,
                       "host": member.host})  # fmt: skip
        pids, member.pids = member.pids, {}
        for index, pid in pids.items():
            self.on_event({"event": "died", "role": "engine", "index": index, "pid": pid,
                           "status": None, "tail": "", "host": member.host})  # fmt: skip

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Ends all agents and all their descendants, and waits until they are gone.

        May be called again, also after a call that was interrupted.

        Raises:
            SessionBrokenError: Of those that did not end in time.
        """
        self._is_closing = True
        for member in self._all():
            member.client.end()
        deadline = time.monotonic() + timeout_seconds
        late = []
        for member in self._all():
            try:
                member.client.close(max(0.0, deadline - time.monotonic()))
            except SessionBrokenError as error:
                late.append(str(error))
        if late:
            raise SessionBrokenError("\n".join(late))


# ---------------------------------------------------------------------- parts, which are functions


def is_here(host: str) -> bool:
    """Whether a name is that of the notebook's own host, which takes no ssh."""
    name = socket.gethostname()
    return host in ("localhost", name, name.partition(".")[0])


def silent(host: str, seconds: float) -> str:
    """Returns the refusal of a host that gives no answer."""
    return (
        f"No agent could be started on {host}: it has not answered for {seconds:g} s. Nothing was "
        f"started. `ssh {host} true` has to work by itself, and quickly."
    )


def translated(value: Any, old: str, new: str) -> Any:
    """Returns plain data in which paths in one folder have become paths in another.

    Also in text that is an address (``unix:`` with its path quoted), or JSON.
    """
    if isinstance(value, str):
        forms = {form(old): form(new) for form in (str, quote, lambda path: json.dumps(path)[1:-1])}
        pattern = "|".join(map(re.escape, forms))
        return re.sub(rf"({pattern})(?![^/\s\"',;])", lambda found: forms[found[0]], value)
    if isinstance(value, Mapping):
        return {name: translated(each, old, new) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [translated(each, old, new) for each in value]
    return value
