"""The thread of a process that answers whatever the main thread does, and what it answers for."""

from __future__ import annotations

import contextlib
import importlib
import math
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import zmq
from jupyter_client.session import Session

from jaxnb.model.group import SentinelFault
from jaxnb.wire.messages import METADATA_KEY, digest, dump

if TYPE_CHECKING:
    from collections.abc import Callable

    from jaxnb.arrays.process_pulls import Exposures
    from jaxnb.arrays.process_pushes import Push
    from jaxnb.lockstep.process_recorder import Recorder
    from jaxnb.model.arrays import PackRequest
    from jaxnb.profile.process_stats import Statistics


@dataclass(frozen=True, slots=True)
class ThisProcess:
    """One process of a group.

    Attributes:
        index: Its index.
        shell: The kernel's shell; its namespace holds the user's variables.
        recorder: Knows what it has dispatched.
        statistics: Takes its statistics; for the sentinel's thread alone.
        exposures: Keeps the bytes of the pulls and pushes that it takes part in.
        pushes: Those pushes, by transfer.
        large_value: Returns the value of a cell that was too large to travel with its result.
    """

    index: int
    shell: Any
    recorder: Recorder
    statistics: Statistics
    exposures: Exposures
    pushes: dict[str, Push]
    large_value: Callable[[PackRequest], Any]


_FUNCTION = re.compile(r"(jaxnb\.\w+\.process_\w+)\.([a-z]\w*)")


def call(process: Any, name: str, data: Mapping[str, Any]) -> Any:
    """Calls ``jaxnb.FEATURE.process_NAME.FUNCTION``; no other function can be named.

    Args:
        process: What this process has, which is the function's first argument.
        name: Which function.
        data: Its other arguments.

    Raises:
        ValueError: A process may not be asked to call it.
    """
    found = _FUNCTION.fullmatch(name)
    if found is None:
        raise ValueError(f"{name} is not a function that a process may be asked to call")
    function = getattr(importlib.import_module(found[1]), found[2])
    return function(process, **data)


LATE_SECONDS = 60.0
"""A message this much older than the newest one is taken for a replay."""

LARGEST_BYTES = 1 << 20
"""The largest part of a message. The connection of a sender of more is closed before it is read.
Questions have some hundred bytes."""

MOST_WAITING = 100
"""Messages of one connection that wait to be read; more wait where they are sent."""


class Listener:
    """A socket that takes the notebook's messages, and drops what others send.

    Messages are signed with the cluster's key. Those that are unsigned, replayed, or meant for
    another process are dropped without an answer.

    Args:
        key: The cluster's key.
        folder: Where its socket is, which only this user can reach.
        name: The socket's name there.
        token: What its messages have to hold.
        largest_bytes: The largest part of a message; -1 for any.

    Attributes:
        token: What its messages have to hold.
        dropped: How many messages were dropped.
    """

    def __init__(
        self, key: bytes, folder: str, name: str, token: str, largest_bytes: int = -1
    ) -> None:
        self._session = Session(key=key)
        # Of its own: the kernel closes its context while this one may still be asked.
        self._socket = zmq.Context().socket(zmq.ROUTER)
        _bind(self._socket, f"ipc://{folder}/{name}", largest_bytes)
        self.token = token
        self.dropped = 0
        self._newest = -math.inf
        self._heard: dict[str, float] = {}

    @property
    def fd(self) -> int:
        """A file to be read when a message may have come, if :meth:`has_message` said no before."""
        return int(self._socket.FD)

    def has_message(self) -> bool:
        """Whether a message waits to be received."""
        return bool(int(self._socket.EVENTS) & zmq.POLLIN)

    def receive(self) -> tuple[list[bytes], dict[str, Any]] | None:
        """Waits for a message; returns whom to answer, and it. None for one that was dropped."""
        parts = self._socket.recv_multipart()
        try:
            identities, frames = self._session.feed_identities(parts)
            message = self._session.deserialize(frames)
            self._note_once(message["header"]["msg_id"], float(message["content"]["sent"]))
            if message["content"]["token"] != self.token:
                raise PermissionError  # a message to another process, replayed
        except Exception:  # whatever came, it was not the notebook's; the next may be
            self.dropped += 1
            return None
        return identities, message

    def answer(
        self, identities: list[bytes], message: Mapping[str, Any], frames: list[Any]
    ) -> None:
        """Answers a message with frames, which are signed."""
        signed = {METADATA_KEY: digest(*frames)}
        reply = self._session.msg("reply", {}, parent=message["header"], metadata=signed)
        with contextlib.suppress(zmq.ZMQError):  # whoever asked has gone
            self._socket.send_multipart([*identities, *self._session.serialize(reply), *frames])

    def _note_once(self, message_id: str, sent: float) -> None:
        """Notes a message that is the notebook's; raises if it is a replay.

        jupyter_client also drops replays, but forgets some after 65,536 messages, and counts
        strangers' messages with invalid signatures.
        """
        if message_id in self._heard or sent < self._newest - LATE_SECONDS:
            raise PermissionError
        self._heard[message_id] = sent
        self._newest = max(self._newest, sent)
        while (oldest := next(iter(self._heard.items())))[1] < self._newest - LATE_SECONDS:
            del self._heard[oldest[0]]


def watch(listener: Listener, process: ThisProcess) -> None:
    """Answers the notebook's questions about this process, whatever its main thread does.

    Never returns: it has a thread and a socket of its own, sleeps between questions, and ends with
    the process. Questions are JSON and name a function, which must be quick; none is unpickled.
    Answers are pickled.
    """
    while True:
        if (received := listener.receive()) is not None:
            identities, message = received
            listener.answer(identities, message, _answered(process, message["content"]))


def _answered(process: ThisProcess, content: Mapping[str, Any]) -> list[Any]:
    """Returns the frames of an answer; what fails here must not pass for silence."""
    name = str(content.get("function"))
    try:
        return dump(call(process, name, content["data"]))
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {error}"
        return dump(SentinelFault(process.index, name.rpartition(".")[2], told))


def _bind(listening: zmq.Socket[bytes], url: str, largest_bytes: int) -> None:
    """Binds a socket; what waits in it is bounded, whoever sends."""
    listening.linger = 0
    listening.maxmsgsize = largest_bytes
    listening.rcvhwm = MOST_WAITING
    # a second lock where this build of ZeroMQ has it; the folder's mode is the first
    with contextlib.suppress(zmq.ZMQError):
        listening.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
    listening.bind(url)
