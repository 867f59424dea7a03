"""Knowing that the ipyparallel controller's threads and its heart monitor have their sockets.

A thread or a process of ipyparallel's that cannot have one (no file may be opened any more, say)
just ends, and the others run on without it: no engine counts as registered, or no output ever
comes. And who connects before a socket is there tries again a tenth of a second later only.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import traceback
from typing import Any

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


AWAKE_SECONDS = 2.0
"""For so long hearts are asked to beat after somebody has registered: three times at least."""


def start_heart_monitor(process: Any) -> int:
    """Starts the process that hears the engines' hearts.

    It asks them to beat after SIGUSR1 only, for :data:`AWAKE_SECONDS`: that a heart beats tells
    that its engine can be registered, and nothing after that. To ask eight of them all the time
    takes 1 % of a processor.

    Args:
        process: ipyparallel's, which has not been started. It is forked.

    Returns:
        A file for :func:`wait_until_it_listens`.
    """
    read_fd, write_fd = os.pipe()
    run = process.run

    def tell_and_run() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it is awake at first
        start = HeartMonitor.start  # called once both sockets are bound

        def tell_and_start(monitor: Any) -> None:
            os.write(write_fd, b"\n")
            start(monitor)
            _beat_when_woken(monitor)

        HeartMonitor.start = tell_and_start  # in the child, which has nothing else to do
        run()

    process.run = tell_and_run
    process.start()
    os.close(write_fd)
    return read_fd


def _beat_when_woken(monitor: Any) -> None:
    """Has a heart monitor, which has just started in this process, beat after SIGUSR1 only."""
    loop = asyncio.get_running_loop()
    sleeps: asyncio.TimerHandle | None = None

    def wake() -> None:
        nonlocal sleeps
        if sleeps is not None:
            sleeps.cancel()
        sleeps = loop.call_later(AWAKE_SECONDS, monitor.caller.stop)
        if not monitor.caller.is_running():
            monitor.caller.start()

    loop.add_signal_handler(signal.SIGUSR1, wake)
    wake()  # a signal before now was lost


def wait_until_it_listens(fd: int) -> None:
    """Waits until the heart monitor has its sockets.

    Raises:
        SystemExit: It has ended; why is the last that it wrote.
    """
    with os.fdopen(fd, "rb") as told:
        if not told.read(1):
            raise SystemExit("The heart monitor could not start.")
