"""The agents of a group over several hosts, behind the interface of one fork server.

Each host has a fork server, its agent: over ssh or srun, or as a child on the notebook's own host.
The group's services run on the first host. Processes are named by their index in the group; their
agents find the process ids.

Every host has a folder of the group's, and in all of them a socket has the same name: the tunnel
carries what comes to it from one host to another. Paths in one of them are translated on their way:
the notebook sees those of its own host, each process those of the host that it runs on.
"""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.launch.agent_starts import AgentStarts
from jaxnb.launch.answers import answered, joined, translated
from jaxnb.launch.forkclient import NO_LINES, EventHandler, take
from jaxnb.launch.forwarding import Forwarding
from jaxnb.launch.job import Job, Progress
from jaxnb.launch.member import Member, is_here, name_apart
from jaxnb.launch.remote import (
    MORE_SECONDS,
    AgentStart,
    RemoteAgentClient,
    RemoteShell,
    travelling,
)
from jaxnb.launch.ssh import SSH
from jaxnb.launch.tunnel import make_certificate
from jaxnb.model.group import HostFacts
from jaxnb.options import LOST_SECONDS

PIECE_BYTES, PIECES_AHEAD = 256 << 10, 8
"""Of files that other hosts need: so much goes in one message, with others in between, and so many
are on their way."""

OF_ONE = {"controller", "service"}
"""Commands to the first host's agent."""

SPLIT: Mapping[str, tuple[str, Callable[[Any], int]]] = {
    "engines": ("starts", lambda start: start["join"]["process_index"]),
    "signal": ("processes", lambda index: index),
    "scratch": ("sizes", lambda pair: pair[0]),
    "scratch_hold": ("files", lambda pair: pair[0]),
}
"""Commands of which each agent gets the part of its processes: the list that is split, and to which
process one of its entries belongs. All others go to all agents."""

SPARES_THE_LOST = {"signal", "look", "stop", "scratch_end"}
"""Commands that concern nothing on a host that is lost: the others' answers are enough."""


class Agents:
    """Owns the agents of several hosts, and passes commands to those that they concern.

    They end, with their descendants and folders, when this object is closed, and when this process
    ends in whatever way.

    Args:
        hosts: Their names, as what reaches them takes them. The notebook's own needs nothing. None
            if a job has them.
        on_event: Called in reader threads for every event, to which ``host`` is added. If an agent
            ends, it is told of the agent's death, and then of that of each of its processes.
        launcher: ``"fork"`` or ``"local"``.
        python: The Python on other hosts; empty for the path of the notebook's.
        names: Variables of the notebook's environment that processes on other hosts get, beside
            those of JAX, XLA and NCCL.
        lost_after: Seconds without an answer after which a host is given up.
        remote_shell: What reaches other hosts.
        make_job: Makes a job, of the group's folder on this host. Its agents connect by themselves,
            unless this process runs in it.

    Attributes:
        directory: The group's folder on the notebook's host. Whoever closes this removes it.

    Raises:
        StartError: This machine has not what reaches hosts; nothing is left.
    """

    def __init__(
        self,
        hosts: Sequence[str],
        on_event: EventHandler,
        *,
        launcher: str,
        python: str = "",
        names: Sequence[str] = (),
        lost_after: float = LOST_SECONDS,
        remote_shell: RemoteShell = SSH,
        make_job: Callable[[str], Job] | None = None,
    ) -> None:
        self.on_event = on_event
        self._names, self._lost_after = names, lost_after
        self._directory = os.getcwd()
        self._is_up = self._is_closing = self._job_is_over = False
        self._members: list[Member] = []
        self._forwarding: Forwarding | None = None
        self._telling = threading.Lock()
        self._job: Job | None = None
        here = next(filter(is_here, hosts), None)
        # The notebook's own host runs no process then, and one end of the tunnel.
        self._own = Member(here or "")
        on_event_here = partial(self._on_event, self._own)
        self._own.client = own = take(launcher if here else "local", on_event_here)
        self.directory = self._own.folder = own.directory
        start = AgentStart("", python or sys.executable, self._directory, launcher, lost_after)
        self._starts = AgentStarts(start, remote_shell, names, self.directory, self._on_event)
        try:
            self._job = make_job(self.directory) if make_job is not None else None
            for host in hosts:
                member = self._own if host == here else self._starts.reached(host)
                self._members.append(member)
        except BaseException:
            with suppress(SessionBrokenError):
                self.close()
            shutil.rmtree(self.directory, ignore_errors=True)
            raise

    def gather(self, progress: Progress) -> None:
        """Waits until all agents are there, and connects the hosts.

        Args:
            progress: Told what a job waits for.

        Raises:
            StartError: A host cannot be reached, or has not what it needs. Whoever closes this ends
                what has started.
        """
        certificate = make_certificate()
        if self._job is not None and self._job.is_ours:
            for member in self._starts.dialled(self._job, self._own, certificate, progress):
                self._members.append(member)
        self._starts.require_fitting(self._members, self._ask, self.directory)
        if not self._is_named:
            self._members.sort(key=lambda each: each.facts.rank)
            name_apart(self._members)
        self._forwarding = Forwarding(self._members, self._own, self._ask, certificate)
        self._is_up = True
        for member in self._members:
            if isinstance(member.client, RemoteAgentClient):
                member.client.begin_beats()

    @property
    def _is_named(self) -> bool:
        """Whether the user has named the hosts: a job's agents come by themselves."""
        return self._job is None or not self._job.is_ours

    def by_hand(self, host: str) -> str:
        """Returns what to type before a command to run it on a host."""
        return self._starts.remote_shell.on(host)

    def publish(self) -> None:
        """Has new sockets reached from other hosts.

        Raises:
            StartError: A host cannot listen on them, or is lost.
        """
        try:
            self._tunnel.publish()
        except SessionBrokenError as error:
            raise StartError(str(error)) from None

    @property
    def _tunnel(self) -> Forwarding:
        assert self._forwarding is not None, "the agents are not there yet"
        return self._forwarding

    # ------------------------------------------------------------------ who is where

    def place(self, counts: Sequence[int]) -> None:
        """Says how many processes each host runs, in the order of the hosts.

        The processes of those that are lost run on the others.
        """
        first = 0
        for member, count in zip(self._members, counts, strict=True):
            member.indices = [*range(first, first + count)]
            first += count
        self._move_from_lost()

    def _move_from_lost(self) -> None:
        """Has new processes in the place of those on lost hosts run on the others."""
        left = [each for each in self._members if not each.is_lost]
        for lost in (each for each in self._members if each.is_lost and left):
            for index in lost.indices:
                min(left, key=lambda each: len(each.indices)).indices.append(index)
            lost.indices = []

    def give_up_silent(self) -> None:
        """Takes hosts that do not answer for lost; the deaths of their processes are told of."""
        for each in self._all():
            each.give_up()
        self._move_from_lost()

    def host_of(self, process_index: int) -> str:
        """Returns the name of the host that a process runs on."""
        return self._member_of(process_index).host

    def hosts_after(self, process_indices: Collection[int]) -> set[str]:
        """Returns the hosts on which new processes in the place of these may run."""
        gone = set(self.lost())
        hosts = set(map(self.host_of, process_indices))
        return hosts if not hosts & gone else {each.host for each in self._members} - gone

    def names(self) -> tuple[str, ...]:
        """Returns all hosts that run processes, in their order, as ``--hosts`` names them."""
        counts = self._job.counts if self._job is not None else {}
        names = [each.host for each in self._members]
        return tuple(f"{each}:{counts[each]}" if each in counts else each for each in names)

    def lost(self) -> tuple[str, ...]:
        """Returns the hosts that are lost, or silent."""
        return tuple(each.host for each in self._members if each.is_lost or each.client.is_silent)

    def notes(self) -> list[str]:
        """Returns what is to be known of the hosts, as sentences."""
        elsewhere = [
            f"{each.host} had no directory {self._directory} when the group was started: its "
            f"processes began in {each.facts.directory}."
            for each in self._members
            if each.is_remote and each.facts.directory != self._directory
        ]
        of_job = self._job.notes(self._lost_after) if self._job is not None else []
        lost = () if self._job_is_over else self.lost()
        return [*of_job, *map(left_out_text, lost), *elsewhere]

    def _member_of(self, process_index: int) -> Member:
        return next(each for each in self._members if process_index in each.indices)

    def address_of(self, process_index: int) -> str:
        """Returns the address by which a process is reached from the other hosts."""
        return self._member_of(process_index).address

    def silent(self, process_indices: Collection[int]) -> dict[str, str]:
        """Returns the hosts of processes that do not answer, with a clause that says so."""
        return {
            each.host: each.silence
            for each in self._members
            if each.client.is_silent and not each.is_lost
            if any(index in process_indices for index in each.indices)
        }

    def silence(self, seconds: float) -> str:
        """Returns which agents owe an answer for so long, as sentences."""
        silent = [each for each in self._members if each.client.is_awaited]
        return " ".join(each.client.silence(seconds) for each in silent)

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
        is_of_notebook = op == "stop" or op.startswith("scratch")
        everywhere = self._all() if is_of_notebook else self._members
        if op not in ("signal", "look"):
            self.give_up_silent()  # nothing waits for them
        members = [each for each in everywhere if not (each.is_lost or each.client.is_silent)]
        if op == "stop" and self._forwarding is not None:
            roles = arguments["roles"]
            arguments["roles"] = [*roles, *self._forwarding.forget(roles)]
        if op == "facts":
            members = everywhere  # in the order of the hosts
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
                if parts[each.host] or op.startswith("scratch")
            }
        if op == "signal":  # nothing follows from its answer, and a link may just have been cut
            asked = {each.host: asked[each.host] for each in members
                     if each.host in asked and not each.is_remote}  # fmt: skip
        return joined(asked, read, spared=spared)

    def _ask(self, member: Member, op: str, **arguments: Any) -> Future[Any]:
        """Sends a command to one host, in its own terms."""
        if op == "facts" and member.is_lost:
            known: Future[Any] = Future()
            known.set_result({"facts": [asdict(member.facts)]})
            return known
        if op == "facts":
            arguments = {"environment": dict(os.environ), **arguments}
        if "environment" in arguments and member.is_remote:
            arguments["environment"] = travelling(arguments["environment"], self._names)
        if op == "engines":
            arguments["starts"] = [self._as_on(member, each) for each in arguments["starts"]]

        def read(answer: dict[str, Any]) -> dict[str, Any]:
            if op == "facts":
                member.facts = HostFacts.from_plain(*answer["facts"])
            if op == "engines":
                member.pids.update(answer["pids"])
            if op == "scratch":
                member.store = answer["store"]
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
            step: Called before each piece, and while one is waited for; what it raises ends the
                copying.

        Raises:
            NotEnoughMemoryError: A host has no room for them.
            SessionBrokenError: A host is lost.
        """
        for index, name in files.items():
            owner = self._member_of(index)
            needing = {each.store: each for each in self._members if each.host in hosts}
            users = [each for store, each in needing.items() if store != owner.store]
            starts = itertools.count(0, PIECE_BYTES)
            read: deque[Future[Any]] = deque()
            written: deque[tuple[Member, Future[Any]]] = deque()
            data = "begins" if users else ""
            while data:
                step()
                while len(read) < PIECES_AHEAD:
                    piece = {"name": name, "start": next(starts), "size": PIECE_BYTES}
                    read.append(self._ask(owner, "scratch_read", **piece))
                data = answered(owner, read.popleft(), step)["data"]
                written += [
                    (u, self._ask(u, "scratch_append", name=name, data=data)) for u in users
                ]
                while len(written) > (PIECES_AHEAD * len(users) if data else 0):
                    answered(*written.popleft(), step)

    # ------------------------------------------------------------------ events and the end

    def _on_event(self, member: Member, event: dict[str, Any]) -> None:
        kind = event["event"]
        if not self._is_up:
            return  # who starts it hears of that by an answer that does not come
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
        if self._is_closing:
            return
        member.is_lost = True
        self._move_from_lost()
        last = member.client.last_lines()
        tail = last if last != NO_LINES else ""
        job = self._job.end_text() if self._job and not member.client.is_silent else ""
        own = {**event, "pid": member.client.pid, "tail": tail, "host": member.host}
        if job and not self._is_named:  # all hosts are lost with it: the first of them tells so
            with self._telling:  # before any of them tells of its processes
                if not self._job_is_over:
                    self._job_is_over = True
                    self.on_event({**own, "role": "job", "how": job})
        elif member in (self._own, self._members[0]):  # else it had nothing but its processes
            role = "connection" if member.is_remote else "fork server"
            how = f"was given up: {member.silence}" if member.client.is_silent else ""
            if not self._is_named and not how:
                role, how = "job", f"{self._job} has ended, or its connection from {member.host}"
            self.on_event({**own, "role": role, "how": how})
        pids, member.pids = member.pids, {}
        how = f"was lost with its host: {job or member.how_it_ended(event['status'])}"
        for index, pid in pids.items():
            died = {"event": "died", "role": "engine", "status": None, "tail": "", "how": how}
            self.on_event({**died, "index": index, "pid": pid, "host": member.host})

    def close(self, timeout_seconds: float = 10.0) -> None:
        """Ends all agents and all their descendants, and waits until they are gone.

        May be called again, also after a call that was interrupted.

        Raises:
            SessionBrokenError: Of those that did not end in time.
        """
        self._is_closing = True
        for member in self._all():
            if member.client.is_silent:
                member.client.give_up()
        seconds = self._lost_after + MORE_SECONDS
        late = [left_text(each.host, seconds) for each in self._all() if each.client.is_silent]
        others = [each for each in self._all() if each is not self._own]
        for members in (others, [self._own]):  # whose end cuts what has dialled back
            for member in members:
                member.client.end()
            deadline = time.monotonic() + timeout_seconds
            for member in members:
                try:
                    member.client.close(max(0.0, deadline - time.monotonic()))
                except SessionBrokenError as error:
                    late.append(str(error))
        if self._job is not None:
            try:
                self._job.close()
            except SessionBrokenError as error:
                late.append(str(error))
        if late:
            raise SessionBrokenError("\n".join(late))


def left_out_text(host: str) -> str:
    """Returns what is to be known of a host that is lost or silent, as sentences."""
    return (
        f"{host} is lost, or does not answer: new processes start on the other hosts. To have it "
        "in a group again, type `%spmd_stop`, and start another one."
    )


def left_text(host: str, seconds: float) -> str:
    """Returns what a host that was given up may still have, and until when."""
    return (
        f"{host} does not answer, and was given up. What runs there ends by itself {seconds:g} s "
        "after it was last heard of, or as soon as its agent, if it is stopped, goes on."
    )
