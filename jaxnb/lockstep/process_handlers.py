"""Has the handlers of signals that code sets called when what they raise does no harm."""

from __future__ import annotations

import functools
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

Handler = Callable[[int, FrameType | None], Any]


class Asked(Protocol):
    """What is asked before a handler is called; in the main thread, where Python calls them."""

    def puts_off(self, number: int) -> bool:
        """Takes a signal whose handler is due; returns whether that is called later."""

    def is_idle(self) -> bool:
        """Whether no code of the user's runs, so that nobody can catch what the handler raises."""


class _Asking:
    """Stands in for a handler, and asks before each call."""

    def __init__(self, handler: Handler, asked: Asked) -> None:
        self.handler, self._asked = handler, asked

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._asked.puts_off(number):
            return
        if not self._asked.is_idle():
            self.handler(number, frame)
            return
        try:
            self.handler(number, frame)
        except (Exception, KeyboardInterrupt):  # it would end this process's event loop
            name = signal.Signals(number).name
            sys.stderr.write(f"Between cells the handler of {name} raised:\n")
            traceback.print_exc()


_python_getsignal = signal.getsignal


def install(asked: Asked) -> None:
    """Has handlers asked for that this process's code sets from now on, but for jaxnb's own.

    ``signal.signal`` and ``signal.getsignal`` return what was set, as always. Handlers that were
    set before, and those in C, are called as Python calls them.

    Args:
        asked: Is asked.
    """
    python_signal = signal.signal

    @functools.wraps(python_signal)
    def set_handler(signalnum: Any, handler: Any) -> Any:
        if callable(handler) and not is_own(handler):
            handler = _Asking(handler, asked)
        return _of(python_signal(signalnum, handler))

    @functools.wraps(_python_getsignal)
    def get_handler(signalnum: Any) -> Any:
        return _of(_python_getsignal(signalnum))

    signal.signal = set_handler
    signal.getsignal = get_handler


def tells(number: int) -> bool:
    """Whether jaxnb is told when a signal has come."""
    handler = _python_getsignal(number)
    return isinstance(handler, _Asking) or is_own(handler)


def is_of_handler(error: BaseException) -> bool:
    """Whether a handler has raised it that code has set: it is that code's to catch."""
    frames = traceback.walk_tb(error.__traceback__)
    return any(frame.f_code is _Asking.__call__.__code__ for frame, _ in frames)


def is_own(handler: object) -> bool:
    """Whether a handler is jaxnb's."""
    return str(getattr(handler, "__module__", "")).partition(".")[0] == "jaxnb"


def _of(handler: Any) -> Any:
    return handler.handler if isinstance(handler, _Asking) else handler
