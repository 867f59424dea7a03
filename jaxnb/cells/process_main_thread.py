"""What the main thread is in, and others are, looked at from another thread."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import platform
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from jaxnb.lockstep.process_interrupts import frames_of, outwards
from jaxnb.profile.process_stats import looking


class Call(NamedTuple):
    """A call as it was when it was looked at.

    The call itself is not kept: it would keep its variables, and so the memory of arrays, after it
    has ended.
    """

    code: CodeType
    line: int


def call_of(frame: FrameType) -> Call:
    """Returns where a call is now."""
    return Call(frame.f_code, frame.f_lineno or 0)


def calls() -> list[Call]:
    """Returns the calls that it is in, innermost first, those first that a cell awaits."""
    with _looking():
        return [call_of(each) for each in frames_of(_innermost())]


def entries_of_others() -> list[str]:
    """Returns the files in which the other threads have begun to run Python."""
    with _looking():
        return [list(outwards(frame))[-1].f_code.co_filename for frame in _others()]


LOOKED_AT = 6
"""So many of a thread's innermost calls are looked at."""


def another_is_in(file: str) -> bool:
    """Whether another thread is in a file, or in what that has just called.

    Args:
        file: How its path ends.
    """
    with _looking():
        return any(
            each.f_code.co_filename.endswith(file)
            for frame in _others()
            for each in itertools.islice(outwards(frame), LOOKED_AT)
        )


def _innermost() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _others() -> list[FrameType]:
    """Returns the innermost call of each other thread."""
    main = threading.main_thread().ident
    return [frame for ident, frame in sys._current_frames().items() if ident != main]


@contextmanager
def _looking() -> Iterator[None]:
    """Looks as others do, and has no garbage collected by itself.

    To look at another thread's call is to make an object for it. In Python 3.11 that may begin a
    collection, which lets the other thread go on: then the object is made for a call that has
    ended, and what is in its place by then is written over. (A collection lets others go on where
    it frees something of JAX, or calls what JAX has put into ``gc.callbacks``.) A threshold of 0
    is what nobody looks at; ``gc.disable()`` would be seen by ``timeit``, which would keep it.
    """
    with looking():
        before = gc.get_threshold()[0]
        gc.set_threshold(0)
        try:
            yield
        finally:
            if gc.get_threshold()[0] == 0:
                gc.set_threshold(before)


# Numbers of the system calls, by architecture.
_CALLS = {
    "x86_64": {"202": "futex", "449": "futex", "230": "sleep", "35": "sleep"},
    "aarch64": {"98": "futex", "449": "futex", "115": "sleep", "101": "sleep"},
}


def sleeps_in() -> str:
    """Returns the system call that the main thread waits in; empty if it is another, or runs."""
    try:
        number = Path(f"/proc/self/task/{os.getpid()}/syscall").read_text().split()[0]
    except (OSError, IndexError):  # the system does not tell
        return ""
    return _CALLS.get(platform.machine(), {}).get(number, "")


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


def _number_of(thread: threading.Thread) -> int:
    # The main thread's native_id is that of the process that has forked this one.
    is_main = thread is threading.main_thread()
    return os.getpid() if is_main else thread.native_id or 0


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
