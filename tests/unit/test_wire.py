"""What crosses between processes arrives as it was said, or is refused; a wake-up loses nothing."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.lockstep import wire
from jaxnb.lockstep.messages import Asking, End, Explanation, Go, Side, Stop, Word
from jaxnb.model.cells import CallRequest, StreamChunk
from jaxnb.wire.messages import Exchange, digest, dump, load, printable

# ------------------------------------------------------------------ words to and from the conductor


COUNT = 13

PROCESSES = st.sets(st.integers(0, COUNT - 1), min_size=1).map(lambda those: tuple(sorted(those)))
DIGESTS = st.binary(min_size=16, max_size=16)
LINES = st.integers(0, 2**31 - 1)
WORDS = st.builds(Word, PROCESSES, DIGESTS, DIGESTS, LINES)
CELLS = st.integers(0, 2**63 - 1)
TOKENS = st.integers(0, 2**64 - 1)
ENDS = st.builds(End, st.text(max_size=60))
SAID = st.one_of(
    st.builds(wire.Say, TOKENS, st.sampled_from(["main", "other"]), WORDS, st.text(max_size=60)),
    st.builds(wire.Begin, CELLS, PROCESSES),
    st.builds(wire.Leave, ENDS),
    st.builds(wire.Hello, st.integers(0, COUNT - 1)),
    st.builds(wire.Interrupt, CELLS),
    st.builds(wire.Explain, TOKENS, TOKENS, st.text(max_size=60)),
    st.builds(wire.Withdraw, TOKENS),
    st.just(wire.InterruptRaised()),
    st.just(wire.InterruptHeld()),
    st.just(wire.Ask()),
    st.just(wire.InterruptHandled()),
)
SIDES = st.builds(Side, PROCESSES, st.none() | WORDS, st.none() | ENDS)
STOPS = st.builds(
    Stop,
    st.integers(1, 2**40),
    st.sampled_from(["diverged", "ring", "left", "not asked", "dead", "interrupted", "withdrawn"]),
    st.lists(SIDES, max_size=4).map(tuple),
    st.booleans(),
)
TOLD = st.lists(st.tuples(st.integers(0, COUNT - 1), st.text(max_size=20))).map(tuple)
EXPLANATIONS = st.builds(
    Explanation,
    st.integers(1, 2**40),
    TOLD,
    st.lists(st.tuples(st.integers(0, COUNT - 1), ENDS), max_size=3).map(tuple),
)
ANSWERS = st.builds(Go, st.integers(1, 2**64 - 1), TOLD) | STOPS | EXPLANATIONS


@given(said=SAID)
def test_what_is_said_arrives(said: wire.Said) -> None:
    packet = wire.Packets(COUNT).pack(said)
    assert len(packet) <= wire.Packets(COUNT).max_bytes
    assert wire.Packets(COUNT).unpack(packet) == said


@given(token=TOKENS, what=ANSWERS)
def test_what_is_answered_arrives(token: int, what: Any) -> None:
    assert wire.unpack_answer(wire.pack_answer(token, what)) == (token, what)


ASKINGS = st.builds(
    Asking, st.integers(0, COUNT - 1), st.sampled_from(["main", "other"]), TOKENS, WORDS
)


@given(st.lists(ASKINGS, max_size=4))
def test_who_waits_arrives(waits: list[Asking]) -> None:
    assert wire.unpack_waits(wire.pack_waits(waits)) == tuple(waits)


@pytest.mark.parametrize("packet", [b"", b"[]", b"[[], [[0]]]", b'[[], [[0, "main", 1, 0]]]', b"{"])
def test_who_waits_is_told_by_no_other_packet(packet: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.unpack_waits(packet)


@given(packet=st.binary(max_size=80))
def test_what_nobody_says_is_refused_or_is_a_message(packet: bytes) -> None:
    for unpack in (wire.Packets(COUNT).unpack, wire.unpack_answer):
        try:
            unpack(packet)
        except wire.WireError as error:
            assert "bytes" in str(error) or "process" in str(error)  # noqa: PT017


@given(word=WORDS, cut=st.integers(1, 40))
def test_a_word_that_is_cut_short_is_refused(word: Word, cut: int) -> None:
    packets = wire.Packets(COUNT)
    packet = packets.pack(wire.Say(1, "main", word))
    with pytest.raises(wire.WireError):
        packets.unpack(packet[:-cut])


def test_a_process_that_there_is_not_is_refused() -> None:
    with pytest.raises(wire.WireError, match="no process 13"):
        wire.Packets(COUNT).unpack(wire.Packets(COUNT).pack(wire.Hello(13)))
    too_many = wire.Packets(24).pack(wire.Begin(1, (20,)))
    with pytest.raises(wire.WireError):
        wire.Packets(17).unpack(too_many)


# ---------------------------------------------------------------------- objects to frames and back


def test_a_buffer_is_a_frame_of_its_own_and_is_not_copied() -> None:
    data = np.arange(1000)
    frames = dump(pickle.PickleBuffer(data))
    assert len(frames) == 2
    assert np.shares_memory(np.frombuffer(frames[1], data.dtype), data)
    assert len(frames[0]) < 200
    loaded = load(frames)
    assert np.shares_memory(np.frombuffer(loaded, data.dtype), data)


def test_a_slice_of_a_buffer_travels_alone() -> None:
    data = np.arange(100, dtype=np.uint8)
    request = CallRequest("f", {"data": pickle.PickleBuffer(data.data[10:20])})
    assert bytes(dump(request)[1]) == bytes(range(10, 20))


CHANGES: dict[str, Callable[[list[bytes]], list[bytes]]] = {
    "reordered": lambda frames: [frames[0], frames[2], frames[1]],
    "cut elsewhere": lambda frames: [frames[0], frames[1] + frames[2][:1], frames[2][1:]],
    "joined": lambda frames: [frames[0], frames[1] + frames[2]],
}


@pytest.mark.parametrize("how", CHANGES)
def test_the_digest_is_of_these_frames_in_this_order(how: str) -> None:
    frames = [b"payload", b"first", b"second"]
    assert digest(*frames) != digest(*CHANGES[how](frames))


@given(st.lists(st.binary(max_size=20), max_size=4), st.lists(st.binary(max_size=20), max_size=4))
def test_equal_digests_mean_equal_frames(one: list[bytes], other: list[bytes]) -> None:
    assert (digest(*one) == digest(*other)) == (one == other)


# -------------------------------------------------------------------- what comes back for a request


def test_a_wake_does_not_hide_what_came_after_it() -> None:
    exchange = Exchange()
    chunks = [StreamChunk(0, "stdout", text) for text in "abc"]
    for chunk in chunks:
        exchange.events.put(chunk)
        exchange.wake()
    assert list(exchange.drain()) == chunks
    assert list(exchange.drain()) == []


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


# ------------------------------------------------------------------ text that JSON has no place for


@pytest.mark.parametrize(
    ("thing", "shown"),
    [
        ("plain", "plain"),
        ("é", "é"),
        ("a\udcff", "a\udcff"),
        ("a\ud800é", "a\\ud800é"),
        ({"k\ud800": ["\ud800", 1, None]}, {"k\\ud800": ["\\ud800", 1, None]}),
    ],
)
def test_lone_surrogates_are_escaped(thing: object, shown: object) -> None:
    assert printable(thing) == shown
