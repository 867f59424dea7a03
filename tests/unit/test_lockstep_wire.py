"""What crosses between a process and the conductor is what was said; what is cut is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.lockstep.messages import Asking, End, Explanation, Go, Side, Stop, Word
from jaxnb.lockstep.wire import (
    MAX_ERROR_BYTES,
    Ask,
    Begin,
    Explain,
    Hello,
    Interrupt,
    InterruptHandled,
    InterruptHeld,
    InterruptRaised,
    Leave,
    Packets,
    Said,
    Say,
    WireError,
    Withdraw,
    pack_answer,
    pack_waits,
    unpack_answer,
    unpack_waits,
)

COUNT = 13

PROCESSES = st.sets(st.integers(0, COUNT - 1), min_size=1).map(lambda those: tuple(sorted(those)))
DIGESTS = st.binary(min_size=16, max_size=16)
LINES = st.integers(0, 2**31 - 1)
WORDS = st.builds(Word, PROCESSES, DIGESTS, DIGESTS, LINES)
CELLS = st.integers(0, 2**63 - 1)
TOKENS = st.integers(0, 2**64 - 1)
ENDS = st.builds(End, st.text(max_size=60))
SAID = st.one_of(
    st.builds(Say, TOKENS, st.sampled_from(["main", "other"]), WORDS, st.text(max_size=60)),
    st.builds(Begin, CELLS, PROCESSES),
    st.builds(Leave, ENDS),
    st.builds(Hello, st.integers(0, COUNT - 1), st.integers(0, 2**32 - 1)),
    st.builds(Interrupt, CELLS),
    st.builds(Explain, TOKENS, TOKENS, st.text(max_size=60)),
    st.builds(Withdraw, TOKENS),
    st.just(InterruptRaised()),
    st.just(InterruptHeld()),
    st.just(Ask()),
    st.just(InterruptHandled()),
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
def test_what_is_said_arrives(said: Said) -> None:
    packet = Packets(COUNT).pack(said)
    assert len(packet) <= Packets(COUNT).max_bytes
    assert Packets(COUNT).unpack(packet) == said


@given(token=TOKENS, what=ANSWERS)
def test_what_is_answered_arrives(token: int, what: Any) -> None:
    assert unpack_answer(pack_answer(token, what)) == (token, what)


ASKINGS = st.builds(
    Asking, st.integers(0, COUNT - 1), st.sampled_from(["main", "other"]), TOKENS, WORDS
)


@given(st.lists(ASKINGS, max_size=4))
def test_who_waits_arrives(waits: list[Asking]) -> None:
    assert unpack_waits(pack_waits(waits)) == tuple(waits)


@pytest.mark.parametrize("packet", [b"", b"[]", b"[[], [[0]]]", b'[[], [[0, "main", 1, 0]]]', b"{"])
def test_who_waits_is_told_by_no_other_packet(packet: bytes) -> None:
    with pytest.raises(WireError):
        unpack_waits(packet)


def test_a_long_error_is_cut() -> None:
    said = Packets(COUNT).unpack(Packets(COUNT).pack(Leave(End("é" * 1000))))
    assert isinstance(said, Leave)
    assert said.end.error.startswith("é" * (MAX_ERROR_BYTES // 2 - 1))


@given(packet=st.binary(max_size=80))
def test_what_nobody_says_is_refused_or_is_a_message(packet: bytes) -> None:
    for unpack in (Packets(COUNT).unpack, unpack_answer):
        try:
            unpack(packet)
        except WireError as error:
            assert "bytes" in str(error) or "process" in str(error)  # noqa: PT017


@given(word=WORDS, cut=st.integers(1, 40))
def test_a_word_that_is_cut_short_is_refused(word: Word, cut: int) -> None:
    packets = Packets(COUNT)
    packet = packets.pack(Say(1, "main", word))
    with pytest.raises(WireError):
        packets.unpack(packet[:-cut])


def test_a_process_that_there_is_not_is_refused() -> None:
    with pytest.raises(WireError, match="no process 13"):
        Packets(COUNT).unpack(Packets(COUNT).pack(Hello(13, 1)))
    too_many = Packets(24).pack(Begin(1, (20,)))
    with pytest.raises(WireError):
        Packets(17).unpack(too_many)
