"""A job of a batch system, or an ``mpiexec``, whose programs are the agents of a group."""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.labels import plural
from jaxnb.launch.dialback import DialBack, Dialled
from jaxnb.launch.folder import command_line
from jaxnb.launch.forkclient import NO_LINES, AgentClient, run_program
from jaxnb.launch.remote import HERE, AgentStart, RemoteShell
from jaxnb.launch.slurm import SRUN
from jaxnb.launch.ssh import SSH
from jaxnb.options import StartOptions, shown_launcher, submits_job

SUBMIT_SECONDS = 60.0
"""So long a batch system may take to accept a job, and ipyparallel to be imported."""

DIAL_SECONDS = 60.0
"""So long the agents of a job that runs may take to connect."""

LOOK_SECONDS = 2.0
"""So long a batch system may take to say what has become of a job."""

CANCEL_SECONDS = 15.0
"""So long it may take to cancel one."""

SOON_SECONDS = 600
"""A job that ends within so many seconds is told of."""

NAMES = {"slurm": "Slurm", "pbs": "PBS", "lsf": "LSF", "sge": "SGE"}
"""What launchers are called that are names."""

RUNNING = "RUNNING"

QUEUED = "queued"
"""The stage of a start in which a job waits for its nodes."""

FAILED = "ipyparallel could not submit a job. Nothing was started."
"""So begins what is told of an error that is not jaxnb's own; why it came is in the log."""

ATTACHED = (
    "On each host an engine of the cluster has started the processes: they end with it, and share "
    "no variables with engines. The engines live on."
)

OF_MPI = (
    "All processes are in one MPI_COMM_WORLD: to replace one, `%spmd_recover` ends all and starts "
    "mpiexec again. Requests and communicators of MPI are lost then."
)

NO_MPI4PY = "mpi4py is not installed: cells cannot use MPI. Type `pip install mpi4py mpi4jax`."

_MANY = 1 << 12

Progress = Callable[[str, str], None]
"""Takes each stage of a start, a restart or a recovery: its name and a detail."""


@dataclass(frozen=True)
class JobState:
    """What has become of a job.

    Attributes:
        state: In the batch system's own words; empty where nobody asks it.
        reason: Why it is in that state, likewise.
        seconds_left: Until its time is up; None if nobody knows.
        is_over: Nothing of it runs on.
        output: The last lines that it wrote, if it is over.
    """

    state: str = ""
    reason: str = ""
    seconds_left: int | None = None
    is_over: bool = False
    output: str = ""

    def __str__(self) -> str:
        return f"{self.state} ({self.reason})" if self.reason else self.state


class Job:
    """Owns a job: it ends when this object is closed, and when this process ends in whatever way.

    A Slurm job that this process runs in is only followed.

    Args:
        options: What was asked for.
        folder: The group's folder on the notebook's host.
        on_notice: Told in another thread, once, that it will end soon.

    Attributes:
        launcher: What submits it.
        is_ours: Whether it is submitted.
        state: What has become of it, as far as is known.
        counts: How many processes each host is to run, by its name; empty if that is left open.
    """

    def __init__(
        self, options: StartOptions, folder: str, on_notice: Callable[[str], None]
    ) -> None:
        self._is_batch = self._has_all_agents = False
        self.launcher, self.state = shown_launcher(options), JobState()
        self.counts: dict[str, int] = {}
        self._options, self._folder, self._on_notice = options, folder, on_notice
        self.is_ours, self._id = submits_job(options), ""
        self._silent_seconds: float | None = None
        self._has_told = False
        self._runs_since: float | None = None
        self._wakes, self._woken = socket.socketpair()
        self._wakes.setblocking(False)
        log_path = os.path.join(folder, "job.log")
        words = command_line("jaxnb.launch.job_keeper", str(os.getpid()))
        self._keeper = AgentClient(run_program(words, log_path), log_path, self._on_event)
        self._keeper.name = "The program that submits the job"
        if not self.is_ours:
            self._id = os.environ["SLURM_JOB_ID"]
            self._keeper.request("follow", self._begun, job_id=self._id)

    def __str__(self) -> str:
        if self._options.attach:
            return f"Cluster {self._options.attach}"
        if not (self._is_batch or not self.is_ours):
            program = "mpiexec" if self.launcher == "mpi" else self.launcher
            return f"{program} (pid {self._id})"
        return f"{NAMES.get(self.launcher, self.launcher)} job {self._id}"

    def submit(self, start: AgentStart, dial_back: Callable[[int], DialBack]) -> DialBack:
        """Submits it.

        Args:
            start: What its agents are started with.
            dial_back: Returns where so many agents connect to.

        Raises:
            StartError: The batch system refuses it.
        """
        asked = self._options
        if asked.attach:
            start = replace(start, python=HERE)
        answer = self._ask(
            "prepare",
            name=self.launcher,
            attach=asked.attach,
            words=start.words,
            folder=self._folder,
            num_processes=asked.num_processes,
            nodes=asked.nodes or 1,
            gpus_per_node=asked.gpus_per_node,
            partition=asked.partition,
            account=asked.account,
            qos=asked.qos,
            time_limit=asked.time_limit,
        )
        self.counts, self._is_batch = answer["counts"], answer["is_batch"]
        where = dial_back(answer["agents"])
        self._begun(self._ask("submit", agents=answer["agents"], variables=where.variables))
        return where

    def _begun(self, answer: dict[str, Any]) -> None:
        self._id, self._silent_seconds = answer["id"], answer["silent_seconds"]

    def remote_shell(self) -> RemoteShell:
        """Returns what to type to run programs on its hosts."""
        if self.launcher == "slurm":
            return replace(SRUN, by_hand=f"srun --jobid={self._id} --overlap -N1 -n1 -w")
        return SSH

    def _ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        try:
            return dict(self._keeper.request(op, **arguments).result(SUBMIT_SECONDS))
        except TimeoutError:
            raise StartError(
                f"`--launcher {self.launcher}` has not submitted a job within "
                f"{SUBMIT_SECONDS:g} s. Nothing was started."
            ) from None
        except StartError as error:
            lines = self._keeper.last_lines()
            has_lines = str(error).startswith(FAILED) and lines != NO_LINES
            raise StartError(f"{error}\n{lines}" if has_lines else str(error)) from None
        except SessionBrokenError as error:
            raise StartError(str(error)) from None

    def agents(self, where: DialBack, progress: Progress) -> Iterator[Dialled]:
        """Yields the connection of each agent, as they come.

        Args:
            where: Where they connect to.
            progress: Told what they wait for.

        Raises:
            StartError: The job is over, or runs and they do not come.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(where.listener, selectors.EVENT_READ)
            selector.register(self._woken, selectors.EVENT_READ)
            for come in range(where.count):
                while where.listener not in self._ready(selector, come, where.count):
                    if self._woken.recv(_MANY) and self.state.state not in ("", RUNNING):
                        progress(QUEUED, f"{self}: {self.state}")
                yield where.accept()
            self._has_all_agents = True

    def _ready(self, selector: selectors.BaseSelector, come: int, count: int) -> list[Any]:
        """Returns what can be read, once something can."""
        left = None
        if self._runs_since is not None:
            left = max(0.0, self._runs_since + DIAL_SECONDS - time.monotonic())
        if self.state.is_over:
            output = f" Its last lines:\n{self.state.output}" if self.state.output else ""
            how = f": {self.state}" if self.state.state else ""
            raise StartError(
                f"{self} was over before its processes began{how}.{self._may_be_there()}{output}"
            )
        if ready := [key.fileobj for key, _ in selector.select(left)]:
            return ready
        raise StartError(
            f"{self} runs, and {count - come} of its {plural(count, 'agent')} have not connected "
            f"to this host within {DIAL_SECONDS:g} s. It was cancelled. The nodes have to reach "
            f"{socket.gethostname()}, on a port that the system chooses, and have the notebook's "
            f"Python at {sys.executable}."
        )

    def _on_event(self, event: dict[str, Any]) -> None:
        if event.pop("event") == "ended":
            how = f"the program that follows it has ended with status {event['status']}"
            event = {"state": how, "is_over": True}
        self.state = JobState(**event)
        if self.state.state == RUNNING and self._runs_since is None:
            self._runs_since = time.monotonic()
        with contextlib.suppress(OSError):  # nobody waits, or it is closed
            self._wakes.send(b"!")
        if self.ends_soon and not self._has_told:
            self._has_told = True
            self._on_notice(self.ends_soon)

    def notes(self, lost_after: float) -> list[str]:
        """Returns what is to be known of it, as sentences.

        Args:
            lost_after: Seconds without an answer after which a host is given up.
        """
        notes = [ATTACHED] if self._options.attach else []
        if self.launcher == "mpi":
            notes += [OF_MPI] if find_spec("mpi4py") else [NO_MPI4PY]
        notes += [self.ends_soon] if self.ends_soon else []
        if self.state.is_over and not self.state.state:  # Open MPI's processes outlive mpiexec
            notes.append(f"{self} has ended, and its processes go on. `%spmd_stop` ends them.")
        if (seconds := self._silent_seconds) and seconds < lost_after:
            notes.append(
                f"Slurm takes a node that does not answer for {seconds:g} s for down, and ends the "
                "job: its SlurmdTimeout is shorter than --lost-after."
            )
        return notes

    @property
    def ends_soon(self) -> str:
        """That it ends within ten minutes, as a sentence; empty if it does not, as far as known."""
        left = self.state.seconds_left
        if left is None or left > SOON_SECONDS or self.state.state != RUNNING:
            return ""
        return (
            f"{self} ends in {max(1, left // 60)} min, and all processes with it. Save what you "
            "need with `%spmd_save`."
        )

    def end_text(self) -> str:
        """Returns that it is over, if it is, as a clause."""
        try:
            now = self._keeper.request("look").result(LOOK_SECONDS)
        except (TimeoutError, StartError, SessionBrokenError):
            return ""
        now.pop("event", None)
        state = JobState(**now)
        return f"{self} has ended{f': {state}' if state.state else ''}" if state.is_over else ""

    def _may_be_there(self) -> str:
        """Returns what to type if nobody knows whether it has ended, as a sentence."""
        if self._keeper.status is None or not self.is_ours or not self._id:
            return ""
        how = f"`scancel {self._id}`" if self.launcher == "slurm" else "your system's command"
        return f" It may still be there: cancel it with {how}."

    def close(self) -> None:
        """Cancels it, unless it is only followed, and waits until that is done.

        Raises:
            SessionBrokenError: That fails, or takes too long, and there are no agents to end it.
        """
        was_over = self.state.is_over  # its keeper's end makes it look so
        self._woken.close()
        self._wakes.close()
        with contextlib.suppress(SessionBrokenError):  # it takes too long, and was killed
            self._keeper.close(CANCEL_SECONDS)
        if self._keeper.status and not (was_over or self._has_all_agents):
            raise SessionBrokenError(f"{self} could not be cancelled.{self._may_be_there()}")
