"""Ending a process when the one that owns it ends, however that happens."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

POLL_SECONDS = 0.5
"""How often a process looks whether its parent lives."""


def _prctl(option: int, value: int) -> bool:
    if not sys.platform.startswith("linux"):
        return False
    return bool(ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) == 0)


def die_with_parent(parent_pid: int, sig: int = signal.SIGKILL) -> None:
    """Asks the kernel to kill this process when its parent dies, by SIGKILL too.

    On Linux the signal follows the *thread* that forked: call this only in children of a
    single-threaded parent, or of its main thread. Elsewhere nothing happens; a
    program of its own can have :func:`end_with_parent` notice.

    Args:
        parent_pid: The parent as the caller knew it before the fork. If it has died since,
            the signal would never come, so this process ends at once.
        sig: What it sends to this process.
    """
    if _prctl(_PR_SET_PDEATHSIG, sig) and os.getppid() != parent_pid:
        os._exit(1)


def adopt_orphans() -> None:
    """Makes this process the parent of orphaned descendants, so that it can end them (on Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def open_process(pid: int) -> int | None:
    """Opens a process as a file descriptor that becomes readable when it ends.

    Returns:
        The descriptor, readable also before anybody has asked for the process's status; None
        where the system has none or the process is gone.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def end_with_parent(parent_pid: int) -> None:
    """Ends this process when its parent has ended, which a thread looks at now and then.

    Args:
        parent_pid: The parent as whoever has started this process knows it.
    """

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, name="jaxnb-parent-watch", daemon=True).start()


def interrupt(pid: int) -> None:
    """Sends SIGINT to a process and to what it has started, as a terminal does and Jupyter.

    Only a process that leads a group of its own has others interrupted beside it. What it started
    in another group or session is left alone. One that has ended is left out.
    """
    with contextlib.suppress(ProcessLookupError):
        if os.getpgid(pid) == pid:
            os.killpg(pid, signal.SIGINT)
        else:
            os.kill(pid, signal.SIGINT)
