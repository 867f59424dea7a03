"""Agents over ssh: started by the user's own OpenSSH, with its configuration, keys and jump hosts.

Nothing listens for them: an agent is commanded by the connection's standard input and output, and
ends when that ends. ssh asks for no password and accepts no unknown host: both would need a
terminal, so they are refused with what to type in one.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.launch.folder import command_line
from jaxnb.launch.forkclient import AgentClient

CONNECT_SECONDS = 10
"""So long a host may take to accept a connection, the exchange of keys included."""

ALIVE_SECONDS = 5
"""So often ssh asks a host's sshd whether it lives."""

OPTIONS = {
    "BatchMode": "yes",
    "ConnectTimeout": CONNECT_SECONDS,
    "ServerAliveInterval": ALIVE_SECONDS,
    # A shared connection would outlive the agent, and end it together with others.
    "ControlMaster": "no",
    "ControlPath": "none",
    # What the user has configured for terminals on that host.
    "ClearAllForwardings": "yes",
    "RemoteCommand": "none",
    "LogLevel": "ERROR",
}

BEAT_SECONDS = 1.0
"""So often an agent is asked whether it lives."""

MORE_SECONDS = 15.0
"""So much later than it is given up an agent ends by itself; ssh's connection ends in between."""

SSH_FAILED = 255
"""ssh's own exit status if the connection failed; else it is the remote command's."""

TRAVELS = ("JAX_", "XLA_", "NCCL_")
"""What the notebook's variables begin with that its processes on other hosts get."""

_ENTERS = 'cd -- "$1" 2>/dev/null || cd; shift; exec "$@"'


def travelling(environment: Mapping[str, str], names: Sequence[str] = ()) -> dict[str, str]:
    """Returns the variables that processes on another host get beside the host's own.

    Args:
        environment: The notebook's.
        names: Those that the user has named.
    """
    return {k: v for k, v in environment.items() if k.startswith(TRAVELS) or k in names}


def ssh_command(
    host: str, python: str, directory: str, launcher: str, lost_after: float
) -> list[str]:
    """Returns the command line that starts an agent on a host.

    Args:
        host: As ssh takes it: ``user@host``, or a name of the user's configuration.
        python: The Python there, as a path or a name.
        directory: Where it is to run; in the user's home if the host does not have it.
        launcher: ``"fork"`` or ``"local"``.
        lost_after: Seconds without an answer after which the host is given up.
    """
    _, *agent = command_line("jaxnb.launch.agent", launcher)
    # The user's shell there need not be a POSIX one.
    remote = shlex.join(["exec", "/bin/sh", "-c", _ENTERS, "jaxnb", directory, python, *agent])
    most = {"ServerAliveCountMax": int(lost_after / ALIVE_SECONDS) + 2}
    settings = (OPTIONS | most).items()
    options = [word for name, value in settings for word in ("-o", f"{name}={value}")]
    return ["ssh", "-T", *options, "--", host, remote]


class SshAgentClient(AgentClient):
    """Owns an agent on another host.

    The agent, its descendants and its folder end when this object is closed, and when this
    process or the connection ends in whatever way.

    Args:
        host: As ssh takes it.
        python: The Python there.
        launcher: ``"fork"`` or ``"local"``.
        log_path: The file for what ssh and the agent write to standard error.
        environment: The variables that are added to the host's own.
        lost_after: Seconds without an answer after which it is given up, once it is asked for one.
        on_event: Called in a reader thread for every event.

    Raises:
        StartError: This machine has no ssh.
    """

    def __init__(
        self,
        host: str,
        python: str,
        launcher: str,
        log_path: str,
        environment: Mapping[str, str],
        lost_after: float,
        on_event: Callable[[dict[str, Any]], None],
    ) -> None:
        self.host = host
        self.name = f"The agent on {host}"
        self._python, self._lost_after = python, lost_after
        words = ssh_command(host, python, os.getcwd(), launcher, lost_after)
        try:
            super().__init__(words, log_path, on_event, json.dumps(dict(environment)).encode())
        except FileNotFoundError:
            raise StartError(
                f"No agent could be started on {host}: this machine has no program `ssh` on PATH. "
                "Nothing was started. Install OpenSSH's client."
            ) from None

    def begin_beats(self) -> None:
        """Asks the agent once a second whether it lives, from now on: it has imported all."""
        threading.Thread(target=self._beat, name="jaxnb-beats", daemon=True).start()

    def _beat(self) -> None:
        """Asks the agent whether it lives, until it has ended, or is given up."""
        ends_after = self._lost_after + MORE_SECONDS
        answer = self.request("beat", ends_after=ends_after)
        # Counted, not timed: this process may be stopped, and its machine asleep.
        while not self._ended.wait(BEAT_SECONDS):
            if answer.done() and self.reads:
                self.silent_seconds = 0.0
                answer = self.request("beat", ends_after=ends_after)
                continue
            self.silent_seconds += BEAT_SECONDS
            if self.silent_seconds >= self._lost_after:
                self.give_up()

    def _ended_error(self) -> SessionBrokenError | StartError:
        if not self.has_begun:
            printed = self.printed.decode(errors="replace")
            return StartError(
                refusal(self.host, self._python, self.status, self.last_lines(), printed)
            )
        return super()._ended_error()

    def silence(self, seconds: float) -> str:
        """Returns that it has not answered for so long, and what to type."""
        return (
            f"{self.host} has not answered for {seconds:g} s: it is stopped or overloaded, or the "
            "network is interrupted. Its processes may run on. Once it answers again, type "
            "`%spmd_restart`."
        )

    def _late_error(self, seconds: float) -> SessionBrokenError:
        return SessionBrokenError(
            f"{self.name} did not end within {seconds:.0f} s, and the connection to it was closed: "
            "it ends its processes as soon as its host notices that."
        )


# ---------------------------------------------------------------------- refusals

_CONNECTION = re.compile(r"connect to (?:host|address) .* port (\d+): (.+)")


def refusal(host: str, python: str, status: int | None, errors: str, printed: str = "") -> str:
    """Returns why no agent could be started on a host, and what to type.

    Args:
        host: As ssh was given it.
        python: The Python that was to run it.
        status: ssh's exit status.
        errors: What ssh, or the command on the host, wrote to standard error.
        printed: What was written to standard output; not by the agent.
    """
    if status == SSH_FAILED:
        reason, then = _of_ssh(host, errors)
    else:
        reason, then = _of_command(host, python, status, errors)
    shown = "".join(
        f"\n    {line}" for line in [*printed.splitlines(), *errors.splitlines()][-20:] if line
    )
    return f"No agent could be started on {host}: {reason}. Nothing was started. {then}{shown}"


def _of_ssh(host: str, errors: str) -> tuple[str, str]:
    by_hand = f"`ssh {host} true` has to work by itself, without a question"
    if "Could not resolve hostname" in errors:
        return "its name does not resolve", "Check its name; ssh knows those in ~/.ssh/config too."
    if "Host key verification failed" in errors:
        if "HAS CHANGED" in errors:
            return (
                "its host key is not the one that ssh knows: it was installed again, or another "
                "machine answers in its place",
                f"If you know why: `ssh-keygen -R {host}`, then `ssh {host} true`.",
            )
        return "ssh does not know its host key", f"Type `ssh {host} true` to accept its key."
    if "Permission denied" in errors or "Too many authentication failures" in errors:
        return (
            "it does not accept your key",
            f"{by_hand} (`ssh-copy-id {host}`; a key with a passphrase needs `ssh-add`).",
        )
    if found := _CONNECTION.search(errors):
        port, why = found.groups()
        return f"nothing answers on its port {port} ({why.strip().lower()})", f"{by_hand}."
    return "the connection failed", f"{by_hand}."


def _of_command(host: str, python: str, status: int | None, errors: str) -> tuple[str, str]:
    if status in (126, 127):
        return (
            f"it has no Python `{python}`",
            "Every host needs the Python of the notebook, with its packages, at the same path.",
        )
    if found := re.search(r"No module named '?([\w.]+)", errors):
        package, *within = found[1].split(".")
        is_older = package == "jaxnb" and within
        return (
            f"{python} there has {'an older jaxnb' if is_older else f'no package {package}'}",
            "Install there what the notebook has: the same jaxnb and JAX, with "
            f"`ssh {host} {shlex.quote(python)} -m pip install …`.",
        )
    return (
        f"what ssh ran there ended with exit status {status} before the agent began",
        f"Try `ssh {host} {shlex.quote(python)} -c 'import jaxnb'`.",
    )


def require_same(host: str, python: str, facts: Mapping[str, Any], own: Mapping[str, str]) -> None:
    """Refuses an agent with another Python, JAX or jaxnb than the notebook's.

    Args:
        host: Where it is.
        python: Its Python, as it was started.
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
    then = f"Install Python {release} there, with the same packages, at `{python}`."
    if "python" not in differing:
        install = f"{shlex.quote(python)} -m pip install {' '.join(packages)}"
        then = f"Install the same there: `ssh {host} {install}`."
    raise StartError(
        f"{host} has {theirs}, and the notebook {ours}: processes of one group need the same. "
        f"Nothing was started. {then}"
    )


def _compared(name: str, versions: Mapping[str, str]) -> list[str]:
    return versions[name].split(".")[: 2 if name == "python" else None]
