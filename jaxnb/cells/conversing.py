"""Conversations with the processes: pulls and pushes, one at a time, and none beside a cell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from jaxnb.cells.sigint import sigint_sets
from jaxnb.cells.turns import Turns
from jaxnb.wire.asking import Channel


class Conversations:
    """Lets one conversation go on at a time, and ends it if the processes do.

    Args:
        turns: What cells wait in too.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._current: Channel | None = None
        self._thread: int | None = None
        self._last_reason: Exception | None = None

    @property
    def current(self) -> Channel | None:
        """The channel that is being used."""
        return self._current

    @contextmanager
    def begin(
        self, on_wait: Callable[[], None], open_channel: Callable[[threading.Event], Channel]
    ) -> Iterator[Channel]:
        """Waits for a turn, and keeps it for the block.

        SIGINT in the main thread ends the conversation with KeyboardInterrupt; one that comes
        when it has ended is not lost.

        A thread that is in a conversation goes on with it: where a class that is unpickled uses
        the arrays that it is made of, its turn would come when it has got them.

        Args:
            on_wait: Called once if the turn does not come within a second.
            open_channel: Makes the channel; what it takes is set by SIGINT.
        """
        mine = self._current if self._thread == threading.get_ident() else None
        if mine is not None:
            yield mine
            return
        interrupted = threading.Event()
        with sigint_sets(interrupted), self._turns.turn(on_wait, interrupted):
            reason = self._last_reason
            channel = self._current = open_channel(interrupted)
            self._thread = threading.get_ident()
            try:
                missed = self._last_reason  # whoever gave it may not have seen the channel
                if missed is not None and missed is not reason:
                    channel.abandon(missed)
                channel.check()
                yield channel
            except Exception:
                channel.check()  # what failed since the processes ended says so
                raise
            finally:
                self._current = self._thread = None
                channel.end()
        if interrupted.is_set():
            raise KeyboardInterrupt

    def abandon(self, reason: Exception) -> None:
        """Makes a conversation that is under way end with an error."""
        self._last_reason = reason
        channel = self._current
        if channel is not None:
            channel.abandon(reason)
