"""What the threads of this process sleep in, as the system tells."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import threading
import time
from collections.abc import Collection
from pathlib import Path

from jaxnb.engine import main_thread

# Numbers of the system calls, by architecture.
_CALLS = {
    "x86_64": {"202": "futex", "449": "futex", "230": "sleep", "35": "sleep"},
    "aarch64": {"98": "futex", "449": "futex", "115": "sleep", "101": "sleep"},
}


def sleeps_in() -> str:
    """Returns the system call that the main thread waits in; empty if it is another, or runs."""
    return _call_of(os.getpid())[0]


def _call_of(thread: int) -> tuple[str, bool]:
    """Returns the system call that a thread waits in, and whether that ends after some time."""
    try:
        number, *arguments = Path(f"/proc/self/task/{thread}/syscall").read_text().split()
    except (OSError, ValueError):  # the system does not tell
        return "", False
    # Where a call on a futex is told how long to wait at most, if it is.
    return _CALLS.get(platform.machine(), {}).get(number, ""), arguments[3:4] != ["0x0"]


LET_GO_SECONDS = 0.001
"""Who waits for the interpreter's lock, which this thread has now and then, gets it meanwhile."""


def stays_in() -> str:
    """Returns what :func:`sleeps_in` tells twice.

    One look in some hundred takes a main thread that computes in Python, and waits for the
    interpreter's lock, for one that waits in C++.
    """
    first = sleeps_in()
    if first != "futex":
        return first
    time.sleep(LET_GO_SECONDS)
    return sleeps_in()


_PYTHON = os.path.dirname(threading.__file__) + os.sep
"""Where Python's own modules are."""

_NOT_ALONE = ("site-packages", "dist-packages", "multiprocessing")
"""Modules there that may wait for other processes, or for C++."""


def is_locked(kernels: Collection[int | None]) -> bool:
    """Whether no thread of Python is left to end what the main thread waits for.

    Each waits without a time-out in one of Python's own modules (a lock, a queue, another
    thread), where C++ does not wait for anything else.

    Args:
        kernels: Threads that do not count, by ``threading.Thread.ident``: the kernel's own.
    """
    threads = {each.ident: each for each in threading.enumerate()}
    files = main_thread.files_of_all()
    return files.keys() <= threads.keys() and all(  # else there are some that C++ has begun
        _is_pythons(file) and _call_of(_number_of(threads[ident])) == ("futex", False)
        for ident, file in files.items()
        if ident not in kernels and not threads[ident].name.startswith("jaxnb-")
    )


def _number_of(thread: threading.Thread) -> int:
    # The main thread's native_id is that of the process that has forked this one.
    is_main = thread is threading.main_thread()
    return os.getpid() if is_main else thread.native_id or 0


def _is_pythons(file: str) -> bool:
    inner = file.removeprefix(_PYTHON)
    return inner != file and inner.split(os.sep)[0] not in _NOT_ALONE


_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)


def runnable() -> list[tuple[int, int]]:
    """Returns the threads that run, would run if a core were free, or wait for a disk.

    On a busy machine a thread may get no processor for long: its processor time does not tell
    it from one that waits for something that never comes.

    Returns:
        Each one's number, and how often it has gone to sleep by itself so far. The caller's own
        is left out.
    """
    found = []
    for task in Path("/proc/self/task").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            if state in ("R", "D") and int(task.name) != threading.get_native_id():
                switches = _SWITCHES.search((task / "status").read_text())
                found.append((int(task.name), int(switches[1]) if switches else 0))
    return found
