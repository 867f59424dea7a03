"""Requests past the controller: in order with those by it, and from the notebook alone."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import zmq
from jupyter_client.session import Session as Signer

from jaxnb.arrays.moving import request_for
from jaxnb.model.arrays import Packed, PackRequest
from jaxnb.model.cells import CallRequest, RequestFailed
from jaxnb.session import Session
from jaxnb.wire.asking import Channel
from jaxnb.wire.messages import METADATA_KEY, Reply, digest, dump
from support.arrays import MESH, whole
from support.fixtures import PATIENT_SECONDS, assert_usable, until

NOTED = """
noted = []
class Noting:
    def __reduce__(self):
        noted.append("packed")
        return str, ()
thing = Noting()
"""
DROPPED = """
import gc
from jaxnb.session.process_endpoint import Responder
(responder,) = (thing for thing in gc.get_objects() if type(thing) is Responder)
dropped = responder._joined.direct.dropped
del responder
dropped
"""


def packing(name: str) -> CallRequest:
    return request_for("pulls.pack", request=PackRequest(transfer="a test's", path=name))


def answer(session: Session, index: int, replies: deque[Reply]) -> object:
    """Waits for a reply, as a conversation does."""
    deadline = time.monotonic() + PATIENT_SECONDS
    while not replies and time.monotonic() < deadline:
        session._life.transport.direct.receive(0.1)
    (reply,) = replies
    assert reply.process_index == index
    return reply.answer


def test_a_cell_begins_after_what_was_asked_before_it(session: Session) -> None:
    session.run(NOTED)
    pid = session.processes[1].pid
    for _ in range(5):
        session.run("noted.clear()")
        os.kill(pid, signal.SIGSTOP)
        try:
            until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
            with session._reach.channel() as channel:
                channel.tell({1: packing("thing")})
            found: list[object] = []
            thread = threading.Thread(
                target=lambda found=found: found.append(session.run("list(noted)", ranks=[1]).value)
            )
            thread.start()
            until(lambda: session.state == "busy")
        finally:
            os.kill(pid, signal.SIGCONT)
        thread.join(PATIENT_SECONDS)
        assert found == [["packed"]]
    assert_usable(session)


def test_what_is_asked_waits_for_a_cell_that_awaits(session: Session, tmp_path: Path) -> None:
    session.run("import asyncio, os\nx = 'old'")
    may_end = tmp_path / "may_end"
    path = str(may_end)
    cell = f"while not os.path.exists({path!r}): await asyncio.sleep(0.01)\nx = 'new'"
    thread = threading.Thread(target=session.run, args=[cell])
    thread.start()
    until(lambda: any(each.cell for where in session.where([2]).values() for each in where.stack))
    replies: deque[Reply] = deque()
    session._life.transport.direct.send(2, dump(packing("x")), replies)
    may_end.touch()
    packed = answer(session, 2, replies)
    assert isinstance(packed, Packed)
    assert pickle.loads(packed.skeleton) == "new"
    thread.join(PATIENT_SECONDS)
    assert_usable(session)


BEGUN = """
from jaxnb.lockstep.process_cell import InLockstep
begun, kept_begin = [], InLockstep.begin
def begin(self, *what, begun=begun, kept_begin=kept_begin):
    begun.append(what)
    return kept_begin(self, *what)
InLockstep.begin = begin
"""


def test_small_values_take_one_exchange_and_ask_nobody(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run(MESH + BEGUN + "x, tree = make((8, 4), 'data'), {'w': make((8, 4)), 'n': [1, 'a']}")
    asked: list[set[str]] = []
    ask_all = Channel.ask_all

    def spy(self: Channel, requests: Any, *settings: Any) -> Any:
        kept = {i: list(queue) for i, queue in requests.items()}
        asked.append({each.function.rpartition(".")[2] for q in kept.values() for each in q})
        return ask_all(self, kept, *settings)

    session.run("begun.clear()")
    with monkeypatch.context() as patch:
        patch.setattr(Channel, "ask_all", spy)
        np.testing.assert_array_equal(session.pull("x"), whole((8, 4)))
        assert session.pull("tree", lazy=False)["n"] == [1, "a"]
        assert session.pull("tree['n'][1]") == "a"
        np.testing.assert_array_equal(session.pull("x[2:4]"), whole((8, 4))[2:4])
        session.push(y=np.ones(8), spec="data")
    assert asked == [{"pack"}] * 4 + [{"place"}]
    # The cell that clears them has begun before, and the one that counts them is the first.
    assert session.run("InLockstep.begin = kept_begin\nlen(begun)").value == 1


@contextmanager
def connected(url: str) -> Iterator[zmq.Socket[bytes]]:
    context = zmq.Context()
    socket = context.socket(zmq.DEALER)
    socket.connect(url)
    try:
        yield socket
    finally:
        context.destroy(linger=1000)


@pytest.mark.usefixtures("patient_answers")
def test_what_is_not_the_notebooks_is_not_unpickled(session: Session) -> None:
    key, addresses = session._life.transport.key, session._life.transport.direct._addresses
    one, other = addresses[0], addresses[1]

    def signed(key: bytes, token: str, frames: list[bytes], told: list[bytes]) -> list[bytes]:
        signer = Signer(key=key)
        content = {"token": token, "sent": time.monotonic()}
        metadata = {METADATA_KEY: digest(*told)}
        return [*signer.serialize(signer.msg("ask", content, metadata=metadata)), *frames]

    frames = dump(packing("process_index"))
    good = signed(key, one.token, frames, frames)
    before = int(session.run(DROPPED, ranks=[0]).value)
    with connected(one.url) as socket:
        socket.send_multipart(signed(key, one.token, frames, [b"others"]))
        assert socket.poll(PATIENT_SECONDS * 1000)
        failed = pickle.loads(socket.recv_multipart()[-1])
        assert isinstance(failed, RequestFailed)
        assert "not what was signed" in failed.error.message
        socket.send_multipart(good)
        assert socket.poll(PATIENT_SECONDS * 1000)
        assert isinstance(pickle.loads(socket.recv_multipart()[-1]), Packed)
        garbage = [
            good,  # said again
            signed(b"another key", one.token, frames, frames),
            signed(b"", one.token, frames, frames),
            signed(key, other.token, frames, frames),
            [b"<IDS|MSG>"],
        ]
        for message in garbage:
            socket.send_multipart(message)
        until(lambda: int(session.run(DROPPED, ranks=[0]).value) == before + len(garbage))
        assert not socket.poll(0)
    assert_usable(session)
