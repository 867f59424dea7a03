"""What the threads of this process sleep in, as the system tells."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jaxnb.engine import main_thread
from jaxnb.engine.io_waits import io_waited_in
from jaxnb.engine.native import library_waited_in
from jaxnb.model import is_jax_library

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


@dataclass(frozen=True, slots=True)
class OwnThreads:
    """What the Python threads of this process do while the main thread waits for one of them.

    Attributes:
        is_locked: The main thread waits for a lock, a queue or a thread, and no thread of Python
            is left to end that: each waits so.
        is_in_jax: The same, but that some of the others wait in JAX, for other processes.
        io: The main thread waits for one of them, and one waits in this input or output.
    """

    is_locked: bool
    is_in_jax: bool
    io: str = ""


def own_threads(kernels: Collection[int | None]) -> OwnThreads:
    """Returns whether the main thread waits for threads that wait.

    Args:
        kernels: Threads that do not count, by ``threading.Thread.ident``: the kernel's own.
    """
    threads = {each.ident: each for each in threading.enumerate()}
    files = main_thread.files_of_all()
    if not files.keys() <= threads.keys():
        return OwnThreads(is_locked=False, is_in_jax=False)  # there are some that C++ has begun
    numbers = {
        _number_of(threads[ident]): file
        for ident, file in sorted(files.items(), key=lambda each: each[0] != _main_ident())
        if ident not in kernels and not threads[ident].name.startswith("jaxnb-")
    }
    waits = [_wait_of(file, number) for number, file in numbers.items()]
    io = ""
    if waits[:1] == ["lock"]:
        io = next(filter(None, map(io_waited_in, [*numbers][1:])), "")
    is_waiting = waits[:1] == ["lock"] and "" not in waits
    in_jax = "jax" in waits
    return OwnThreads(is_locked=is_waiting and not in_jax, is_in_jax=is_waiting and in_jax, io=io)


def _main_ident() -> int | None:
    return threading.main_thread().ident


def _wait_of(file: str, number: int) -> Literal["lock", "jax", ""]:
    """Returns what a thread waits in without a time-out; empty if it does anything else.

    In Python's own modules C++ waits for nothing but locks.

    Args:
        file: The file of the Python code that it is in.
        number: The thread's number.
    """
    call, has_timeout = _call_of(number)
    if call != "futex":
        return ""
    if _is_pythons(file):
        return "" if has_timeout else "lock"
    return "jax" if is_jax_library(library_waited_in(number)) else ""


def _number_of(thread: threading.Thread) -> int:
    # The main thread's native_id is that of the process that has forked this one.
    is_main = thread is threading.main_thread()
    return os.getpid() if is_main else thread.native_id or 0


def _is_pythons(file: str) -> bool:
    inner = file.removeprefix(_PYTHON)
    return inner != file and inner.split(os.sep)[0] not in _NOT_ALONE


_SWITCHES = re.compile(r"^voluntary_ctxt_switches:\s*(\d+)", re.MULTILINE)

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Work:
    """What the threads of this process have done, but for those that Python has begun.

    What counts are the main thread and those of C++, which compute what JAX has dispatched. A
    thread of the user's in Python, or the sentinel's own, brings nothing that the main thread
    waits for in JAX.

    Attributes:
        cpu_seconds: Processor time, of those that live.
        runnable: Those that run, would run if a core were free, or wait for a disk: the number of
            each, and how often it has gone to sleep by itself. On a busy machine a thread may get
            no processor for long: its processor time does not tell it from one that waits for
            something that never comes.
    """

    cpu_seconds: float
    runnable: tuple[tuple[int, int], ...] = ()


def work() -> Work:
    """Returns what the threads have done so far."""
    if not os.path.isdir("/proc/self/task"):
        return Work(time.process_time() - time.thread_time())
    pythons = {_number_of(each) for each in threading.enumerate() if _was_begun_in_python(each)}
    seconds, runnable = 0.0, []
    for number in map(int, os.listdir("/proc/self/task")):
        if number in pythons:
            continue
        with contextlib.suppress(OSError):  # it has ended
            task = Path(f"/proc/self/task/{number}")
            fields = (task / "stat").read_text().rpartition(")")[2].split()
            seconds += _cpu_seconds(task, fields)
            if fields[0] in ("R", "D"):
                runnable.append((number, _switches(task)))
    return Work(seconds, tuple(runnable))


def _was_begun_in_python(thread: threading.Thread) -> bool:
    # A thread of C++ that has asked for its `threading.Thread` is in the list, as a dummy.
    is_dummy = isinstance(thread, threading._DummyThread)
    return not is_dummy and thread is not threading.main_thread()


def _cpu_seconds(task: Path, fields: list[str]) -> float:
    try:  # in nanoseconds, where the system was built to count them; else in hundredths of seconds
        return int((task / "schedstat").read_text().split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return (int(fields[11]) + int(fields[12])) / _TICKS


def _switches(task: Path) -> int:
    found = _SWITCHES.search((task / "status").read_text())
    return int(found[1]) if found else 0
