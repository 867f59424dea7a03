"""What a process that a cell has forked does not take over from the process it was forked from.

A fork copies signal handlers and exit handlers. Those of jaxnb, ipykernel and JAX are about
threads, sockets and devices that the copy does not have: a ``multiprocessing`` worker that ran
them when it was terminated died in JAX's, with fifty lines of a segmentation fault. So a child
begins with Python's own handlers. Those that the cell's code has set for signals stay; exit
handlers do not. A child made by ``os.fork`` that comes to the end of the cell, by ``sys.exit``
too, ends there. It would go on as a second one of its process, on the same sockets.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import traceback
from typing import Any, NoReturn

_PYTHONS_OWN: dict[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
}

_parent_pid: int | None = None
_held = threading.local()


def install() -> None:
    """Has children that are forked from now on begin with Python's own handlers."""
    global _parent_pid
    if _parent_pid == os.getpid():
        return
    _parent_pid = os.getpid()
    os.register_at_fork(
        before=_hold_signals, after_in_parent=_let_signals_go, after_in_child=_forget_handlers
    )


def is_child() -> bool:
    """Whether this is a process that a cell has forked."""
    return _parent_pid is not None and os.getpid() != _parent_pid


def end(error: BaseException | None) -> NoReturn:
    """Ends this child of a cell, as Python ends a program.

    What it raised is written to standard error. Exit handlers that it has registered itself run.

    Args:
        error: What the cell has raised in it, if anything.
    """
    status = 0
    if isinstance(error, SystemExit):
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code, file=sys.__stderr__)
    elif error is not None:
        status = 1
        traceback.print_exception(error, file=sys.__stderr__)
    try:
        atexit._run_exitfuncs()
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):  # closed, or its other end is
            stream.flush()  # type: ignore[union-attr]
    os._exit(status & 0xFF)


def _hold_signals() -> None:
    """Has a signal that is sent to the child wait until it has handlers of its own."""
    _held.mask = signal.pthread_sigmask(signal.SIG_BLOCK, _PYTHONS_OWN)


def _let_signals_go() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _held.mask)


def _forget_handlers() -> None:
    ours = [number for number in _PYTHONS_OWN if _is_of_jaxnb(signal.getsignal(number))]
    for number in ours:
        # What has come by now ends the child: Python ignores what is raised here.
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)  # a pipe of the parent's event loop
    _let_signals_go()
    for number in ours:
        signal.signal(number, _PYTHONS_OWN[number])
    atexit._clear()
    # What Python's own modules register when they are imported.
    if "multiprocessing.util" in sys.modules:
        atexit.register(sys.modules["multiprocessing.util"]._exit_function)
    if "logging" in sys.modules:
        atexit.register(sys.modules["logging"].shutdown)


def _is_of_jaxnb(handler: Any) -> bool:
    return str(getattr(handler, "__module__", "")).startswith("jaxnb.")
