"""Who looks at another thread's calls, or at the live arrays, keeps them: one at a time does."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()


@contextmanager
def looking() -> Iterator[None]:
    """Waits until no other thread looks, and has others wait for the block.

    To look at a call or an array is to hold it, and what a call holds: until the look is over,
    what has ended meanwhile is not freed. Whoever adds up what is in use does it within the block
    too, so that it is not counted. A look takes microseconds, or 5 ms a switch between threads.
    """
    with _lock:
        yield


SWITCH_SECONDS = 1e-4
"""How long other threads of Python go on beside one that is to be quickly back."""


@contextmanager
def quickly_back() -> Iterator[None]:
    """Has this thread get the interpreter's lock back soon after each call of the system.

    Beside a main thread that computes in Python that takes 5 ms a call, and to look at 40
    threads is 200 calls.
    """
    before = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


def _renew_in_child() -> None:
    """Who looked is not in a child of this process."""
    global _lock
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_renew_in_child)
