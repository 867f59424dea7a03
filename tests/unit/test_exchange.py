"""What comes back for a request: nothing that has come is lost to a wake-up."""

from __future__ import annotations

from jaxnb.model import StreamChunk
from jaxnb.transport.client import Exchange


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
