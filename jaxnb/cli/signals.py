"""Signals that end a command, by an exception, so that what it has started ends first."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

TIMED_OUT = 124
"""The exit status after a time-out, as of ``timeout``."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal has ended this command.

    Attributes:
        status: Its exit status, as a shell gives it.
    """

    def __init__(self, number: int) -> None:
        self.status = 128 + number


def install() -> None:
    """Has each of the signals raise :class:`Ended` in the main thread, wherever that is."""
    for number in ENDING:
        signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    raise Ended(number)


@contextmanager
def installed() -> Iterator[None]:
    """Does that for the block."""
    before = {number: signal.getsignal(number) for number in ENDING}
    install()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
