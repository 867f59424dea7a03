"""Pushes that are cut short: a name keeps its old value everywhere, or has the new one."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import zmq

from jaxnb.arrays import refusals
from jaxnb.arrays.moving import request_for
from jaxnb.errors import (
    NotEnoughMemoryError,
)
from jaxnb.model.cells import CallRequest, RequestFailed
from jaxnb.session import Session
from jaxnb.wire.client import _Sent
from jaxnb.wire.messages import METADATA_KEY, MORE_KEY, Exchange, Reply, digest, dump
from support.faults import answer_to_forged, cleared
from support.fixtures import assert_usable
from support.transfers import (
    NBYTES,
    PROCESSES,
    SHARDED,
    Called,
    Meter,
    assert_names_who_dies_halfway,
    assert_nothing_open,
    assert_path,
    at_half,
    bears_interrupts,
    expected,
    press_interrupt,
    until_someone_dies,
    use_path,
)


@pytest.fixture
def group(shared_group: Session, path: str, monkeypatch: pytest.MonkeyPatch) -> Session:
    """The group of this file, with fresh processes if a test has hurt it."""
    group = cleared(shared_group)
    use_path(group, path, monkeypatch)
    group.run(SHARDED + "x = 'old'")
    return group


def push(group: Session) -> None:
    group.push(x=expected(), spec=("data",), mesh="mesh")


def assert_pushed(group: Session) -> None:
    np.testing.assert_array_equal(group.pull("x", lazy=False), expected())


def assert_old(group: Session, *ranks: int) -> None:
    """Fails unless the name has its old value everywhere, and nothing else is kept."""
    assert group.pull("x", ranks=ranks or None) == "old"


def restart(group: Session) -> None:
    group.meter = Meter(lambda: None)
    group.restart()
    assert_usable(group)
    group.run(SHARDED)
    push(group)
    assert_pushed(group)


# ---------------------------------------------------------------------- deaths


@pytest.mark.parametrize(("path", "which"), [("direct", 0), ("messages", PROCESSES - 1)])
def test_a_process_that_dies_halfway_is_named_and_the_others_keep_the_old_value(
    group: Session, path: str, which: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    doing = "`x` was pushed"
    assert_names_who_dies_halfway(group, path, which, lambda: push(group), doing, monkeypatch)
    assert_old(group, *(i for i in range(PROCESSES) if i != which))
    restart(group)


@pytest.mark.thorough
def test_whenever_a_process_dies_a_push_is_whole_or_names_it(group: Session) -> None:
    which, _ = until_someone_dies(group, 0, lambda: push(group))
    # A survivor's name has what one push or another bound to it, never half of one.
    survivor = (which + 1) % PROCESSES
    there = group.pull("x", ranks=[survivor])
    rows = slice(survivor * 16, survivor * 16 + 16)
    np.testing.assert_array_equal(there[rows], expected()[rows])
    restart(group)


# ---------------------------------------------------------------------- interrupts


def test_an_interrupt_halfway_keeps_the_old_value_on_every_process(
    group: Session, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    press = Called(press_interrupt)
    at_half(group, path, press, 1, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        push(group)
    assert press.was_called
    assert_path(group, path)
    assert group.state == "ready"
    assert_nothing_open(group)
    assert_old(group)
    push(group)
    assert_pushed(group)
    assert_usable(group)


@pytest.mark.timing
def test_interrupts_at_any_moment_bind_a_name_everywhere_or_nowhere(
    session: Session, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_path(session, path, monkeypatch)
    session.run(SHARDED + "n = -1")
    filler = np.zeros((64, 1 << 14), np.float32)
    bound = -1

    def attempt(n: int) -> None:
        session.push(n=n, filler=filler, mesh="mesh")

    for n, done in enumerate(bears_interrupts(11, 0.04, attempt)):
        now = int(session.run("int(n)").value)  # raises an error if they differ
        assert now == n if done else now in (n, bound)
        bound = now
    assert_nothing_open(session)
    assert_usable(session)


# ---------------------------------------------------------------------- beside others


# ---------------------------------------------------------------------- memory


def test_a_push_that_is_larger_than_free_memory_is_refused(
    group: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(refusals, "available_bytes", lambda: NBYTES - 1)
        with pytest.raises(NotEnoughMemoryError, match=r"`x` needs 12(\.0)? MiB on the processes"):
            push(group)
    assert_old(group)
    assert_nothing_open(group)
    push(group)
    assert_pushed(group)
    assert_usable(group)


# ---------------------------------------------------------------------- signatures

# What else a digest tells apart: tests/unit/test_wire.py
TAMPERED: dict[str, Callable[[list[Any]], list[Any]]] = {
    "altered": lambda frames: [*frames[:-1], bytes(frames[-1])[:-1] + b"\x00"],
    "removed": lambda frames: frames[:-1],
}


def writing(transfer: str, data: bytes) -> CallRequest:
    buffer = pickle.PickleBuffer(data)
    return request_for("pushes.write", transfer=transfer, buffer=0, start=0, data=buffer)


@pytest.mark.parametrize("how", TAMPERED)
def test_a_request_with_other_buffers_than_were_signed_is_not_read(
    session: Session, how: str
) -> None:
    session.run("x = 'old'")
    signed = dump(writing("a transfer", b"the data"))
    assert len(signed) == 2
    answer = answer_to_forged(session, TAMPERED[how](signed), signed)
    assert isinstance(answer, RequestFailed)
    assert "not what was signed" in answer.error.message
    assert_old(session)
    assert_usable(session)


@pytest.mark.thorough
def test_a_reply_with_other_buffers_than_were_signed_is_dropped(session: Session) -> None:
    transport = session._life.transport
    assert transport is not None
    client, exchange = transport._client, Exchange()
    signed = dump(pickle.PickleBuffer(b"the data"))
    transport._requests["a request"] = _Sent(0, "", exchange, has_output=False)
    for buffers in (TAMPERED["altered"](signed), signed):
        assert exchange.get(0) is None
        message = {
            "header": client.session.msg("apply_reply")["header"],
            "parent_header": {"msg_id": "a request"},
            "metadata": {METADATA_KEY: digest(*signed), MORE_KEY: False},
            "content": {"status": "ok"},
        }
        raw = client.session.serialize(message)
        client._dispatch_reply([zmq.Frame(part) for part in [*raw, *buffers]])
    reply = exchange.get(0)
    assert isinstance(reply, Reply)
    assert bytes(reply.answer) == b"the data"


def test_a_read_without_a_signature_gets_no_answer(
    session: Session, caplog: pytest.LogCaptureFixture
) -> None:
    """It is ipyparallel's own kind of request then, whose replies jaxnb does not read."""
    transport = session._life.transport
    assert transport is not None
    client = transport._client
    client._send(
        client._mux_stream,
        "apply_request",
        buffers=dump(request_for("pulls.read", transfer="a transfer", buffer=0, start=0, stop=1)),
        ident=transport._uuids[0],
    )
    assert_usable(session)  # answers come in order
    assert "dropped a reply whose buffers were not signed" in caplog.text
