"""Which processes are stopped, by SIGSTOP or a debugger: they answer nothing until they go on."""

from __future__ import annotations

from collections.abc import Mapping

import psutil

from jaxnb.labels import processes_label

_STOPPED = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped; one that has ended is not."""
    try:
        return psutil.Process(pid).status() in _STOPPED
    except psutil.Error:
        return False


def stopped_text(pids: Mapping[int, int]) -> str:
    """Returns who is stopped, and what lets it go on, as a clause; empty if none is.

    Args:
        pids: The processes that are looked at: process index to process id.
    """
    stopped = {index: pid for index, pid in pids.items() if is_stopped(pid)}
    if not stopped:
        return ""
    is_one = len(stopped) == 1
    those = " ".join(map(str, stopped.values()))
    return (
        f"{processes_label(stopped)} {'is' if is_one else 'are'} stopped: `kill -CONT {those}` "
        f"lets {'it' if is_one else 'them'} go on"
    )
