"""This process's part in stopping all processes of a cell at the same dispatch.

A training loop runs ahead of its computations, and each process is somewhere else in it. Would
each raise KeyboardInterrupt where it is, some would have dispatched a step that others never
dispatch: it never completes, and what it computes is lost. So the notebook has all processes hold
before their next dispatch, sees how far the foremost has come, and has all go on up to there.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from jaxnb.engine import interrupts
from jaxnb.model.dispatches import Processes

HOLD_SECONDS = 5.0
"""A hold ends by itself so long after the notebook has last asked for it."""


class HoldPoint:
    """Holds the main thread before a dispatch, and raises KeyboardInterrupt in it at the right one.

    The main thread calls :meth:`come_to`; the sentinel's thread calls :meth:`hold`, :meth:`stop_at`
    and :meth:`release`. A hold ends with the interrupt, with the cell, when it is released, and
    ``HOLD_SECONDS`` after the notebook has last asked for it: nobody is held for ever. No lock is
    shared: a signal may strike the main thread anywhere.

    Attributes:
        is_on: Whether dispatches have to call :meth:`come_to`.
        is_passing: The main thread is about to make a dispatch that is not counted yet. It sets
            this before it looks at ``is_on``, and the sentinel looks after it has set ``is_on``.
        is_held: The main thread waits before a dispatch.
        over: The processes of the dispatch that it is held before.
        request_id: The cell that runs; empty if none does.
    """

    def __init__(self) -> None:
        self.is_on = self.is_passing = self.is_held = False
        self.over: Processes = ()
        self.request_id = ""
        self._number = 0
        self._since = self._until = 0.0
        self._at: tuple[Processes, int] | None = None
        self._has_stopped = False
        self._bell = threading.Lock()  # open when there is something new to look at
        self._bell.acquire()

    def begin(self, request_id: str) -> None:
        """Begins a cell."""
        self._end()
        self.request_id = request_id

    def end(self) -> None:
        """Ends a cell."""
        self.request_id = ""
        self._end()

    def _end(self) -> None:
        self._number, self.is_on, self._at, self._has_stopped = 0, False, None, False

    def come_to(self, processes: Processes, count: Callable[[Processes], int]) -> None:
        """Waits before a dispatch as long as the process is held; for the main thread.

        Args:
            processes: Those that the dispatch spans.
            count: Returns how many dispatches over some processes this one has made in the cell.

        Raises:
            KeyboardInterrupt: It has made all dispatches up to the one after which all stop.
        """
        self.over = processes
        try:
            while True:
                self.is_passing = True
                if not self.is_on:
                    return
                self.is_passing = False
                if self._was_interrupted():  # by a signal: it must not be struck again
                    self.is_on = False
                    continue
                if (order := self._at) is not None:
                    if count(order[0]) >= order[1]:
                        error = interrupts.strike(sys._getframe())
                        self._has_stopped, self.is_on = True, False
                        raise error
                    self.is_passing = True
                    return
                left = self._until - time.monotonic()
                if left <= 0:  # the notebook has gone, or has forgotten it
                    self.is_on = False
                    continue
                self.is_held = True
                self._bell.acquire(timeout=left)
                self.is_held = False
        except BaseException:
            self.is_on = self.is_passing = False
            raise
        finally:
            self.is_held = False

    def hold(self, request_id: str, number: int) -> None:
        """Has the main thread wait before its next dispatch over several processes.

        Args:
            request_id: The cell that is to be interrupted.
            number: Which attempt to stop it this is.
        """
        if request_id != self.request_id:
            return
        if number != self._number:
            self._number, self._at, self._has_stopped = number, None, False
            self._since = time.monotonic()
        self._until = time.monotonic() + HOLD_SECONDS
        self.is_on = not self.has_stopped
        self._ring()

    def stop_at(self, request_id: str, number: int, processes: Processes, count: int) -> None:
        """Has the main thread go on, and raise KeyboardInterrupt after so many dispatches.

        Args:
            request_id: The cell.
            number: Which attempt this is.
            processes: The dispatches over these count.
            count: After how many it stops, or at once if it has made as many.
        """
        if (request_id, number) == (self.request_id, self._number):
            self._at = processes, count
            self.is_on = not self.has_stopped
            self._ring()

    def release(self) -> None:
        """Has the main thread go on as if nothing had been asked."""
        self.is_on, self._at = False, None
        self._ring()

    @property
    def has_stopped(self) -> bool:
        """Whether the cell has seen an interrupt since the present attempt began."""
        return self._has_stopped or self._was_interrupted()

    @property
    def unfit(self) -> str:
        """Why an interrupt that is raised here would not be what SIGINT does; empty if it is."""
        handler: Any = signal.getsignal(signal.SIGINT)
        return "" if interrupts.is_own(handler) else "SIGINT does something else"

    def _was_interrupted(self) -> bool:
        seconds = interrupts.seconds_since_strike()
        return seconds is not None and time.monotonic() - seconds > self._since

    def _ring(self) -> None:
        if self._bell.locked():  # only the sentinel's thread opens it
            self._bell.release()
