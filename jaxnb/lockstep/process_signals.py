"""Signals while the main thread asks the conductor, or makes what it was let make."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxnb.lockstep.process_handlers import tells


class KeptSignals:
    """Keeps signals from the main thread for a while: nothing that a handler raises strikes there.

    What all were let make, all make. Of SIGINT the conductor is told. It stops the cell on all
    processes then: this one too, at its next word, or by a signal once it is in Python again.
    Other handlers, a time-out's say, are called after what is made; one for which the thread
    waits for its answer takes the word back. As in Python, several signals of one kind that are
    due call one handler once: the one that is set by then.

    For the main thread alone, signals' handlers included. A child that is forked keeps none.

    Args:
        tell: Tells the conductor that SIGINT was kept.
        handled: Tells it that a handler of the user's own is called for SIGINT.
        take_back: Takes back the word that the thread waits with, if any.
    """

    def __init__(
        self,
        tell: Callable[[], None],
        handled: Callable[[], None],
        take_back: Callable[[], None],
    ) -> None:
        self._tell, self._handled, self._take_back = tell, handled, take_back
        self._depth = 0
        self._has_come = False
        self._late: dict[int, None] = {}  # the numbers of signals, as they came
        os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._depth = 0
        self._late.clear()

    def begin(self) -> None:
        """Keeps signals from now on, until :meth:`end`."""
        self._has_come = False
        self._depth += 1

    def end(self, depth: int) -> None:
        """Lets signals through again, unless others are still to be made.

        Args:
            depth: How many.

        Raises:
            BaseException: What a handler raises that was put off.
        """
        self._depth = depth
        if self._late and not depth:
            number = next(iter(self._late))
            del self._late[number]
            handler = signal.getsignal(number)
            try:
                if callable(handler):
                    handler(number, sys._getframe(1))
            finally:
                self.end(0)

    @contextmanager
    def let_through(self) -> Iterator[None]:
        """Keeps none for the block, unless others are still to be made."""
        depth = self._depth
        self.end(depth - 1)
        try:
            yield
        finally:
            self._depth = depth

    def are_waited_for(self) -> bool:
        """Whether handlers were put off that can be called if the thread does not go on waiting."""
        return self._depth == 1 and bool(self._late)

    def keeps(self) -> bool:
        """Takes a SIGINT; returns whether it is kept. Called by the signal's handler."""
        if not self._depth:
            return False
        if not self._has_come:
            self._has_come = True
            self._tell()
        return True

    def puts_off(self, number: int) -> bool:
        """Takes a signal with a handler of the user's; returns whether that is called later."""
        if number == signal.SIGINT:
            if not (is_kept := self.keeps()):
                self._handled()
            return is_kept
        if not self._depth:
            return False
        self._late[number] = None
        if self.are_waited_for():
            self._take_back()
        return True

    def take_sent(self) -> None:
        """Takes a SIGINT that the conductor has sent before its answer: it must not strike later.

        Code may have ignored it for a moment, as a checkpoint does, or ``system(3)``: so nobody
        waits for it. If it is still to be handled, Python calls the handler for both at once.
        """
        if not self._has_come and tells(signal.SIGINT):
            signal.raise_signal(signal.SIGINT)
