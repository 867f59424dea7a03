"""What becomes of SIGINT while this process runs code of the user's."""

from __future__ import annotations

import signal
import time
from types import FrameType

_raised_at: float | None = None


def allow() -> None:
    """Has SIGINT raise KeyboardInterrupt from now on, as Python does by itself."""
    global _raised_at
    _raised_at = None
    signal.signal(signal.SIGINT, _raise)


def ignore() -> None:
    """Has SIGINT do nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def note() -> None:
    """Notes that the code sees an interrupt now: Python runs handlers between its instructions."""
    global _raised_at
    _raised_at = time.monotonic()


def seconds_since_raised() -> float | None:
    """Returns how long ago the running code has seen an interrupt; None if it has not."""
    raised_at = _raised_at
    return None if raised_at is None else time.monotonic() - raised_at


def _raise(_: int, frame: FrameType | None) -> None:
    note()
    raise KeyboardInterrupt
