"""How long to wait for a running cell: time-outs, interrupts, deaths, silent processes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from jaxnb.deaths import Death
from jaxnb.running import RunningCell

DEATH_GRACE_SECONDS = 2.0
"""After a death the other processes may go on with their cell for so long."""

INTERRUPT_GRACE_SECONDS = 3.0
"""After this long without an answer to an interrupt the user is told who is silent."""


class Interruptible(Protocol):
    """What :class:`Patience` needs of a session."""

    @property
    def deaths(self) -> Sequence[Death]:
        """Processes of the group that died without having been told to."""

    def interrupt(self) -> None:
        """Interrupts the running cell on every process that is still in it."""

    def mark_out_of_step(self) -> None:
        """Notes that processes did not come back."""


class Patience:
    """Decides, for one running cell, when to interrupt and when to stop waiting.

    Args:
        group: What runs it.
        running: The cell.
        timeout: Seconds after which it is interrupted, or None.
    """

    def __init__(self, group: Interruptible, running: RunningCell, timeout: float | None) -> None:
        self._group = group
        self._running = running
        self._timeout = timeout
        self._interrupted_at: float | None = None
        self._died_at: float | None = None
        self._told = False
        self.timed_out = False

    def interrupt(self) -> bool:
        """Passes an interrupt on; a second one gives up waiting. Returns whether to go on."""
        if self._interrupted_at is not None and self._told:
            self._group.mark_out_of_step()
            return False
        self._interrupted_at = time.monotonic()
        self._group.interrupt()
        return True

    def look(self) -> bool:
        """Looks at the clock and at deaths; returns whether to go on waiting."""
        running = self._running
        if not running.waiting_for:
            return True
        if self._group.deaths and self._interrupted_at is None and self._others_had_time():
            self.interrupt()
        if self._timeout is not None and not self.timed_out and running.seconds > self._timeout:
            self.timed_out = True
            self.interrupt()
        if self._interrupted_at is None:
            return True
        silent_for = time.monotonic() - self._interrupted_at
        if silent_for < INTERRUPT_GRACE_SECONDS:
            return True
        return self._give_notice_or_up()

    def _others_had_time(self) -> bool:
        """Whether those that outlived a death have had time to end their cell by themselves.

        What waits in a collective with the dead gets an error from the broken connection.
        """
        if self._died_at is None:
            self._died_at = time.monotonic()
        return time.monotonic() - self._died_at > DEATH_GRACE_SECONDS

    def _give_notice_or_up(self) -> bool:
        if self.timed_out or self._group.deaths:
            self._group.mark_out_of_step()
            return False
        if not self._told:
            self._told = True
            waiting = ", ".join(map(str, sorted(self._running.waiting_for)))
            self._running.notice(
                f"Process {waiting} did not answer the interrupt within "
                f"{INTERRUPT_GRACE_SECONDS:g} s: it waits in compiled code, likely in a "
                "collective that other processes have not joined. Interrupt again to stop "
                "waiting; then `%spmd_restart` gives fresh processes."
            )
        return True


@contextmanager
def interrupts_to(running: RunningCell) -> Iterator[threading.Event]:
    """Turns SIGINT into an event while a cell runs.

    KeyboardInterrupt could strike anywhere, in the middle of merging output too. Outside the
    main thread there are no signals to turn.
    """
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def on_sigint(*_: object) -> None:
        interrupted.set()
        running.exchange.wake()

    previous = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, previous)
