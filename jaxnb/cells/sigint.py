"""Keeps SIGINT from striking anywhere in the notebook's main thread."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


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
