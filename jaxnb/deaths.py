"""Processes that ended without having been told to: who, how, and their last words."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

# gloo says this on standard output whenever it connects, and no setting turns it off. It writes
# a line in pieces, from several threads at once, so the pieces can come in any order.
_GLOO_CHATTER = re.compile(
    r"^\[Gloo\] Rank (?:\[Gloo\] Rank | is connected to | peer ranks\. "
    r"|Expected number of connected peer ranks is : |\d+|\n)*(?:\n|\Z)",
    re.MULTILINE,
)

LAST_LINES = 20
STACK_LINES = 8
MAX_COLUMNS = 300


@dataclass(frozen=True, slots=True)
class Death:
    """A process of the group, or one that serves it, that ended without being told to.

    Attributes:
        role: ``"engine"``, ``"controller"``, ``"service"`` or ``"fork server"``.
        index: The process index, for an engine.
        pid: Its process id.
        status: Exit status; negative for a signal; None if unknown.
        tail: What it wrote last to standard output and error.
    """

    role: str
    index: int
    pid: int
    status: int | None
    tail: str


def quiet(text: str) -> str:
    """Returns what the C code of a process wrote, without the lines that say nothing."""
    return _GLOO_CHATTER.sub("", text)


def describe_status(status: int | None) -> str:
    """Returns how a process ended, in words: ``"was killed by SIGKILL"``."""
    if status is None:
        return "ended"
    if status < 0:
        try:
            return f"was killed by {signal.Signals(-status).name}"
        except ValueError:
            return f"was killed by signal {-status}"
    return f"ended with exit status {status}"


def describe_death(death: Death, num_processes: int) -> str:
    """Returns who died and how, as the beginning of a sentence."""
    who = {
        "engine": f"Process {death.index} of {num_processes}",
        "controller": "The ipyparallel controller",
        "service": "JAX's coordination service",
        "fork server": "The fork server",
    }[death.role]
    return f"{who} (pid {death.pid}) {describe_status(death.status)}"


def last_lines(death: Death) -> str:
    """Returns the last lines that a dead process wrote, as a paragraph; empty if none.

    Of faulthandler's dump, which can be hundreds of lines, the kind of error and the stack of
    the thread it came from are kept: what explains it stands before the dump.
    """
    lines = [line[:MAX_COLUMNS] for line in quiet(death.tail).splitlines() if line.strip()]
    fatal = next((i for i, s in enumerate(lines) if s.startswith("Fatal Python error")), None)
    if fatal is None:
        kept = lines[-LAST_LINES:]
    else:
        kept = lines[max(0, fatal - LAST_LINES) : fatal + 1] + _current_stack(lines[fatal:])
    return "\nIts last lines:\n" + "\n".join(f"    {line}" for line in kept) if kept else ""


def _current_stack(dump: list[str]) -> list[str]:
    start = next((i for i, line in enumerate(dump) if line.startswith("Current thread")), None)
    if start is None:
        return []
    stack = [dump[start]]
    for line in dump[start + 1 : start + STACK_LINES]:
        if not line.startswith("  "):
            break
        stack.append(line)
    return stack
