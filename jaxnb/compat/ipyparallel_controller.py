"""ipyparallel's own names in its controller, and pyzmq's in its threads.

A thread or a process of ipyparallel's that cannot have its sockets (no file may be opened any more,
say) just ends, and the others run on without it: no engine counts as registered, or no output ever
comes. And who connects before a socket is there tries again a tenth of a second later only.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable
from typing import Any

import zmq
from ipyparallel.controller.heartmonitor import HeartMonitor
from zmq.devices import ThreadMonitoredQueue


class Relay(ThreadMonitoredQueue):
    """A thread that hands messages on, without which its process does not live.

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
