"""ipyparallel's own names in its client, controller and launchers, and pyzmq's in its threads."""

from __future__ import annotations

import logging
import os
import threading
import traceback
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from typing import Any

import zmq
from ipyparallel import Client
from ipyparallel.client.client import unpack_message
from zmq.devices import ThreadMonitoredQueue

Message = Mapping[str, Any]


class RawClient(Client):  # type: ignore[misc]
    """ipyparallel's client, with what comes of jaxnb's requests handed on as it comes.

    ipyparallel adds all text of a request up in the request's metadata, which is quadratic in
    its length, drops what comes after the request has ended, and unpickles buffers, which no
    signature covers. Its views offer neither a request that is not a pickled function nor output
    as it comes, and its futures cost as much as all else on the way.

    Attributes:
        on_output: Takes what came of a request while it ran.
        on_reply: Takes the reply to a request.
        on_ended: Takes the number and identity of an engine that has ended.
    """

    log = logging.getLogger("jaxnb")  # where a message goes that is not signed as it should be
    on_output: Callable[[Message], None]
    on_reply: Callable[[Message], None]
    on_ended: Callable[[int, str], None]

    @unpack_message  # type: ignore[untyped-decorator]
    def _dispatch_iopub(self, message: Message) -> None:
        if message["parent_header"]:
            try:
                self.on_output(message)
                if message["header"]["msg_type"].startswith("comm_"):
                    Client._dispatch_iopub.__wrapped__(self, message)
                    self.metadata.pop(message["parent_header"]["msg_id"], None)
            except Exception:  # raised further, no message would come any more
                self.log.exception("a message that a process has sent could not be read")

    @unpack_message  # type: ignore[untyped-decorator]
    def _dispatch_reply(self, message: Message) -> None:
        self.on_reply(message)

    def _handle_stranded_msgs(self, engine: int, identity: str) -> None:
        self.on_ended(engine, identity)

    @property
    def is_closed(self) -> bool:
        """Whether the connection is closed."""
        return bool(self._closed)

    def numbers(self) -> dict[str, int]:
        """Returns the numbers of the engines that are known, by identity."""
        return {identity: engine for engine, identity in list(self._engines.items())}

    def learn_engines(self, identities: Collection[str]) -> None:
        """Asks the controller for its engines; the answer is taken in the client's thread.

        Args:
            identities: Those that are to be known from then on; others are not.
        """

        def take(answer: Future[Any]) -> None:
            engines = answer.result()["content"]["engines"]
            self._update_engines({i: name for i, name in engines.items() if name in identities})

        self._send(self._query_stream, "connection_request").add_done_callback(take)

    def forget_engine(self, engine: int) -> None:
        """Tells the controller that an engine has ended."""
        self._send(self._query_stream, "unregistration_request", content={"id": engine})

    def send_raw(self, message: Any, buffers: list[Any], identity: bytes) -> None:
        """Sends a message to an engine, from the client's thread.

        By the stream, not by its socket: a send past the stream swallows the wake-up for a reply
        that has just come.
        """

        def send() -> None:
            self.session.send(self._mux_stream, message, buffers=buffers, ident=identity)

        self._io_loop.add_callback(send)


class Relay(ThreadMonitoredQueue):
    """A thread that hands messages on, without which its process does not live.

    A thread or a process of ipyparallel's that cannot have its sockets (no file may be opened any
    more, say) just ends, and the others run on without it: no engine counts as registered, or no
    output ever comes. And who connects before a socket is there tries again a tenth of a second
    later only.

    Attributes:
        bound: Set once its sockets are bound.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[no-untyped-call]
        _ = super()._setup_sockets  # a pyzmq without it is found out here: nobody would set it
        self.bound = threading.Event()

    def _setup_sockets(self) -> Any:
        # pyzmq's own name, for no public one stands between binding and waiting for messages.
        sockets = super()._setup_sockets()  # type: ignore[no-untyped-call]
        self.bound.set()
        return sockets

    def run(self) -> None:
        """Hands messages on; where it cannot, the process ends, and whoever forked it sees why."""
        try:
            super().run()
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def relay_with(controller: Any) -> None:
    """Has a controller relay messages by :class:`Relay`; before it makes its schedulers."""
    controller.mq_class = f"{__name__}.{Relay.__name__}"


def tell_of_heart_monitor(listens: Callable[[], object], beats: Callable[[Any], None]) -> None:
    """Has a heart monitor told that starts in this process from now on.

    Args:
        listens: Called once it has its sockets; after that it waits for the hub.
        beats: Takes the monitor, which has begun to ask for beats.
    """
    from ipyparallel.controller.heartmonitor import HeartMonitor

    start = HeartMonitor.start  # called once both sockets are bound

    def tell_and_start(monitor: Any) -> None:
        listens()
        start(monitor)
        beats(monitor)

    HeartMonitor.start = tell_and_start


def beats_of(monitor: Any) -> Any:
    """Returns the timer by which a heart monitor asks for beats: it can be stopped and started."""
    return monitor.caller


def leave_out_traffic(hub: Any) -> None:
    """Leaves a hub's monitor with what keeps track of engines.

    By default the hub gets a copy of every message of every cell and parses it, to answer
    questions on queues and results; that costs as much as the notebook's side of a cell.
    """
    monitor = hub.monitor.socket
    monitor.setsockopt(zmq.UNSUBSCRIBE, b"")
    monitor.setsockopt(zmq.SUBSCRIBE, b"heartmonitor")


def call_at_registrations(hub: Any, called: Callable[[], None]) -> None:
    """Has a function called each time that a hub has begun to register an engine."""
    register = hub.query_handlers["registration_request"]

    def registered(*message: Any) -> Any:
        answer = register(*message)
        called()
        return answer

    hub.query_handlers["registration_request"] = registered


def is_registering(hub: Any) -> bool:
    """Whether engines are being registered whose hearts have not been heard yet."""
    return bool(hub.incoming_registrations)
