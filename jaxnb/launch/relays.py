"""The heart monitor of the ipyparallel controller: that it listens, and when it asks for beats."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import Any

from jaxnb.compat import ipyparallel_controller

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

        # In the child, which has nothing else to do.
        ipyparallel_controller.tell_of_heart_monitor(
            lambda: os.write(write_fd, b"\n"), _beat_when_woken
        )
        run()

    process.run = tell_and_run
    process.start()
    os.close(write_fd)
    return read_fd


def _beat_when_woken(monitor: Any) -> None:
    """Has a heart monitor, which has just started in this process, beat after SIGUSR1 only."""
    loop, beats = asyncio.get_running_loop(), ipyparallel_controller.beats_of(monitor)
    sleeps: asyncio.TimerHandle | None = None

    def wake() -> None:
        nonlocal sleeps
        if sleeps is not None:
            sleeps.cancel()
        sleeps = loop.call_later(AWAKE_SECONDS, beats.stop)
        if not beats.is_running():
            beats.start()

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
