"""How the agents of a group get to their hosts: each is reached, or a job brings all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from jaxnb.errors import JaxnbError, StartError
from jaxnb.launch.dialback import DialBack
from jaxnb.launch.forkclient import NO_LINES, Reached
from jaxnb.launch.host import facts as facts_here
from jaxnb.launch.job import Job, Progress
from jaxnb.launch.member import Member
from jaxnb.launch.remote import AgentStart, RemoteAgentClient, RemoteShell, reach, travelling

START_SECONDS = 60.0
"""So long all hosts together may take to start their agents, and those to report."""


class AgentStarts:
    """Starts the agents of a group on other hosts.

    Args:
        start: What each is started with; its host is empty.
        remote_shell: What reaches other hosts.
        names: Variables of the notebook's environment that they get, beside JAX's, XLA's and
            NCCL's.
        folder: The group's on the notebook's host.
        on_event: Called in reader threads with the host and each of its events.

    Attributes:
        remote_shell: What reaches other hosts; those of a job as soon as that is known.
    """

    def __init__(
        self,
        start: AgentStart,
        remote_shell: RemoteShell,
        names: Sequence[str],
        folder: str,
        on_event: Callable[[Member, dict[str, Any]], None],
    ) -> None:
        self.remote_shell = remote_shell
        self._start, self._names, self._folder, self._on_event = start, names, folder, on_event
        self._number = 0

    def reached(self, host: str) -> Member:
        """Starts an agent on a host.

        Raises:
            StartError: This machine has no program that reaches it.
        """
        start, log_path = replace(self._start, host=host), self._log_path()
        return self._member(start, reach(self.remote_shell, start, log_path), log_path)

    def dialled(
        self, job: Job, own: Member, certificate: str, progress: Progress
    ) -> Iterator[Member]:
        """Submits a job, and yields its agents as they come.

        Args:
            job: The job.
            own: The notebook's host.
            certificate: The group's.
            progress: Told what the job waits for.

        Raises:
            StartError: It is refused, ends, or its agents do not come.
        """
        where = job.submit(self._start, partial(DialBack, own, certificate))
        self.remote_shell = job.remote_shell()
        try:
            for connection in job.agents(where, progress):
                yield self._member(self._start, connection, self._log_path())
        finally:
            where.close()

    def _log_path(self) -> str:
        self._number += 1
        return os.path.join(self._folder, f"agent-{self._number}.log")

    def _member(self, start: AgentStart, process: Reached, log_path: str) -> Member:
        member = Member(start.host)
        variables, on_event = travelling(os.environ, self._names), partial(self._on_event, member)
        shell = self.remote_shell
        member.client = RemoteAgentClient(process, shell, start, log_path, variables, on_event)
        return member

    def require_fitting(
        self, members: Sequence[Member], ask: Callable[..., Future[Any]], folder: str
    ) -> None:
        """Raises StartError of all hosts that do not answer, or have other versions."""
        deadline = time.monotonic() + START_SECONDS
        own = asdict(facts_here(folder, None))
        asked = [ask(each, "facts", gpus=False) for each in members]
        refused = []
        for member, future in zip(members, asked, strict=True):
            try:
                (facts,) = future.result(max(0.0, deadline - time.monotonic()))["facts"]
                if not member.host:
                    member.name(facts["host"])
                if isinstance(member.client, RemoteAgentClient):
                    self.remote_shell.require_same(member.client.start, facts, own)
                member.folder, member.address = facts["folder"], facts["address"]
            except TimeoutError:
                refused.append(self._no_answer_text(member))
            except JaxnbError as error:
                refused.append(str(error))
        if refused:
            raise StartError("\n".join(refused))

    def _no_answer_text(self, member: Member) -> str:
        last, by_hand = member.client.last_lines(), self.remote_shell.on(member.host)
        return (
            f"No agent could be started on {member.host}: it has not answered for "
            f"{START_SECONDS:g} s. Nothing was started. `{by_hand} true` has to work by itself, "
            f"and quickly.{'' if last == NO_LINES else chr(10) + last}"
        )
