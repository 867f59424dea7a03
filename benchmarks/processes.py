"""Whose processes are whose: marking, finding, measuring and ending them.

Every process that a benchmark starts inherits an environment variable with a token. That
finds the whole group, daemons whose parent has gone included, and nobody else's processes.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

TOKEN_VARIABLE = "JAXNB_BENCH_TOKEN"
ROOT = Path(__file__).resolve().parent.parent


class Leftover(RuntimeError):
    """Processes were still alive after the longest wait."""


@contextlib.contextmanager
def own_processes() -> Iterator[dict[str, str]]:
    """Give an environment for child processes; whoever carries it is ended at the exit.

    The environment has a token of its own and a fresh ``IPYTHONDIR``, so that nothing is
    read from or left in the user's profile.
    """
    token = uuid.uuid4().hex
    home = tempfile.mkdtemp(prefix="jaxnb-bench-")
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        yield {
            **os.environ,
            TOKEN_VARIABLE: token,
            "IPYTHONDIR": home,
            "PYTHONPATH": python_path,
        }
    finally:
        for _ in range(5):  # What is ended may have been about to start another process.
            if not (left := marked(token)):
                break
            end_all(left)
        shutil.rmtree(home, ignore_errors=True)


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


class Deaths:
    """Waits for processes to end, without reaping the children of their owners.

    ``psutil`` waits with ``waitpid``, which would steal exit states from the launcher that is
    measured. A pidfd becomes readable when its process ends, whoever is the parent.
    """

    def __init__(self, processes: Iterable[psutil.Process]) -> None:
        self._fds: dict[int, int] = {}
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                self._fds[os.pidfd_open(process.pid)] = process.pid

    def wait(self, timeout: float) -> None:
        """Return once all have ended.

        Raises:
            Leftover: Some are alive after ``timeout`` seconds; the message has their ids.
        """
        poll = select.poll()
        for fd in self._fds:
            poll.register(fd, select.POLLIN)
        deadline = time.perf_counter() + timeout
        try:
            while self._fds:
                ready = poll.poll(max(0.0, deadline - time.perf_counter()) * 1000)
                if not ready:
                    raise Leftover(f"alive after {timeout:g} s: {sorted(self._fds.values())}")
                for fd, _ in ready:
                    poll.unregister(fd)
                    os.close(fd)
                    del self._fds[fd]
        finally:
            self.close()

    def close(self) -> None:
        """Give the file descriptors back."""
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def end_all(processes: list[psutil.Process]) -> None:
    """Terminate, then kill. Returns when all are gone."""
    for send in (psutil.Process.terminate, psutil.Process.kill):
        deaths = Deaths(processes)
        for process in processes:
            with contextlib.suppress(psutil.Error):
                send(process)
        try:
            deaths.wait(timeout=3)
        except Leftover:
            continue
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


def short_name(process: psutil.Process) -> str:
    """A process's name, if it gave itself one, and its command line; short enough to read."""
    words = process.cmdline()[1:]
    text = " ".join(Path(w).name if "/" in w else w for w in words) or process.name()
    if not process.name().startswith("python"):
        text = f"{process.name()}: {text}"
    return f"{text[:57]}…" if len(text) > 58 else text
