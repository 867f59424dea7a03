"""Waits for arrays that are still being computed where an interrupt can end the wait.

JAX waits in C++, where Python calls no signal handler: a computation that never ends would keep the
main thread out of reach. So another thread waits there, and the main thread waits for that one.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any


def wait_until_ready(*arrays: Any) -> None:
    """Returns once arrays are computed, or their computation has failed.

    In the main thread SIGINT ends the wait with what its handler raises; the computation goes on.
    Other threads get no signals: they return at once, and wait in C++ as they read the arrays.

    Args:
        arrays: Arrays; some may be deleted.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    late = [each for each in arrays if not is_ready(each)]
    if late:
        has_ended = threading.Event()
        wait = threading.Thread(
            target=_wait, args=(late, has_ended), name="jaxnb-ready", daemon=True
        )
        wait.start()
        has_ended.wait()


def is_ready(array: Any) -> bool:
    """Whether nothing of an array is left to be computed; also if it was deleted."""
    words = getattr(array, "_base_array", array)  # of PRNG keys, which cannot be asked
    try:
        return bool(words.is_deleted() or words.is_ready())
    except RuntimeError:  # it was deleted meanwhile
        return True


def _wait(arrays: list[Any], has_ended: threading.Event) -> None:
    for each in arrays:
        with contextlib.suppress(Exception):  # of its computation: whoever reads it gets that
            each.block_until_ready()
    has_ended.set()
