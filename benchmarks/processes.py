"""Whose processes are whose: finding, measuring and ending them.

Every process that a benchmark starts inherits an environment variable with a token. That
finds the whole group, daemons whose parent has gone included, and nobody else's processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

TOKEN_VARIABLE = "JAXNB_BENCH_TOKEN"


def marked(token: str) -> list[psutil.Process]:
    """Living processes that carry the token, the calling one left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(TOKEN_VARIABLE) == token:
                found.append(process)
    return found


def group() -> list[psutil.Process]:
    """The other living processes that carry this process's own token.

    In a child that started a group, these are the group: engines and all helpers.
    """
    return marked(os.environ[TOKEN_VARIABLE])


def watch(processes: Iterable[psutil.Process]) -> list[int]:
    """Returns file descriptors for :func:`wait`.

    ``psutil`` waits with ``waitpid``, which would steal exit states from the launcher that is
    measured. A pidfd becomes readable when its process ends, whoever is the parent.
    """
    fds = []
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            fds.append(os.pidfd_open(process.pid))
    return fds


def wait(fds: list[int], timeout: float) -> bool:
    """Returns whether all that is watched has ended in so many seconds."""
    deadline = time.perf_counter() + timeout
    while fds:
        ready, _, _ = select.select(fds, [], [], max(0.0, deadline - time.perf_counter()))
        for fd in ready or fds.copy():
            os.close(fd)
            fds.remove(fd)
        if not ready:
            return False
    return True


def end_all(processes: list[psutil.Process]) -> None:
    """Terminates, then kills. Returns when all are gone."""
    for send in (psutil.Process.terminate, psutil.Process.kill):
        fds = watch(processes)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                send(process)
        if wait(fds, timeout=3):
            return


def pss_bytes(pid: int) -> int:
    """Proportional set size: resident pages, each divided among those who map it."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/{pid}/smaps_rollup has no Pss line")


def cpu_seconds(processes: Iterable[psutil.Process]) -> float:
    """User and system time that the processes used so far, their dead children left out."""
    times = [process.cpu_times() for process in processes]
    return sum(t.user + t.system for t in times)
