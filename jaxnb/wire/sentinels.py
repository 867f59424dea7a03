"""Asking the processes' sentinels, past the queue of requests that a cell may block."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import zmq
from jupyter_client.session import Session

from jaxnb.model.group import ProcessReport, SentinelFault, Whereabouts
from jaxnb.wire.messages import METADATA_KEY, digest, load

ANSWER_SECONDS = 1.0
"""A sentinel that is silent for longer cannot run: its process is stopped, or holds the lock of
its Python interpreter."""

WHERE = "jaxnb.session.process_endpoint.where"
TOLD = "jaxnb.session.process_endpoint"
"""What processes tell of their cells and devices: ``f"{TOLD}.recording"``."""


class Sentinels:
    """The sentinels of a group's processes.

    Safe to use from any thread, and from a child that the notebook has forked: each question has
    sockets of its own. So what is sent or answered too late is dropped.

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
        self._addresses = {r.process_index: r.sentinel for r in reports if r.sentinel is not None}

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
        seconds = ANSWER_SECONDS if seconds is None else seconds
        found = self._converse(asked, function, data, seconds)
        for fault in {each for each in found.values() if isinstance(each, SentinelFault)}:
            if fault not in self._told:
                self._told.add(fault)
                self._notice(str(fault))
        return found

    def _converse(
        self, processes: Collection[int], function: str, data: Mapping[str, Any], seconds: float
    ) -> dict[int, Any]:
        session, poller = Session(key=self._key), zmq.Poller()
        waiting: dict[str, int] = {}
        found: dict[int, Any] = {}
        with contextlib.ExitStack() as sockets:
            for index in processes:
                address = self._addresses[index]
                socket: Any = sockets.enter_context(zmq.Context.instance().socket(zmq.DEALER))
                socket.linger = 0
                socket.connect(address.url)
                poller.register(socket, zmq.POLLIN)
                # The time is no date: of clocks that are set nothing follows.
                content = {"token": address.token, "sent": time.monotonic()}
                message = session.msg("ask", {**content, "function": function, "data": data})
                socket.send_multipart(session.serialize(message))
                waiting[str(message["header"]["msg_id"])] = index
            deadline = time.monotonic() + seconds
            while waiting:
                left = max(0.0, deadline - time.monotonic())
                if not (ready := poller.poll(int(left * 1e3))):
                    break
                for each, _ in ready:
                    question, frames = received(session, each)
                    if question in waiting:
                        index = waiting.pop(question)
                        found[index] = _loaded(index, function, frames)
        return found

    def where(
        self, processes: Iterable[int], seconds: float | None = None
    ) -> dict[int, Whereabouts]:
        """Returns where processes' main threads are, for those that tell in time.

        One whose sentinel fails has its ``fault`` instead.
        """
        found = self.ask_all(processes, WHERE, seconds=seconds)
        return {
            i: Whereabouts(i, (), fault=each.error) if isinstance(each, SentinelFault) else each
            for i, each in found.items()
        }


def received(session: Session, socket: Any) -> tuple[str, list[Any]]:
    """Returns which question was answered, and how; none where it is not the process's word.

    Of a dead process's address another program may have taken hold.
    """
    with contextlib.suppress(ValueError, KeyError):
        _, parts = session.feed_identities(socket.recv_multipart())
        message = session.deserialize(parts)
        if digest(*message["buffers"]) == message["metadata"][METADATA_KEY]:
            return str(message["parent_header"]["msg_id"]), message["buffers"]
    return "", []


def _loaded(index: int, function: str, frames: list[Any]) -> Any:
    """Returns an answer whose signature was checked."""
    try:
        return load(frames)
    except (Exception, SystemExit) as error:  # of a process whose jaxnb is another one
        told = f"its answer cannot be read: {type(error).__name__}: {error}"
        return SentinelFault(index, function.rpartition(".")[2], told)
