"""The sentinel of each process: it answers whatever the main thread does, and only to us."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq
from jupyter_client.session import Session as Signer

import jaxnb
from jaxnb.errors import UsageError
from jaxnb.model.group import Address, SentinelFault
from jaxnb.session import Session
from jaxnb.wire.messages import METADATA_KEY, digest, dump
from jaxnb.wire.sentinels import WHERE, Sentinels
from support.fixtures import PATIENT_SECONDS, assert_usable, until

ALL = [0, 1, 2, 3]
DROPPED = """
import gc
from jaxnb.session.process_endpoint import Responder
(responder,) = (thing for thing in gc.get_objects() if type(thing) is Responder)
sentinel = responder._joined.sentinel
dropped = sentinel.dropped
del responder, sentinel
dropped
"""


def address_of(session: Session, index: int) -> Address:
    return session._life.sentinels._addresses[index]


def key_of(session: Session) -> bytes:
    return session._life.transport.key


def dropped(session: Session, index: int = 0) -> int:
    """Returns how many messages a process's sentinel has dropped."""
    return int(session.run(DROPPED, ranks=[index]).value)


def until_dropped(session: Session, count: int, index: int = 0) -> None:
    """Waits until a sentinel has dropped so many; an answer to one of them would have come."""
    until(lambda: dropped(session, index) >= count, "a message that is dropped")
    assert dropped(session, index) == count


@contextmanager
def connected(address: Address) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(address.url)
    try:
        yield socket
    finally:
        context.destroy(linger=1000)


def signed(key: bytes, token: str, function: str = WHERE, **content: Any) -> list[bytes]:
    signer = Signer(key=key)
    told = {"token": token, "sent": time.monotonic(), "function": function, "data": {}, **content}
    return signer.serialize(signer.msg("ask", told))


@pytest.fixture(scope="module")
def module_alone() -> Iterator[Session]:
    with jaxnb.start(1, platform="cpu") as session:
        yield session


@pytest.fixture
def alone(module_alone: Session, patient_answers: None) -> Session:
    """A group of one process, which a test must leave usable."""
    return module_alone


@pytest.mark.usefixtures("patient_answers")
def test_what_is_not_ours_is_dropped_and_counted(make_session: Callable[..., Session]) -> None:
    session = make_session(2)
    key, address, other = key_of(session), address_of(session, 0), address_of(session, 1)
    good = signed(key, address.token)
    tampered = signed(key, address.token)
    tampered[-1] = tampered[-1].replace(b"}", b', "more": 1}')
    garbage: list[list[bytes]] = [
        [*good[:1], b"", *signed(key, address.token)[2:]],
        signed(b"another key", address.token),
        signed(b"", address.token),  # without a signature
        tampered,
        signed(key, other.token),
        signed(key, ""),
        [b""],
        [b"<IDS|MSG>"],
        [b"<IDS|MSG>", b"", b"{", b"{", b"{", b"{"],
        [b"\xff" * 1000] * 50,
        signed(key, address.token)[:-1],
    ]
    with connected(address) as socket:
        for message in garbage:
            socket.send_multipart(message)
        until_dropped(session, len(garbage))
        assert not socket.poll(0)
        for asked in ("unknown", "os.system", "jaxnb.session.process_endpoint.unknown"):
            socket.send_multipart(signed(key, address.token, asked))
            assert socket.poll(PATIENT_SECONDS * 1000)  # it says what is wrong with that
            fault = pickle.loads(socket.recv_multipart()[-1])
            assert isinstance(fault, SentinelFault)
            assert asked.rpartition(".")[2] in str(fault)
        socket.send_multipart(good)
        assert socket.poll(PATIENT_SECONDS * 1000)
        socket.recv_multipart()
        socket.send_multipart(good)  # said again
        until_dropped(session, len(garbage) + 1)
        assert not socket.poll(0)
    assert dropped(session, 1) == 0
    assert sorted(session.where()) == [0, 1]
    assert_usable(session)


def test_what_was_said_before_is_dropped_whatever_is_forgotten(alone: Session) -> None:
    """jupyter_client forgets signatures, those of strangers that it has noted among them."""
    key, address, before = key_of(alone), address_of(alone, 0), dropped(alone)
    forget = DROPPED.replace(
        "dropped = sentinel.dropped",
        "sentinel._session.digest_history.clear(); dropped = sentinel.dropped",
    )
    heard = signed(key, address.token)
    kept_back = signed(key, address.token, sent=time.monotonic() - 61)
    with connected(address) as socket:
        socket.send_multipart(heard)
        assert socket.poll(PATIENT_SECONDS * 1000)
        socket.recv_multipart()
        assert int(alone.run(forget).value) == before
        for message in (heard, kept_back):
            socket.send_multipart(message)
        until_dropped(alone, before + 2)
        assert not socket.poll(0)


class _Leaves:
    """What leaves a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("has_key", [False, True], ids=["without the key", "with other bytes"])
def test_an_answer_that_is_not_signed_whole_is_not_read(
    alone: Session, tmp_path: Path, has_key: bool
) -> None:
    """Of something else that listens at a process's address, or has changed what it sent."""
    context = zmq.Context()
    socket = context.socket(zmq.ROUTER)
    port = socket.bind_to_random_port("tcp://127.0.0.1")
    left = tmp_path / "left"
    frames = dump(_Leaves(left))

    def answer() -> None:
        identity, *parts = socket.recv_multipart()
        signer = Signer(key=key_of(alone) if has_key else b"wrong")
        asked = json.loads(parts[2])
        signed = {METADATA_KEY: digest(*([b"others"] if has_key else frames))}
        reply = signer.msg("reply", {}, parent=asked, metadata=signed)
        socket.send_multipart([identity, *signer.serialize(reply), *frames])

    thread = threading.Thread(target=answer)
    thread.start()
    stranger = Address(f"tcp://127.0.0.1:{port}", "t")
    sentinels = Sentinels(key_of(alone), {0: stranger})
    try:
        while thread.is_alive():  # until it has answered
            assert sentinels.where([0], 0.5) == {}
        assert sentinels.where([0], 0.5) == {}
        assert not left.exists()
    finally:
        thread.join(PATIENT_SECONDS)
        context.destroy(linger=0)


def test_who_did_not_answer_in_time_is_asked_anew(alone: Session) -> None:
    """What waits to be sent to it is dropped, and its late answers are nobody's."""
    pid, sentinels = alone.processes[0].pid, alone._life.sentinels
    os.kill(pid, signal.SIGSTOP)
    try:
        until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is stopped")
        assert [sentinels.where([0], 0.01) for _ in range(20)] == [{}] * 20
    finally:
        os.kill(pid, signal.SIGCONT)
    found = [sentinels.where([0], PATIENT_SECONDS)[0] for _ in range(20)]
    assert [each.process_index for each in found] == [0] * 20


FAILING = """
def fail(*args):
    raise ValueError("a fault of the sentinel's own")
import gc
import jaxnb.session.process_endpoint as where
from jaxnb.wire.process_sentinel import ThisProcess
(this,) = (thing for thing in gc.get_objects() if type(thing) is ThisProcess)
kept = {what}
{what} = fail
del this
"""
MENDED = FAILING.replace("{what} = fail", "{what} = kept").replace("kept = {what}\n", "")
FAULT = "ValueError: a fault of the sentinel's own"


@pytest.mark.usefixtures("patient_answers")
def test_a_question_that_fails_is_not_taken_for_silence(
    session: Session, capfd: pytest.CaptureFixture[str]
) -> None:
    session.run(FAILING.format(what="where.stack"), ranks=[1])
    try:
        found = session.where()
        assert sorted(found) == ALL
        assert found[1].fault == FAULT
        assert not any(found[i].fault for i in ALL if i != 1)
        assert dropped(session, 1) == dropped(session, 0)
        session.where()
        said = capfd.readouterr().err
        assert (
            said.count(f"The sentinel of process 1 failed when it was asked 'where': {FAULT}") == 1
        )
    finally:
        session.run(MENDED.format(what="where.stack"), ranks=[1])
    assert not session.where()[1].fault
    session.run(FAILING.format(what="this.statistics.collect"), ranks=[1])
    try:
        assert any(FAULT in row.note for row in session.stats())
    finally:
        session.run(MENDED.format(what="this.statistics.collect"), ranks=[1])
    assert_usable(session)


def test_a_forked_child_asks_by_sockets_of_its_own_and_runs_nothing(session: Session) -> None:
    assert sorted(session.where()) == ALL

    def child() -> None:
        assert sorted(session.where()) == ALL
        for use in (lambda: session.run("1"), lambda: session.pull("x"), session.recover):
            with pytest.raises(UsageError, match="belongs to the process that started it"):
                use()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        process = multiprocessing.get_context("fork").Process(target=child)
        process.start()
    process.join(PATIENT_SECONDS)
    assert process.exitcode == 0
    assert sorted(session.where()) == ALL
    assert_usable(session)


@pytest.mark.usefixtures("patient_answers")
def test_many_may_ask_at_once(session: Session) -> None:
    with ThreadPoolExecutor(20) as pool:
        found = list(pool.map(lambda _: sorted(session.where()), range(60)))
    assert found == [ALL] * 60
