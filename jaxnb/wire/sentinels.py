"""Asking the processes' sentinels, past the queue of requests that a cell may block."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import zmq
from jupyter_client.session import Session

from jaxnb.model.group import ProcessReport, SentinelAddress, SentinelFault, Whereabouts
from jaxnb.wire.messages import METADATA_KEY, digest, load

ANSWER_SECONDS = 1.0
"""A sentinel that is silent for longer cannot run: its process is stopped, or holds the lock of
its Python interpreter."""

MOST_AT_ONCE = 8
"""So many threads ask at once, and others wait: each has sockets to all processes."""

WHERE = "jaxnb.session.process_endpoint.where"
TOLD = "jaxnb.session.process_endpoint"
"""What processes tell of their cells and devices: ``f"{TOLD}.recording"``."""


class Sentinels:
    """The sentinels of a group's processes.

    Safe to use from any thread: each of those that ask at the same time has sockets of its own.
    They are kept, but for those to processes that did not answer: what waits in these is dropped.

    Args:
        key: The cluster's key.
        reports: What the processes said when they joined.
        notice: Shows the user a sentence: which sentinel failed, and why; once each.
    """

    def __init__(
        self,
        key: bytes,
        reports: Iterable[ProcessReport],
        notice: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._key = key
        self._notice = notice
        self._told: set[SentinelFault] = set()
        reports = list(reports)
        self._addresses = {r.process_index: r.sentinel for r in reports if r.sentinel is not None}
        self._idle: deque[_Lines] = deque()
        self._slots = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._pid = os.getpid()
        self._is_closed = False

    def ask(
        self,
        processes: Iterable[int],
        function: str,
        /,
        *,
        seconds: float | None = None,
        **data: Any,
    ) -> dict[int, Any]:
        """Has processes call a function, whatever their main threads do; it must be quick.

        Args:
            processes: The processes.
            function: Its name, ``jaxnb.FEATURE.process_NAME.FUNCTION``.
            seconds: How long an answer may take; ``ANSWER_SECONDS`` by default.
            data: Its arguments, of which JSON can be made.

        Returns:
            What it returned on those that answer in time and do not fail.
        """
        found = self.ask_all(processes, function, seconds=seconds, **data)
        return {i: each for i, each in found.items() if not isinstance(each, SentinelFault)}

    def ask_all(
        self, processes: Iterable[int], function: str, /, *, seconds: float | None, **data: Any
    ) -> dict[int, Any]:
        """Does what :meth:`ask` does; one that fails gives its :class:`SentinelFault`."""
        asked = set(processes) & self._addresses.keys()
        if self._pid != os.getpid():  # a child that the notebook has forked: these are its parent's
            self._idle, self._pid = deque(), os.getpid()
            self._slots = threading.BoundedSemaphore(MOST_AT_ONCE)
        with self._slots:
            found = self._converse(
                asked, function, data, ANSWER_SECONDS if seconds is None else seconds
            )
        for fault in {each for each in found.values() if isinstance(each, SentinelFault)}:
            if fault not in self._told:
                self._told.add(fault)
                self._notice(str(fault))
        return found

    def _converse(
        self, processes: Collection[int], function: str, data: Mapping[str, Any], seconds: float
    ) -> dict[int, Any]:
        try:
            lines = self._idle.pop()
        except IndexError:
            lines = _Lines(self._key, self._addresses)
        try:
            found = lines.ask(processes, function, data, seconds)
        except BaseException:  # an interrupt: something may be half sent
            lines.close()
            raise
        if self._is_closed:
            lines.close()
        else:
            self._idle.append(lines)
        return found

    def where(
        self, processes: Iterable[int], seconds: float | None = None
    ) -> dict[int, Whereabouts]:
        """Returns where processes' main threads are, for those that tell in time.

        One whose sentinel fails has its ``fault`` instead.
        """
        found = self.ask_all(processes, WHERE, seconds=seconds)
        return {
            i: Whereabouts(i, (), "", 0.0, None, fault=each.error)
            if isinstance(each, SentinelFault)
            else each
            for i, each in found.items()
        }

    def close(self) -> None:
        """Closes the sockets; those in use, after that. Who asks later opens others for that."""
        self._is_closed = True
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().close()


class _Lines:
    """Sockets to sentinels, for one thread at a time."""

    def __init__(self, key: bytes, addresses: Mapping[int, SentinelAddress]) -> None:
        self._addresses = addresses
        self._session = Session(key=key)
        self._context = zmq.Context()
        self._poller = zmq.Poller()
        self._sockets: dict[int, zmq.Socket[bytes]] = {}

    def ask(
        self, processes: Collection[int], function: str, data: Mapping[str, Any], seconds: float
    ) -> dict[int, Any]:
        """Asks processes; returns what those answer that do so in time."""
        waiting = {self._send(index, function, data): index for index in processes}
        deadline = time.monotonic() + seconds
        found: dict[int, Any] = {}
        while waiting:
            left = max(0.0, deadline - time.monotonic())
            ready = self._poller.poll(int(left * 1e3))
            if not ready:
                break
            for socket, _ in ready:
                question, frames = self._receive(socket)
                if question in waiting:
                    index = waiting.pop(question)
                    found[index] = _loaded(index, function, frames)
        for index in waiting.values():
            self._hang_up(index)
        return found

    def _send(self, index: int, function: str, data: Mapping[str, Any]) -> str:
        """Sends a question; returns its id."""
        address = self._addresses[index]
        socket = self._sockets.get(index)
        if socket is None:
            socket = self._sockets[index] = self._context.socket(zmq.DEALER)
            socket.linger = 0
            socket.connect(address.url)
            self._poller.register(socket, zmq.POLLIN)
        # The time is no date: of clocks that are set nothing follows.
        content = {"token": address.token, "sent": time.monotonic()}
        message = self._session.msg("ask", {**content, "function": function, "data": data})
        socket.send_multipart(self._session.serialize(message))
        return str(message["header"]["msg_id"])

    def _receive(self, socket: zmq.Socket[bytes]) -> tuple[str, list[Any]]:
        """Returns which question was answered, and how; none where it is not the process's word.

        Of a dead process's address another program may have taken hold.
        """
        with contextlib.suppress(ValueError, KeyError):
            _, parts = self._session.feed_identities(socket.recv_multipart())
            message = self._session.deserialize(parts)
            if digest(*message["buffers"]) == message["metadata"][METADATA_KEY]:
                return str(message["parent_header"]["msg_id"]), message["buffers"]
        return "", []

    def _hang_up(self, index: int) -> None:
        socket = self._sockets.pop(index)
        self._poller.unregister(socket)
        socket.close()

    def close(self) -> None:
        """Ends it, whatever waits to be sent."""
        self._context.destroy(linger=0)


def _loaded(index: int, function: str, frames: list[Any]) -> Any:
    """Returns an answer whose signature was checked."""
    try:
        return load(frames)
    except (Exception, SystemExit) as error:  # of a process whose jaxnb is another one
        told = f"its answer cannot be read: {type(error).__name__}: {error}"
        return SentinelFault(index, function.rpartition(".")[2], told)
