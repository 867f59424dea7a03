"""Asking processes past the ipyparallel controller: their main threads, or their sentinels."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any

import zmq
from jupyter_client.session import Session

from jaxnb.model.cells import Request
from jaxnb.model.group import Address
from jaxnb.wire.messages import METADATA_KEY, Reply, digest, dump, load


class Direct:
    """Connections to a group's processes; for one thread at a time.

    Args:
        key: The cluster's key.
        addresses: Process index to where it listens.

    Attributes:
        sent: How many requests were sent to each process.
    """

    def __init__(self, key: bytes, addresses: Mapping[int, Address]) -> None:
        self._session = Session(key=key)
        self._addresses = addresses
        self._sockets: dict[int, Any] = {}
        self._poller = zmq.Poller()
        self._asked: dict[str, tuple[int, deque[Reply]]] = {}
        self.sent: Counter[int] = Counter()

    def __del__(self) -> None:
        # Not sooner: who was abandoned when the group ended may wait for replies still.
        for socket in self._sockets.values():
            socket.close()

    def send(
        self, index: int, frames: Sequence[Any], into: deque[Reply] | None, **told: Any
    ) -> None:
        """Sends a request to a process.

        Args:
            index: The process.
            frames: Those of the request.
            into: Where the reply goes; None drops it.
            told: What is told beside the frames, of which JSON can be made.
        """
        address = self._addresses[index]
        number = self.sent[index] + 1
        # The time is no date: of clocks that are set nothing follows.
        content = {"token": address.token, "sent": time.monotonic(), "number": number, **told}
        message = self._session.msg("ask", content, metadata={METADATA_KEY: digest(*frames)})
        if into is not None:
            self._asked[message["header"]["msg_id"]] = index, into
        parts = [*self._session.serialize(message), *frames]
        self._connected(index, address).send_multipart(parts)
        self.sent[index] = number

    def _connected(self, index: int, address: Address) -> Any:
        if index not in self._sockets:
            socket: Any = zmq.Context.instance().socket(zmq.DEALER)
            self._sockets[index] = socket
            socket.linger = 0
            socket.connect(address.url)
            self._poller.register(socket, zmq.POLLIN)
        return self._sockets[index]

    def receive(self, seconds: float) -> None:
        """Waits for replies, and puts those that have come where they go."""
        for socket, _ in self._poller.poll(int(seconds * 1e3)):
            question, frames = self._received(socket)
            if asked := self._asked.pop(question, None):
                index, into = asked
                into.append(Reply(index, _loaded(frames)))

    def _received(self, socket: Any) -> tuple[str, list[Any]]:
        """Returns which question was answered, and how; none where it is not the process's word.

        Of a dead process's address another program may have taken hold.
        """
        with contextlib.suppress(ValueError, KeyError):
            _, parts = self._session.feed_identities(socket.recv_multipart())
            message = self._session.deserialize(parts)
            if digest(*message["buffers"]) == message["metadata"][METADATA_KEY]:
                return str(message["parent_header"]["msg_id"]), message["buffers"]
        return "", []


class Conversation:
    """Requests to several processes, and their replies: those of one in the order of the requests.

    Args:
        direct: The connections.
    """

    def __init__(self, direct: Direct) -> None:
        self._direct = direct
        self._replies: deque[Reply] = deque()
        self._request: Request | None = None
        self._frames: list[Any] = []

    def send(self, index: int, request: Request) -> None:
        """Sends a request to a process; one that all are sent is pickled once."""
        if request is not self._request:
            self._request, self._frames = request, dump(request)
        self._direct.send(index, self._frames, self._replies)

    def get(self, seconds: float) -> Reply | None:
        """Returns the next reply; None if none comes in time."""
        if not self._replies:
            self._direct.receive(seconds)
        return self._replies.popleft() if self._replies else None


def _loaded(frames: list[Any]) -> Any:
    """Returns an answer whose signature was checked; what keeps it from being read, as one."""
    try:
        return load(frames)
    except (Exception, SystemExit) as unreadable:  # whoever waits must not wait for ever
        return unreadable
