"""Has the handlers of signals that code sets called when what they raise does no harm."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]

PutsOff = Callable[[Handler, int], bool]
"""Takes a handler that is about to be called, of a signal; returns whether it is called later."""


class _Asking:
    """Stands in for a handler, and asks before each call."""

    def __init__(self, handler: Handler, puts_off: PutsOff) -> None:
        self.handler, self._puts_off = handler, puts_off

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if not self._puts_off(self.handler, number):
            self.handler(number, frame)


def install(puts_off: PutsOff) -> None:
    """Has handlers asked for that this process's code sets from now on, but for jaxnb's own.

    ``signal.signal`` and ``signal.getsignal`` return what was set, as always. Handlers that were
    set before, and those in C, are called as Python calls them.

    Args:
        puts_off: Asked in the main thread, where Python calls handlers.
    """
    python_signal, python_getsignal = signal.signal, signal.getsignal

    @functools.wraps(python_signal)
    def set_handler(number: Any, handler: Any) -> Any:
        is_own = str(getattr(handler, "__module__", "")).partition(".")[0] == "jaxnb"
        if callable(handler) and not is_own:
            handler = _Asking(handler, puts_off)
        return _of(python_signal(number, handler))

    @functools.wraps(python_getsignal)
    def get_handler(number: Any) -> Any:
        return _of(python_getsignal(number))

    signal.signal = set_handler  # type: ignore[assignment]
    signal.getsignal = get_handler  # type: ignore[assignment]


def _of(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Asking) else handler
