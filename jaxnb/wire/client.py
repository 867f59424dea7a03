"""The notebook's end of the transport: requests to processes, their streams and replies back.

ipyparallel's client connects, knows the engines, and reads its sockets in a thread of its own.
What comes of jaxnb's requests is taken from it as it comes (``compat/ipyparallel``).
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from jaxnb.compat.ipyparallel import RawClient
from jaxnb.errors import ProcessDiedError
from jaxnb.labels import capitalized, processes_label
from jaxnb.model.cells import CellRequest, Request
from jaxnb.wire.direct import Direct
from jaxnb.wire.messages import (
    AFTER_KEY,
    METADATA_KEY,
    MORE_KEY,
    Exchange,
    Output,
    Reply,
    digest,
    dump,
    event_of,
    load,
)

ASK_SECONDS = 0.5
"""So long a registration may go without notice; then the controller is asked."""

REQUESTS_KEPT = 10_000
"""Output of a thread that one of so many requests started is still told by its process."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A request to one process; for the client's thread.

    Attributes:
        process_index: The process.
        identity: That of its engine.
        exchange: Where what comes of it goes; None once all has come that is waited for.
        has_output: Of a cell that has output, as its reply says, also the "idle" that follows the
            last of it is waited for; it and the reply come over two sockets, in either order.
        has_ended: That has come.
        reply: The reply, from when it has come until it is handed on.
    """

    process_index: int
    identity: str
    exchange: Exchange | None
    has_output: bool
    has_ended: bool = False
    reply: Reply | None = None

    def came(self) -> None:
        """Hands on the reply if nothing else is waited for."""
        is_all = self.reply is not None and (self.has_ended or not self.has_output)
        if is_all and self.exchange is not None:
            self.exchange.events.put(self.reply)
            self.exchange = self.reply = None


class Transport:
    """A connection to the group's processes through the ipyparallel controller.

    Args:
        connection: The controller's connection information for clients.
        on_stray: Called, in the client's thread, for output that belongs to no request that
            is still running: a thread of an earlier cell prints.

    Attributes:
        engine_ids: Process index to the number of its engine.
        direct: What reaches the processes past the controller, once they have joined. What is sent
            here is answered after what was sent there before.
    """

    def __init__(self, connection: Mapping[str, Any], on_stray: Callable[[Output], None]) -> None:
        self._client = RawClient(dict(connection), timeout=30)
        self._client.on_output, self._client.on_reply = self._route, self._take_reply
        self._client.on_ended = self._take_end
        self._on_stray = on_stray
        self._requests: OrderedDict[str, _Sent] = OrderedDict()
        self._uuids: dict[int, bytes] = {}
        self._last: dict[int, _Sent] = {}  # to each process
        self._ended = threading.Condition()
        self.engine_ids: dict[int, int] = {}
        self.direct = Direct(self.key, {})

    @property
    def key(self) -> bytes:
        """The cluster's key, which messages are signed with."""
        key: bytes = self._client.session.key
        return key

    # ------------------------------------------------------------------ engines

    def wait_for(
        self, identities: Mapping[int, str], deadline: float, check: Callable[[], None]
    ) -> None:
        """Waits until the processes have registered with the controller.

        From then on requests go to them by process index.

        Args:
            identities: Process index to the identity its engine was given.
            deadline: On ``time.monotonic()``.
            check: Called a few times a second; raises to give up.

        Raises:
            TimeoutError: Some did not come in time; the message names them.
        """
        asked_at = time.monotonic()
        while True:
            check()
            engine_ids = self._client.numbers()
            missing = [i for i, name in identities.items() if name not in engine_ids]
            if not missing:
                break
            left = deadline - time.monotonic()
            if left <= 0:
                who = capitalized(processes_label(missing))
                raise TimeoutError(
                    f"{who} did not register with the ipyparallel controller in time"
                )
            # A future of ipyparallel's that its notification of the next engine resolves.
            arrival = self._client.wait_for_engines(
                len(self._client.ids) + 1, block=False, interactive=False
            )
            wait_for(arrival, min(left, 0.1))
            if time.monotonic() - asked_at > ASK_SECONDS:
                asked_at = time.monotonic()
                # Its notices do not reach a client whose subscription is still on the way: all
                # engines that register in that moment would be waited for in vain.
                self._client.learn_engines(identities.values())
        self._uuids = {index: name.encode() for index, name in identities.items()}
        self._last.clear()
        self._requests.clear()  # of processes that have ended
        self.direct = Direct(self.key, {})
        self.engine_ids = {index: engine_ids[name] for index, name in identities.items()}

    def unheard(self, seconds: float) -> list[int]:
        """Returns the processes of whose check no output came, nor the sign of its end.

        That comes by a subscription, which reaches a new process some time after it has begun to
        answer. A cell that was run before would be waited for without end.

        Args:
            seconds: How long to wait for it at most.
        """
        last = sorted(self._last.items())
        with self._ended:
            self._ended.wait_for(lambda: all(sent.has_ended for _, sent in last), seconds)
        return [index for index, sent in last if not sent.has_ended]

    def forget(self, process_index: int) -> None:
        """Tells the controller that a process has ended.

        Its requests in flight end with an error, here and for every other client.
        """
        engine_id = self.engine_ids.pop(process_index, None)
        if engine_id is not None:
            self._client.forget_engine(engine_id)

    # ------------------------------------------------------------------ requests

    def send_to(self, exchange: Exchange, index: int, request: Request) -> None:
        """Sends a request to one process; what comes back comes into the exchange.

        Replies to several requests to one process come in the order of the requests.
        """
        if self._client.is_closed:
            raise OSError("the connection to the controller is closed")
        session, frames = self._client.session, dump(request)
        metadata = {METADATA_KEY: digest(*frames), AFTER_KEY: self.direct.sent[index]}
        has_output = isinstance(request, CellRequest)
        message = session.msg("apply_request", metadata=metadata)
        identity = self._uuids[index]
        sent = _Sent(index, identity.decode(), exchange, has_output)
        self._last[index] = self._requests[message["header"]["msg_id"]] = sent
        if len(self._requests) > REQUESTS_KEPT:  # one cell at a time: that has long been answered
            self._requests.popitem(last=False)
        self._client.send_raw(message, frames, identity)

    def _route(self, message: Mapping[str, Any]) -> None:
        """Hands on what came of a request while it ran."""
        sent = self._requests.get(message["parent_header"]["msg_id"])
        if sent is None:
            return  # another client's, or older than a restart
        if (event := event_of(message)) is not None:
            take = self._on_stray if sent.exchange is None else sent.exchange.events.put
            take(replace(event, process_index=sent.process_index))
        elif message["content"].get("execution_state") == "idle":
            with self._ended:
                sent.has_ended = True
                self._ended.notify_all()
            sent.came()

    def _take_reply(self, message: Mapping[str, Any]) -> None:
        """Hands on a reply, unless its buffers are not those that were signed."""
        buffers = [getattr(b, "buffer", b) for b in message["buffers"]]
        if digest(*buffers) != message["metadata"].get(METADATA_KEY):
            logging.getLogger("jaxnb").warning("dropped a reply whose buffers were not signed")
            return
        sent = self._requests.get(message["parent_header"]["msg_id"])
        if sent is None or sent.exchange is None or sent.reply is not None:
            return  # it has come before
        try:
            answer = load(buffers)
        except Exception as unreadable:  # whoever waits must not wait for ever
            answer = unreadable
        sent.reply = Reply(sent.process_index, answer)
        sent.has_output &= message["metadata"][MORE_KEY]
        sent.came()

    def _take_end(self, engine: int, identity: str) -> None:
        """Answers what an engine that has ended was asked and has not answered."""
        for sent in list(self._requests.values()):
            if sent.identity == identity and sent.exchange is not None:
                sent.has_output = False
                if sent.reply is None:
                    index = sent.process_index
                    error = ProcessDiedError("before it had answered", process_index=index, pid=0)
                    sent.reply = Reply(index, error)
                sent.came()

    def close(self) -> None:
        """Closes the connection; the processes run on."""
        self._client.close(linger=0)


def wait_for(future: Future[Any], seconds: float) -> bool:
    """Waits for a future; returns whether it is done."""
    try:
        future.exception(timeout=seconds)
    except TimeoutError:
        return False
    return True
