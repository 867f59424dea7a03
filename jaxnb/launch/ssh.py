"""Agents over ssh: started by the user's own OpenSSH, with its configuration, keys and jump hosts.

ssh asks for no password and accepts no unknown host: both would need a terminal, so they are
refused with what to type in one.
"""

from __future__ import annotations

import re
import shlex

from jaxnb.launch.remote import AgentStart, RemoteShell

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

SSH_FAILED = 255
"""ssh's own exit status if the connection failed; else it is the remote command's."""


def ssh_command(start: AgentStart) -> list[str]:
    """Returns the command line that starts an agent on a host."""
    # The user's shell there need not be a POSIX one.
    remote = shlex.join(["exec", *start.words])
    most = {"ServerAliveCountMax": int(start.lost_after / ALIVE_SECONDS) + 2}
    settings = (OPTIONS | most).items()
    options = [word for name, value in settings for word in ("-o", f"{name}={value}")]
    return ["ssh", "-T", *options, "--", start.host, remote]


_CONNECTION = re.compile(r"connect to (?:host|address) .* port (\d+): (.+)")


def _failure(host: str, status: int | None, errors: str) -> tuple[str, str] | None:
    """Returns why ssh has failed, and what to type; see ``RemoteShell``."""
    if status != SSH_FAILED:
        return None
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


SSH = RemoteShell("ssh", ssh_command, _failure)
