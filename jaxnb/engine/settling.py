"""Waiting for what a process has under way before its backend is dropped, and no longer than that.

After a cell that was broken off, computations may be pending that end soon, with an error that was
told already; others never end: a callback that sleeps on a thread of XLA's, say. Neither may keep
the process from joining its group again, and neither may cost it a variable.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from jaxnb.engine import _jax_internals
from jaxnb.engine._jax_internals import effects

IDLE_SECONDS = 1.0
"""What is pending ends within this time, unless the process computes meanwhile."""

MAX_SECONDS = 30.0
"""So long at most it is waited for what is computed."""

END_SECONDS = 1.0
"""A backend that nothing runs on any more ends within milliseconds."""

LOOK_SECONDS = 0.01
"""How often it is asked whether arrays are there: JAX offers no event for that."""

BUSY_SHARE = 0.3
"""Of a processor: what waits, and what is asked meanwhile, uses less."""


class _Work:
    """Tells for how long this process has computed nothing."""

    def __init__(self) -> None:
        self._at, self._used = time.monotonic(), time.process_time()
        self._busy_until = self._at

    def idle_seconds(self) -> float:
        now, used = time.monotonic(), time.process_time()
        if now - self._at > IDLE_SECONDS / 4:
            if used - self._used > BUSY_SHARE * (now - self._at):
                self._busy_until = now
            self._at, self._used = now, used
        return now - self._busy_until


def settle(arrays: Sequence[Any]) -> bool:
    """Waits until no computation is pending, whether it succeeds or fails.

    What JAX keeps of effects (``jax.debug.print``, callbacks) is dropped, errors too: who called
    the computation has been told them. Ordered effects begin a new order.

    Args:
        arrays: What computations are to give.

    Returns:
        False if something is pending that does not end: nothing has been computed for
        ``IDLE_SECONDS``. It must not be waited for.
    """
    ends, ordered = effects.take_effect_tokens()
    waits = [_in_thread(end.block_until_ready) for end in ends]
    started, work = time.monotonic(), _Work()
    pending = [each for each in (*arrays, *ordered) if is_pending(each)]
    del ordered
    while pending or any(each.is_alive() for each in waits):
        if work.idle_seconds() > IDLE_SECONDS or time.monotonic() - started > MAX_SECONDS:
            return False
        time.sleep(LOOK_SECONDS)
        pending = [each for each in pending if is_pending(each)]
    return True


def is_pending(array: Any) -> bool:
    """Whether the computation that is to give an array has neither succeeded nor failed."""
    try:
        return not array.is_deleted() and not array.is_ready()
    except Exception:  # an array that says what it is no more
        return False


def _in_thread(call: Callable[[], object]) -> threading.Thread:
    def run() -> None:
        with contextlib.suppress(Exception):  # of the computation: it was told
            call()

    thread = threading.Thread(target=run, name="jaxnb-settling", daemon=True)
    thread.start()
    return thread


class Backends:
    """This process's backends, on their way out.

    JAX ends a backend where the last reference to it is dropped, and waits there for the
    backend's threads. One of those may be in a callback, or a collective, that does not return;
    then the backend stays until it does, beside its successor, and nobody waits.
    """

    def __init__(self) -> None:
        self._held = _jax_internals.clients()

    def end(self) -> bool:
        """Drops them; nothing else may refer to them.

        Returns:
            Whether they have ended. Those that have not do so when their threads return.
        """
        thread = _in_thread(self._drop)
        thread.join(END_SECONDS)
        return not thread.is_alive()

    def _drop(self) -> None:
        self._held.clear()
        gc.collect()  # a backend, its devices and its memories refer to one another
