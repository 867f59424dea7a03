"""Connections to the conductor, and presses that it asks for: real sockets, no conductor."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Iterator

import pytest

from jaxnb.lockstep.connections import (
    ATOMIC_BYTES,
    SEND_BYTES,
    SIZE,
    Connection,
    HungUpError,
)
from jaxnb.lockstep.presses import Answerer, Asker
from jaxnb.lockstep.wire import Packets
from support.fixtures import PATIENT_SECONDS


def alarm(*_: object) -> None:
    raise TimeoutError


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    with contextlib.ExitStack() as closes:
        ends = [closes.enter_context(each) for each in socket.socketpair()]
        for each in ends:
            each.settimeout(PATIENT_SECONDS)
        yield ends[0], ends[1]


Ends = tuple[socket.socket, socket.socket]


@pytest.mark.parametrize("step", [1, 3, 7, 1000])
def test_packets_arrive_whole_however_their_bytes_come(ends: Ends, step: int) -> None:
    packets = [b"", b"1", b"", bytes(range(100)), b"last"]
    stream = b"".join(SIZE.pack(len(each)) + each for each in packets)
    reads, came = Connection(ends[1]), []
    for at in range(0, len(stream), step):
        ends[0].sendall(stream[at : at + step])
        came += reads.arrived()
    assert came == packets
    ends[0].sendall(stream)
    for packet in packets:
        assert reads.receive() == reads.receive() == packet
        reads.take()
    ends[0].close()
    for _ in range(2):
        with pytest.raises(HungUpError):
            reads.receive()


def test_a_packet_that_is_too_long_ends_the_connection(ends: Ends) -> None:
    Connection(ends[0]).send(bytes(101))
    with pytest.raises(ConnectionAbortedError, match="101 bytes"):
        Connection(ends[1], 100).arrived()


def test_an_offer_waits_for_nobody(ends: Ends) -> None:
    ends[0].settimeout(None)
    offers = Connection(ends[0])
    with contextlib.suppress(BlockingIOError, ConnectionAbortedError):
        for _ in range(SEND_BYTES):
            offers.offer(bytes(1000))
        pytest.fail("there is no end of room")


def test_what_a_handler_raises_while_a_packet_has_no_room_cuts_none(ends: Ends) -> None:
    """Each packet is sent whole, or not at all."""
    before = signal.signal(signal.SIGALRM, alarm)
    ends[0].settimeout(None)
    sends, reads = Connection(ends[0]), Connection(ends[1])
    packet = bytes(ATOMIC_BYTES - SIZE.size)
    assert Packets(10_000).max_bytes <= len(packet)
    sent: list[int] = []
    try:
        for seconds in (0.01, 0.05):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            with contextlib.suppress(TimeoutError):
                while True:
                    sends.send(packet, sent)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    ends[0].shutdown(socket.SHUT_WR)
    came = []
    with contextlib.suppress(HungUpError):
        while True:
            came += reads.arrived()
    assert sent == [SIZE.size + len(packet)] * len(came)
    assert set(came) == {packet}
    assert not reads._came[:-1]  # the last says that it has ended


def test_presses_are_asked_for_and_answered_in_whole_lines(ends: Ends) -> None:
    here: list[int] = []

    def press(process: int) -> bool:
        here.append(process)
        return process in {1, 30}

    asker, answerer = Asker(ends[0]), Answerer(ends[1], press)
    ends[0].sendall(b"unix:/the/address\npre")
    assert answerer.arrived() == ["unix:/the/address"]
    ends[0].sendall(b"ss 1\npress 2\npress 30\n")
    assert answerer.arrived() == []
    assert here == [1, 2, 30]
    assert asker.made() == [1, 30]
    asked = next(i for i in range(SEND_BYTES) if not asker.ask(i))  # there is no room: no waiting
    while len(here) < 3 + asked:
        answerer.arrived()
    assert here[3:] == list(range(asked))
    ends[1].close()
    while not asker.have_ended:
        asker.made()
