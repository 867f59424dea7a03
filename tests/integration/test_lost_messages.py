"""A message that is lost on its way, each kind at each end: the cell ran once, and is whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from jupyter_client.session import Session as Messages

import jaxnb
from integration.conftest import gate_runs
from jaxnb.session import Session
from jaxnb.sinks import NoSink
from jaxnb.transport.client import _Client
from jaxnb_fixtures import PATIENT_SECONDS, assert_usable

COUNTED = "runs = globals().get('runs', 0) + 1\nprint('begins', flush=True)\nprint('ends')\nruns"

DROPS = """
class _Nowhere:
    def send_multipart(self, *args, **named):
        pass

def _drop(kind, text, session=get_ipython().kernel.session):
    real = session.send
    def send(stream, message, content=None, *args, **named):
        is_dict = isinstance(message, dict)
        said = message["content"] if is_dict else content
        if (message["msg_type"] if is_dict else message) == kind and text in str(said):
            session.send = real
            stream = _Nowhere()  # made and numbered, and lost: as PUB does whose queue is full
        return real(stream, message, content, *args, **named)
    session.send = send
"""


class Notices(NoSink):
    """A sink that keeps what jaxnb says beside the output."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, text: str) -> None:
        self.said.append(text)


@contextmanager
def request_lost(monkeypatch: pytest.MonkeyPatch, skipped: int = 0) -> Iterator[list[Any]]:
    """Has the notebook lose the next request, or one after it."""
    real, seen = Messages.send, []

    def send(self: Messages, stream: Any, message: Any, *args: Any, **named: Any) -> Any:
        if isinstance(message, dict) and message["msg_type"] == "apply_request":
            seen.append(message["header"]["msg_id"])
            if len(seen) == skipped + 1:
                return message
        return real(self, stream, message, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Messages, "send", send)
        yield seen


@contextmanager
def received_in_vain(session: Session, socket: str, text: bytes) -> Iterator[list[Any]]:
    """Has the notebook lose the next message that comes on a socket and holds a text."""
    assert session._transport is not None
    stream = getattr(session._transport._client, socket)
    real, lost = stream._recv_callback, []

    def receive(frames: list[Any]) -> None:
        if not lost and any(text in bytes(frame.bytes) for frame in frames):
            lost.append(frames)
        else:
            real(frames)

    stream._recv_callback = receive
    try:
        yield lost
    finally:
        stream._recv_callback = real


@pytest.fixture(scope="module")
def pair() -> Iterator[Session]:
    with jaxnb.start(num_processes=2, platform="cpu") as session:
        session.run(DROPS)
        yield session


@pytest.fixture
def group(pair: Session, patient_answers: None) -> Session:
    pair.run("globals().pop('runs', None)")
    return pair


def check(session: Session, result: Any) -> None:
    assert result.value == 1
    assert {each.stdout for each in result.per_process.values()} == {"begins\nends\n"}
    assert session.run("runs").value == 1, "a cell has run twice"
    assert_usable(session)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("apply_reply", "ok", id="reply"),
        pytest.param("status", "idle", id="idle"),
        pytest.param("stream", "begins", id="stream"),
        pytest.param("stream", "ends", id="last-stream"),
    ],
)
def test_the_process_loses_it(group: Session, kind: str, text: str) -> None:
    sink = Notices()
    armed = f"if process_index == 1: _drop({kind!r}, {text!r})\n"
    check(group, group.run(armed + COUNTED, timeout=PATIENT_SECONDS, sink=sink))
    assert not [text for text in sink.said if "lost" in text]


@pytest.mark.parametrize(
    ("socket", "text"),
    [
        pytest.param("_mux_stream", b"apply_reply", id="reply"),
        pytest.param("_iopub_stream", b'"idle"', id="idle"),
        pytest.param("_iopub_stream", b"begins\\n", id="stream"),
    ],
)
def test_the_notebook_loses_it(group: Session, socket: str, text: bytes) -> None:
    with received_in_vain(group, socket, text) as lost:
        result = group.run(COUNTED, timeout=PATIENT_SECONDS)
    assert lost
    check(group, result)


@pytest.mark.parametrize("skipped", [0, 1])
def test_a_request_is_lost(group: Session, monkeypatch: pytest.MonkeyPatch, skipped: int) -> None:
    with request_lost(monkeypatch, skipped) as seen:
        result = group.run(COUNTED, timeout=PATIENT_SECONDS)
    assert len(seen) >= 3  # that to each of the two, and the lost one again
    check(group, result)


@pytest.mark.thorough
def test_a_request_that_comes_twice_runs_once(
    group: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Messages.send

    def twice(self: Messages, stream: Any, message: Any, *args: Any, **named: Any) -> Any:
        if isinstance(message, dict) and message["msg_type"] == "apply_request":
            again = {**message, "metadata": {**message["metadata"], "again": 1}}
            real(self, stream, again, *args, **named)
        return real(self, stream, message, *args, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Messages, "send", twice)
        result = group.run(COUNTED, timeout=PATIENT_SECONDS)
    check(group, result)


@pytest.mark.thorough
def test_output_that_is_not_kept_is_said_to_be_lost(group: Session) -> None:
    forgets = (
        "from jaxnb.engine.ledger import LEDGER\n"
        "for entry in LEDGER._entries.values(): entry.outputs.clear()\n"
    )
    code = "if process_index == 1: _drop('stream', 'begins')\n" + COUNTED
    code = code.replace("print('ends')", forgets + "print('ends')")
    sink = Notices()
    result = group.run(code, timeout=PATIENT_SECONDS, sink=sink)
    assert result.per_process[0].stdout == "begins\nends\n"
    assert result.per_process[1].stdout == "ends\n"
    assert "1 piece of the output of process 1 was lost on the way." in sink.said


@pytest.mark.thorough  # a cell's messages go the same way
@pytest.mark.parametrize("socket", ["_mux_stream"])
def test_pulls_and_pushes_survive_it(
    group: Session, monkeypatch: pytest.MonkeyPatch, socket: str
) -> None:
    group.run("x = jnp.arange(4.0)")
    with request_lost(monkeypatch):
        assert group.pull("x", lazy=False).sum() == 6.0
    with received_in_vain(group, socket, b"apply_reply") as lost:
        assert group.pull("x", lazy=False).sum() == 6.0
    assert lost
    with request_lost(monkeypatch):
        group.push(y=3)
    with received_in_vain(group, socket, b"apply_reply"):
        group.push(z=4)
    assert group.run("y, z").value == (3, 4)


@pytest.mark.thorough  # a cell's messages go the same way
def test_recovering_survives_it(group: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    with request_lost(monkeypatch):
        group.recover()
    with received_in_vain(group, "_mux_stream", b"apply_reply") as lost:
        group.recover()
    assert lost
    assert_usable(group)


@pytest.mark.thorough
@pytest.mark.parametrize("launcher", gate_runs(["fork"], ["fork", "local"]))
def test_a_start_survives_it(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """The notices of engines that register, and the first request."""
    with monkeypatch.context() as patch, request_lost(monkeypatch) as seen:
        patch.setattr(_Client, "_dispatch_notification", lambda self, message: None)
        session = make_session(2, launcher=launcher)
    assert len(seen) > 1
    assert_usable(session)
