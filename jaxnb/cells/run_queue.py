"""Whose turn it is on a group: cells one at a time, and pulls and pushes between them."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxnb.errors import UsageError


@contextmanager
def sigint_sets(event: threading.Event) -> Iterator[None]:
    """Turns SIGINT into an event for the block.

    KeyboardInterrupt could strike anywhere, in the middle of merging output too. Outside the
    main thread there are no signals to turn.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def sigint_held() -> Iterator[None]:
    """Holds SIGINT back until the block has ended, for what must not be left half done."""
    held = threading.Event()
    with sigint_sets(held):
        yield
    if held.is_set():
        raise KeyboardInterrupt


NOTICE_SECONDS = 1.0

WAITS_FOR = "waits for cell [{}] to end (to end that: Interrupt this wait, then `%spmd_interrupt`)"
"""What is said to one whose turn has not come, of the cell that has it."""


class Turns:
    """A queue of those who wait; the first one may run."""

    def __init__(self) -> None:
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()
        self._holder: int | None = None

    @contextmanager
    def turn(self, on_wait: Callable[[], None], interrupted: threading.Event) -> Iterator[None]:
        """Waits for all that came before, and keeps the turn for the block.

        Args:
            on_wait: Called once if the turn does not come within a second.
            interrupted: Ends the wait. SIGINT must set it, before and after the turn too: a
                KeyboardInterrupt that struck where the turn is given back would keep it for
                good.

        Raises:
            UsageError: It would wait for its own thread.
            KeyboardInterrupt: It was interrupted before its turn came.
        """
        if self._holder == threading.get_ident():
            raise UsageError(
                "This was called from within a cell's output, a pull or a push, and would wait "
                "for that to end. Nothing was run or moved. Call it afterwards."
            )
        place = object()
        with self._changed:
            self._queue.append(place)
        try:
            self._wait_for(place, on_wait, interrupted)
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None
        finally:
            with self._changed:
                self._queue.remove(place)
                self._changed.notify_all()

    def _wait_for(
        self, place: object, on_wait: Callable[[], None], interrupted: threading.Event
    ) -> None:
        told_at = time.monotonic() + NOTICE_SECONDS
        told = False
        while True:
            if interrupted.is_set():
                raise KeyboardInterrupt("Interrupted before its turn came; nothing was run.")
            with self._changed:
                if self._queue[0] is place:
                    return
                self._changed.wait(0.1)
            if not told and time.monotonic() > told_at:
                told = True
                on_wait()

    def wait_until_free(self, seconds: float) -> bool:
        """Waits until nobody has or waits for a turn; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, seconds)
