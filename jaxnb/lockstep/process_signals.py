"""SIGINT while the main thread asks the conductor, or makes what it was let make."""

from __future__ import annotations

import time
from collections.abc import Callable

ON_ITS_WAY_SECONDS = 0.001
"""How often it is looked whether a signal has come that was sent."""


class KeptSignals:
    """Keeps signals from the main thread for a while; the conductor is told of them.

    It stops the cell on all processes then: this one too, at its next word, or by a signal once it
    is in Python again. For the main thread alone, signals' handlers included.

    Args:
        tell: Tells the conductor that a signal was kept.
    """

    def __init__(self, tell: Callable[[], None]) -> None:
        self._tell = tell
        self._depth = 0
        self._has_come = False

    def begin(self) -> None:
        """Keeps signals from now on, until :meth:`end`."""
        self._has_come = False
        self._depth += 1

    def end(self, depth: int) -> None:
        """Lets signals through again, unless others are still to be made.

        Args:
            depth: How many.
        """
        self._depth = depth

    def keeps(self) -> bool:
        """Takes a signal; returns whether it is kept. Called by the signal's handler."""
        if not self._depth:
            return False
        self._has_come = True
        self._tell()
        return True

    def wait(self) -> None:
        """Waits for a signal that was sent to this process: it must not strike later."""
        while not self._has_come:
            time.sleep(ON_ITS_WAY_SECONDS)
