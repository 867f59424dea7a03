"""What becomes of SIGINT while this process runs code of the user's: KeyboardInterrupt, once.

Where Python would ignore what is raised, or JAX be left half set, it is put off for a moment.
"""

from __future__ import annotations

import _thread
import cmd
import contextlib
import gc
import itertools
import opcode
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import CodeType, CoroutineType, FrameType, FunctionType
from typing import Any

import jax

from jaxnb.errors import JaxnbError

AT_PROMPT = cmd.Cmd.onecmd.__code__
"""What runs a command that is typed at a debugger's prompt."""

TYPED = "ipdb> (typed at the prompt)"
"""The source of such a command's dispatches: the line of the cell is where the debugger stopped."""

_cell: Coroutine[Any, Any, Any] | None = None
_file = ""  # of the script that runs in the place of a cell


@contextmanager
def in_file(path: str) -> Iterator[None]:
    """Notes for the block the file of a script, whose code counts as a cell's."""
    global _file
    _file = path
    try:
        yield
    finally:
        _file = ""


@contextmanager
def cell(coroutine: Coroutine[Any, Any, Any]) -> Iterator[None]:
    """Notes for the block what a cell that awaits is run by."""
    global _cell
    _cell = coroutine
    try:
        yield
    finally:
        _cell = None


def frames_of(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields the calls that the main thread is in, innermost first.

    If it is in no cell, but a cell awaits something, then first the calls that await.

    Args:
        frame: Where the main thread is.
    """
    if not is_in_cell(frame):
        yield from reversed(list(_suspended()))
    yield from outwards(frame)


def is_in_cell(frame: FrameType | None) -> bool:
    """Whether a call, or one that has led to it, is of code that a cell has defined."""
    return any(is_of_cell(each.f_code) for each in outwards(frame))


def runs(code: CodeType, frame: FrameType | None) -> bool:
    """Whether a call, or one that has led to it, runs some code."""
    return any(each.f_code is code for each in outwards(frame))


def is_typed(frame: FrameType | None) -> bool:
    """Whether a call was made at a debugger's prompt, and not by a cell's code called there."""
    codes = (each.f_code for each in outwards(frame))
    found = next((code for code in codes if code is AT_PROMPT or is_of_cell(code)), None)
    return found is AT_PROMPT


def is_of_cell(code: CodeType) -> bool:
    """Whether a cell has defined it."""
    return code.co_filename.startswith("<cell ") or (_file != "" and code.co_filename == _file)


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields a call, the one that has made it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _suspended() -> Iterator[FrameType]:
    awaits: Any = _cell
    while isinstance(awaits, CoroutineType) and awaits.cr_frame is not None:
        if awaits.cr_running:
            return
        yield awaits.cr_frame
        awaits = awaits.cr_await


# An attribute, a ``__dir__`` or a ``__repr__`` of the user's may compute. Over several processes
# that
# would wait for the others, which know nothing of it.


class OnlyLooksError(JaxnbError):
    """A thread that only looks was about to dispatch to several processes."""


class _Thread(threading.local):
    only_looks = False


_THREAD = _Thread()


@contextlib.contextmanager
def only_looking() -> Iterator[None]:
    """Refuses what the block would dispatch to several processes, on this thread.

    What JAX dispatches without a word, as it does with ``check="off"``, is not refused.
    """
    _THREAD.only_looks = True
    try:
        yield
    finally:
        _THREAD.only_looks = False


def only_looks() -> bool:
    """Whether this thread only looks."""
    return _THREAD.only_looks


def refuse(processes: Sequence[int]) -> None:
    """Raises OnlyLooksError if a dispatch of this thread spans several processes."""
    if len(processes) > 1:
        raise OnlyLooksError(
            "This would compute on several processes; to complete a name or to show help, "
            "jaxnb only looks. Nothing was run."
        )


KEPT_FOR_SECONDS = 0.05
"""How soon it is tried again whether the main thread may see an interrupt that was kept from it."""

PUT_OFF_FOR_SECONDS = 0.001
PUT_OFF_SECONDS, PUT_OFF_TIMES = 0.5, 20
"""For so long an interrupt is put off at most, while JAX is at what must not be left half done; or
so many times, where others need the processor and each takes long."""

MOST_CALLS_WITHIN = 5
"""So many calls a context manager of JAX's has made at most when it sets something."""

_JAX = os.path.dirname(jax.__file__)
_CACHE, _BEFORE_WITH = 0, opcode.opmap.get("BEFORE_WITH")  # up to Python 3.13
_JUMP_BACKWARD = opcode.opmap["JUMP_BACKWARD"]

is_answering = False
"""The main thread answers the notebook, and catches what a signal's handler raises."""

_keeps: Callable[[], bool] | None = None
_took: Callable[[], None] | None = None
_put_off_since: float | None = None
_put_off_times = 0
_is_due = False  # an interrupt has come that the code has not seen
_struck_at: float | None = None
_missed_at: float | None = None
_jax_calls: frozenset[CodeType] = frozenset()


def install() -> None:
    """Has this process lose no interrupt that strikes where Python ignores exceptions.

    Destructors are such a place, and what is called when garbage is collected: JAX 0.10.2 has a
    function of its own called then. Python handles a signal where the next function is entered,
    which that one often is; it printed the KeyboardInterrupt, and the user's code went on.
    """
    global _jax_calls
    called = [each for each in gc.callbacks if isinstance(each, FunctionType)]
    _jax_calls = frozenset(each.__code__ for each in called if each.__module__.startswith("jax."))
    sys.unraisablehook = partial(_note_ignored, sys.unraisablehook)


def tell(keeps: Callable[[], bool], took: Callable[[], None]) -> None:
    """Has a signal told, which strikes while cells run in lockstep.

    Args:
        keeps: Takes a signal, and returns whether the main thread is not to see it now.
        took: Told that the main thread sees a signal.
    """
    global _keeps, _took
    _keeps, _took = keeps, took


def is_kept() -> bool:
    """Whether the main thread is not to see a signal that has come now.

    It comes again: what is computed may take long, and be the last that is dispatched.
    """
    if _keeps is None or not _keeps():
        return False
    _send_again_in(KEPT_FOR_SECONDS)
    return True


def strike_by_signal() -> KeyboardInterrupt:
    """Notes what :func:`strike` does, of a signal: in lockstep the conductor is told too."""
    if _took is not None:
        _took()
    return strike()


def allow() -> None:
    """Has SIGINT raise KeyboardInterrupt from now on while the main thread answers the notebook.

    Each SIGINT is either raised or noted as missed: ``signal.signal`` calls the handler of before
    for one that has come until then.
    """
    global _struck_at, _put_off_since, _is_due
    _struck_at = _put_off_since = None  # one that was put off may have found the cell at its end
    _is_due = False
    signal.signal(signal.SIGINT, _raise)


def ignore() -> None:
    """Has SIGINT do nothing but be noted as missed."""
    global _struck_at, _is_due
    signal.signal(signal.SIGINT, _note_missed)  # not SIG_IGN: that would lose it
    _struck_at, _is_due = None, False


def strike() -> KeyboardInterrupt:
    """Notes that the code sees an interrupt now; returns what to raise in it."""
    global _struck_at, _put_off_since, _is_due
    _put_off_since, _is_due = None, False
    _struck_at = time.monotonic()
    return KeyboardInterrupt()


def seconds_since_strike() -> float | None:
    """Returns how long ago the running code has seen an interrupt; None if it has not."""
    return None if (at := _struck_at) is None else time.monotonic() - at


def seconds_since_missed() -> float | None:
    """Returns how long ago a SIGINT came while it was ignored; None if none has."""
    return None if _missed_at is None else time.monotonic() - _missed_at


def _raise(_: int, frame: FrameType | None) -> None:
    if not is_answering:
        _note_missed()
        return
    if is_kept():
        return
    if frame and (_is_jax_at_work(frame) or _would_leave_unhandled(frame)) and _may_put_off():
        _send_again_in(PUT_OFF_FOR_SECONDS)
        return
    raise strike_by_signal()


def _is_jax_at_work(frame: FrameType) -> bool:
    return frame.f_code in _jax_calls or is_in_context_manager_of_jax(frame)


def is_in_context_manager_of_jax(frame: FrameType) -> bool:
    """Whether a context manager of JAX's is just being entered or left.

    What it has set, a mesh say, would stay: an interrupt would have Python not call the rest of it.
    JAX has some in its own functions, as in ``multihost_utils.process_allgather``.
    """
    return _is_entered_next(frame) or any(
        code.co_name in ("__enter__", "__exit__") or code.co_qualname == "set_mesh.__init__"
        for each in itertools.islice(outwards(frame), MOST_CALLS_WITHIN)
        if (code := each.f_code).co_filename.startswith(_JAX)
    )


def _is_entered_next(frame: FrameType) -> bool:
    """Whether what a call has just returned is entered next, as a context manager."""
    code = frame.f_code.co_code
    at = frame.f_lasti + 2
    while at < len(code) and code[at] == _CACHE:
        at += 2
    return at < len(code) and code[at] == _BEFORE_WITH


def _would_leave_unhandled(frame: FrameType) -> bool:
    """Whether Python would neither leave a ``with`` here, nor look at an ``except``.

    In Python 3.12 and 3.13 the jump back of a loop at a block's end lacks the block's handler.
    """
    code, at = frame.f_code, frame.f_lasti
    return (
        at >= 2
        and code.co_code[at] == _JUMP_BACKWARD
        and _handler(code, at) != _handler(code, at - 2)
    )


def _handler(code: CodeType, at: int) -> int | None:
    """Returns where code goes on when an exception is raised at an offset; None for nowhere."""
    numbers = _numbers(code.co_exceptiontable)
    for start in numbers:
        length, target, _ = next(numbers), next(numbers), next(numbers)
        if start <= at // 2 < start + length:
            return target
    return None


def _numbers(table: bytes) -> Iterator[int]:
    """Yields those of an exception table: six bits a byte, the seventh says that one goes on."""
    number = 0
    for byte in table:
        number = number << 6 | byte & 63
        if not byte & 64:
            yield number
            number = 0


def _may_put_off() -> bool:
    global _put_off_since, _put_off_times
    now = time.monotonic()
    if _put_off_since is None:
        _put_off_since, _put_off_times = now, 0
    _put_off_times += 1
    return now - _put_off_since < PUT_OFF_SECONDS or _put_off_times < PUT_OFF_TIMES


def _send_again_in(seconds: float) -> None:
    global _is_due
    _is_due = True
    _thread.start_new_thread(_send_again, (seconds,))  # which takes none of Python's own locks


def _send_again(seconds: float) -> None:
    time.sleep(seconds)
    if _is_due:  # else another one has struck meanwhile
        os.kill(os.getpid(), signal.SIGINT)


def _note_missed(*_: object) -> None:
    global _missed_at
    _missed_at = time.monotonic()


def _note_ignored(shown: Callable[[Any], object], unraisable: Any) -> None:
    global _struck_at
    if _struck_at is None or not issubclass(unraisable.exc_type, KeyboardInterrupt):
        shown(unraisable)
        return
    _struck_at = None  # the code has not seen it
    _send_again_in(PUT_OFF_FOR_SECONDS)
