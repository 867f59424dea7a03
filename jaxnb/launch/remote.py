"""Agents on other hosts, whatever starts them: ssh, or Slurm's srun.

Nothing listens for them: an agent is commanded by the standard input and output of the program that
reaches its host, and ends when these end.
"""

from __future__ import annotations

import json
import re
import shlex
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from subprocess import Popen
from typing import Any

from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.launch.folder import command_line
from jaxnb.launch.forkclient import NO_LINES, AgentClient, EventHandler, Reached, run_program

BEAT_SECONDS = 1.0
"""So often an agent is asked whether it lives."""

MORE_SECONDS = 15.0
"""So much later than it is given up an agent ends by itself; ssh's connection ends in between."""

TRAVELS = ("JAX_", "XLA_", "NCCL_")
"""What the notebook's variables begin with that its processes on other hosts get."""

HERE = "@python"
"""Stands for the Python of who starts an agent."""

ENDS_WITH_PARENT, LINGERS = "--ends-with-parent", "--lingers"
"""Options of an agent that connects to the notebook: see :func:`jaxnb.launch.agent.dial_back`."""

_ENTERS = 'cd -- "$1" 2>/dev/null || cd; shift; exec "$@"'


def travelling(environment: Mapping[str, str], names: Sequence[str] = ()) -> dict[str, str]:
    """Returns the variables that processes on another host get beside the host's own.

    Args:
        environment: The notebook's.
        names: Those that the user has named.
    """
    return {k: v for k, v in environment.items() if k.startswith(TRAVELS) or k in names}


@dataclass(frozen=True)
class AgentStart:
    """What an agent is started with on its host.

    Attributes:
        host: Its host, as the program takes it that reaches it.
        python: The Python there, as a path or a name.
        directory: Where it is to run; in the user's home if the host does not have it.
        launcher: ``"fork"`` or ``"local"``.
        lost_after: Seconds without an answer after which the host is given up.
    """

    host: str
    python: str
    directory: str
    launcher: str
    lost_after: float

    @property
    def words(self) -> list[str]:
        """The agent's command line on its host."""
        _, *agent = command_line("jaxnb.launch.agent", self.launcher)
        return ["/bin/sh", "-c", _ENTERS, "jaxnb", self.directory, self.python, *agent]


@dataclass(frozen=True)
class RemoteShell:
    """A way to run programs on other hosts.

    Attributes:
        by_hand: What to type before a command to run it on the host that follows.
        command: Returns the command line that starts an agent.
        failure: Returns why none has begun, and what to type; None if that is due to the host, and
            not to what reaches it. Takes host, exit status, and what was written to standard error.
    """

    by_hand: str
    command: Callable[[AgentStart], list[str]]
    failure: Callable[[str, int | None, str], tuple[str, str] | None]

    def refusal(self, start: AgentStart, status: int | None, errors: str, printed: str = "") -> str:
        """Returns why no agent could be started on a host, and what to type.

        Args:
            start: What it was started with.
            status: The exit status of what reaches the host.
            errors: What that, or the command on the host, wrote to standard error.
            printed: What was written to standard output; not by the agent.
        """
        found = self.failure(start.host, status, errors)
        reason, then = found or self._of_command(start, status, errors)
        written = [*printed.splitlines(), *errors.splitlines()][-20:]
        shown = "".join(f"\n    {line}" for line in written if line)
        host = start.host
        return f"No agent could be started on {host}: {reason}. Nothing was started. {then}{shown}"

    def on(self, host: str) -> str:
        """Returns what to type before a command to run it on a host."""
        return f"{self.by_hand} {host.partition('#')[0]}"

    def _of_command(self, start: AgentStart, status: int | None, errors: str) -> tuple[str, str]:
        python = shlex.quote(start.python)
        if status in (126, 127):
            return (
                f"it has no Python `{start.python}`",
                "Every host needs the Python of the notebook, with its packages, at the same path.",
            )
        if found := re.search(r"No module named '?([\w.]+)", errors):
            package, *within = found[1].split(".")
            is_older = package == "jaxnb" and within
            return (
                f"{start.python} there has "
                f"{'an older jaxnb' if is_older else f'no package {package}'}",
                "Install there what the notebook has: the same jaxnb and JAX, with "
                f"`{self.on(start.host)} {python} -m pip install …`.",
            )
        return (
            f"what ran there ended with exit status {status} before the agent began",
            f"Try `{self.on(start.host)} {python} -c 'import jaxnb'`.",
        )

    def require_same(
        self, start: AgentStart, facts: Mapping[str, Any], own: Mapping[str, str]
    ) -> None:
        """Refuses an agent with another Python, JAX or jaxnb than the notebook's.

        Args:
            start: What it was started with.
            facts: Its versions, among what it has reported.
            own: The notebook's: ``python``, ``jax``, ``jaxnb``.

        Raises:
            StartError: One differs; of Python, the feature release.
        """
        names = {"python": "Python", "jax": "JAX", "jaxnb": "jaxnb"}
        differing = [name for name in names if _compared(name, facts) != _compared(name, own)]
        if not differing:
            return
        theirs = " and ".join([f"{names[name]} {facts[name]}" for name in differing])
        ours = " and ".join([f"{names[name]} {own[name]}" for name in differing])
        packages = [f"{name}=={own[name]}" for name in differing if name != "python"]
        release = ".".join(own["python"].split(".")[:2])
        then = f"Install Python {release} there, with the same packages, at `{start.python}`."
        if "python" not in differing:
            install = f"{shlex.quote(start.python)} -m pip install {' '.join(packages)}"
            then = f"Install the same there: `{self.on(start.host)} {install}`."
        raise StartError(
            f"{start.host} has {theirs}, and the notebook {ours}: processes of one group need the "
            f"same. Nothing was started. {then}"
        )


def _compared(name: str, versions: Mapping[str, str]) -> list[str]:
    return versions[name].split(".")[: 2 if name == "python" else None]


def reach(remote_shell: RemoteShell, start: AgentStart, log_path: str) -> Popen[bytes]:
    """Starts what starts an agent on another host.

    Args:
        remote_shell: What reaches the host.
        start: What the agent is started with.
        log_path: The file for what that program and the agent write to standard error.

    Raises:
        StartError: This machine has no such program.
    """
    words = remote_shell.command(start)
    try:
        return run_program(words, log_path)
    except FileNotFoundError:
        raise StartError(
            f"No agent could be started on {start.host}: this machine has no program "
            f"`{words[0]}` on PATH. Nothing was started. Install it."
        ) from None


class RemoteAgentClient(AgentClient):
    """Owns an agent on another host.

    The agent, its descendants and its folder end when this object is closed, and when this
    process or the connection ends in whatever way.

    Args:
        process: What reaches the agent: see :func:`reach`.
        remote_shell: What reaches its host.
        start: What the agent is started with.
        log_path: The file for what that program and the agent write to standard error.
        environment: The variables that are added to the host's own.
        on_event: Called in a reader thread for every event.
    """

    def __init__(
        self,
        process: Reached,
        remote_shell: RemoteShell,
        start: AgentStart,
        log_path: str,
        environment: Mapping[str, str],
        on_event: EventHandler,
    ) -> None:
        self.remote_shell, self.start = remote_shell, start
        self.called(start.host)
        first = json.dumps(dict(environment)).encode()
        super().__init__(process, log_path, on_event, first)

    def called(self, host: str) -> None:
        """Takes the name of its host."""
        self.start = replace(self.start, host=host)
        self.name = f"The agent on {host}"

    def begin_beats(self) -> None:
        """Asks the agent once a second whether it lives, from now on: it has imported all."""
        threading.Thread(target=self._beat, name="jaxnb-beats", daemon=True).start()

    def _beat(self) -> None:
        """Asks the agent whether it lives, until it has ended, or is given up."""
        ends_after = self.start.lost_after + MORE_SECONDS
        answer = self.request("beat", ends_after=ends_after)
        # Counted, not timed: this process may be stopped, and its machine asleep.
        while not self._ended.wait(BEAT_SECONDS):
            if answer.done() and self.reads:
                answer = self.request("beat", ends_after=ends_after)
                continue
            self._process.send_signal(signal.SIGCONT)  # what reaches the host may be stopped
            self.silent_seconds += BEAT_SECONDS
            if self.silent_seconds >= self.start.lost_after:
                self.give_up()

    def _ended_error(self) -> SessionBrokenError | StartError:
        if not self.has_begun:
            printed = self.printed.decode(errors="replace")
            return StartError(
                self.remote_shell.refusal(self.start, self.status, self.last_lines(), printed)
            )
        if self.is_silent:
            return SessionBrokenError(
                f"{self.start.host} had not answered for {self.silent_seconds:.0f} s, and was "
                "given up: its processes count as dead. Type `%spmd_recover` for new ones on the "
                "other hosts, or `%spmd_stop`."
            )
        last = self.last_lines()
        return SessionBrokenError(
            f"The connection to {self.start.host} has ended (status {self.status}), and with it "
            "all processes there. Type `%spmd_recover` for new ones on the other hosts, or "
            f"`%spmd_stop`.{'' if last == NO_LINES else chr(10) + last}"
        )

    def silence(self, seconds: float) -> str:
        """Returns that it has not answered for so long, and what to type."""
        return (
            f"{self.start.host} has not answered for {seconds:g} s: it is stopped or overloaded, "
            "or the network is interrupted. Its processes may run on. Once it answers again, type "
            "`%spmd_restart`."
        )

    def _late_error(self, seconds: float) -> SessionBrokenError:
        return SessionBrokenError(
            f"{self.name} did not end within {seconds:.0f} s, and the connection to it was closed: "
            "it ends its processes as soon as its host notices that."
        )
