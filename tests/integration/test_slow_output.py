"""Output that comes long after the process has sent it, on a busy machine say, is not lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxnb.session import Session
from jaxnb.sinks import NoSink

LARGE = 3_000_000  # more than a process keeps, to be sent again
PRINTS = f"print('x' * {LARGE}, flush=True)\nprint('ends')"

DROPS = """
class _Nowhere:
    def send_multipart(self, *args, **named):
        pass
def _drop(session=get_ipython().kernel.session):
    real = session.send
    def send(stream, message, content=None, *args, **named):
        is_dict = isinstance(message, dict)
        said = message["content"] if is_dict else content
        if (message["msg_type"] if is_dict else message) == "stream" and "xxx" in said["text"]:
            session.send = real
            stream = _Nowhere()  # made and numbered, and lost: as PUB does whose queue is full
        return real(stream, message, content, *args, **named)
    session.send = send
_drop()
"""


class Notices(NoSink):
    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, text: str) -> None:
        self.said.append(text)


@contextmanager
def output_held_up(session: Session, looks: int) -> Iterator[None]:
    """Has output come only after the notebook has asked so often for what is missing."""
    assert session._transport is not None
    stream = session._transport._client._iopub_stream
    real, held = stream._recv_callback, []
    asked, asks = session._sentinels.ask, []

    def receive(frames: list[Any]) -> None:
        held.append(frames)
        if len(asks) >= looks:
            while held:
                real(held.pop(0))

    def ask(processes: Iterable[int], function: str, /, **data: Any) -> Any:
        if function.endswith(".outputs"):
            asks.append(data)
        return asked(processes, function, **data)

    stream._recv_callback, session._sentinels.ask = receive, ask  # type: ignore[method-assign]
    try:
        yield
    finally:
        stream._recv_callback, session._sentinels.ask = real, asked  # type: ignore[method-assign]
        assert len(asks) >= looks


def test_large_output_that_comes_late_is_whole(session: Session) -> None:
    sink = Notices()
    with output_held_up(session, looks=2):
        result = session.run(PRINTS, ranks=[0], sink=sink, timeout=120)
    assert not sink.said
    assert result.per_process[0].stdout == f"{'x' * LARGE}\nends\n"


def test_large_output_that_is_lost_is_said_to_be(session: Session) -> None:
    sink = Notices()
    result = session.run(DROPS + PRINTS, ranks=[0], sink=sink, timeout=120)
    assert sink.said == ["1 piece of the output of process 0 was lost on the way."]
    assert result.per_process[0].stdout == "ends\n"
