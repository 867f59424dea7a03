"""What comes back for a request: nothing that has come is lost to a wake-up."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from jaxnb.model.cells import StreamChunk
from jaxnb.wire.messages import Exchange


def test_a_wake_does_not_hide_what_came_after_it() -> None:
    exchange = Exchange()
    chunks = [StreamChunk(0, "stdout", text) for text in "abc"]
    for chunk in chunks:
        exchange.events.put(chunk)
        exchange.wake()
    assert list(exchange.drain()) == chunks
    assert list(exchange.drain()) == []


def test_a_wake_ends_a_wait() -> None:
    exchange = Exchange()
    exchange.wake()
    assert exchange.get(60) is None


@pytest.mark.timing
def test_a_signal_that_is_handled_after_the_time_out_does_not_make_it_wait_on() -> None:
    """On a busy machine the handler of an interrupt may begin late, and take its time."""
    exchange = Exchange()
    handled = threading.Event()

    def handle(*_: object) -> None:
        threading.Event().wait(0.2)  # until the time-out is over
        handled.set()

    previous = signal.signal(signal.SIGUSR1, handle)
    strike = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1))
    end = threading.Timer(30, exchange.wake)  # so that a failure does not hang
    end.start()
    strike.start()
    try:
        assert exchange.get(0.1) is None
        assert handled.is_set()
        assert not end.finished.is_set()
    finally:
        strike.join()
        signal.signal(signal.SIGUSR1, previous)
        end.cancel()
