"""What the main thread is in, looked at from another thread."""

from __future__ import annotations

import gc
import os
import platform
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from jaxnb.lockstep.process_interrupts import frames_of, outwards
from jaxnb.profile.process_stats import looking
from jaxnb.profile.process_timekeeper import WAITS_LAYER, Timekeeper, WatchedCell
from jaxnb.profile.spans import Interval


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


def innermost_file() -> str | None:
    """Returns the file of the code that it is in; None if it is in no Python code."""
    with _looking():
        return next((each.f_code.co_filename for each in outwards(_innermost())), None)


def calls() -> list[Call]:
    """Returns the calls that it is in, innermost first, those first that a cell awaits."""
    with _looking():
        return [call_of(each) for each in frames_of(_innermost())]


def _innermost() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


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


# JAX tells of nothing that waits: a result that is not there yet, a collective that another
# process
# has not come to. So in a cell that runs for longer the main thread is looked at now and then. The
# notebook asks for it, 50 ms into a cell: a short cell costs nothing.

LEAST_SECONDS = 0.01
"""Between two looks, at least."""

SHARE = 0.01
"""Between two looks, of the time that the cell has run: their number grows with its logarithm."""

AWAKE = 0.5
"""Who has used the processor for this share of the time since the last look does not sleep. The
system is not asked then: each call of it would cost the busy thread a turn of Python's lock."""

_PYTHON = sysconfig.get_path("stdlib")
_PACKAGES = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))


class Sampler:
    """Looks at the main thread while a cell runs. All but the making is for one thread.

    Args:
        timekeeper: Has the cell, and takes what is seen.
        sleeps_in: Tells the system call that the main thread waits in.
    """

    def __init__(self, timekeeper: Timekeeper, sleeps_in: Callable[[], str]) -> None:
        self._timekeeper = timekeeper
        self._sleeps_in = sleeps_in
        self._cell: WatchedCell | None = None
        self._looked_at = self._cpu = 0.0
        self._waits = False

    def watch(self, request_id: str) -> bool:
        """Begins to look, if that cell is the one that runs.

        Returns:
            Whether it can: the system has to tell a thread's processor time and where it sleeps.
        """
        cell = self._timekeeper.cell
        if cell.request_id != request_id or cell.has_ended or not hasattr(time, "clock_gettime"):
            return False
        if not hasattr(time, "pthread_getcpuclockid"):  # macOS
            return False
        self._cell, self._waits = cell, False
        self._looked_at, self._cpu = time.monotonic(), self._cpu_seconds()
        cell.sampled_from = self._looked_at
        return True

    def stop(self, fault: str) -> None:
        """Looks no more, in this cell.

        Args:
            fault: What kept it from looking.
        """
        if self._cell is not None:
            self._cell.sampling_fault = fault
        self._cell = None

    @property
    def pause(self) -> int | None:
        """Milliseconds until the next look; None for none."""
        cell = self._cell
        if cell is None or cell.has_ended:
            self._cell = None
            return None
        return round(1e3 * max(LEAST_SECONDS, SHARE * (self._looked_at - cell.started)))

    def look(self) -> None:
        """Looks once."""
        cell = self._cell
        if cell is None or cell.has_ended:
            return
        now, cpu = time.monotonic(), self._cpu_seconds()
        before, self._looked_at = self._looked_at, now
        is_awake = cpu - self._cpu > AWAKE * (now - before)
        self._cpu = cpu
        waited, self._waits = self._waits, not is_awake and self._is_waiting()
        # A look stands for the time around it, half way to those before and after.
        middle = (before + now) / 2
        start, stop = before if waited else middle, now if self._waits else middle
        if (waited or self._waits) and not cell.has_ended:
            cell.waits.append(Interval(WAITS_LAYER, start, stop, "waiting"))

    def _cpu_seconds(self) -> float:
        return time.clock_gettime(time.pthread_getcpuclockid(self._main()))

    @staticmethod
    def _main() -> int:
        return threading.main_thread().ident or 0

    def _is_waiting(self) -> bool:
        """Whether the main thread sleeps in C++ or in a lock, not in Python's own library."""
        file = innermost_file()
        if file is None or _is_of_python(file):
            return False  # a queue, a lock of threading, a socket: the cell's own waiting
        return self._sleeps_in() == "futex"


def _is_of_python(file: str) -> bool:
    return file.startswith(_PYTHON) and not file.startswith(_PACKAGES)


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
