"""What becomes of SIGINT while this process runs code of the user's.

The code sees KeyboardInterrupt. Where it has swallowed that, and is back where it was struck, it is
in a loop that would swallow any number of them. The next SIGINT is :class:`SwallowedInterrupt`, and
the one after that is another one as soon as the first is handled: who catches everything does not
catch what its own handler raises.
"""

from __future__ import annotations

import _thread
import gc
import itertools
import opcode
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any

import jax

from jaxnb.engine import main_thread
from jaxnb.engine.awaiting import is_of_cell, outwards
from jaxnb.engine.main_thread import Call, call_of
from jaxnb.model import WAYS


class SwallowedInterrupt(BaseException):
    """Raised in code that has swallowed KeyboardInterrupt, and has come back to where it was."""


INTERRUPTS = (KeyboardInterrupt, SwallowedInterrupt)

Place = tuple[Call, ...]
"""Calls from the cell's own inwards. Empty outside of a cell, and while a cell is suspended in
``await``."""


@dataclass(frozen=True, slots=True)
class _Strike:
    """An interrupt that the code has seen.

    Frames hold their variables. The first time they are not held: code may handle an interrupt, and
    go on for hours. Then a frame that has ended may be taken for a new one of the same function.
    Those of a later interrupt are held until the cell ends.
    """

    way: int
    at: float
    place: Place
    held: list[FrameType]


PUT_OFF_FOR_SECONDS = 0.001
PUT_OFF_SECONDS = 0.5
"""For so long an interrupt is put off at most, while context managers of JAX's are at work."""

MOST_CALLS_WITHIN = 5
"""So many calls a context manager of JAX's has made at most when it sets something."""

_JAX = os.path.dirname(jax.__file__)
_CACHE, _BEFORE_WITH = 0, opcode.opmap.get("BEFORE_WITH")  # up to Python 3.13

_keeps: Callable[[], bool] | None = None
_took: Callable[[], None] | None = None
_put_off_since: float | None = None
_last: _Strike | None = None
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
    """Whether the main thread is not to see a signal that has come now."""
    return _keeps is not None and _keeps()


def strike_by_signal(frame: FrameType | None) -> BaseException:
    """Notes what :func:`strike` does, of a signal: in lockstep the conductor is told too."""
    if _took is not None:
        _took()
    return strike(frame)


def allow() -> None:
    """Has SIGINT raise KeyboardInterrupt from now on, as Python does by itself.

    Each SIGINT is either raised or noted as missed: ``signal.signal`` calls the handler of before
    for one that has come until then.
    """
    global _last, _put_off_since
    _last = _put_off_since = None  # one that was put off may have found the cell at its end
    signal.signal(signal.SIGINT, _raise)


def ignore() -> None:
    """Has SIGINT do nothing but be noted as missed."""
    global _last
    signal.signal(signal.SIGINT, _note_missed)  # not SIG_IGN: that would lose it
    _last = None
    if sys.gettrace() is _no_call:
        sys.settrace(None)


def is_own(handler: object) -> bool:
    """Whether a handler of SIGINT is the one that raises KeyboardInterrupt in a cell's code."""
    return handler is _raise


def strike(frame: FrameType | None) -> BaseException:
    """Notes that the code sees an interrupt now: Python runs handlers between its instructions.

    Args:
        frame: Where the main thread is.

    Returns:
        What to raise in it.
    """
    global _last, _put_off_since
    _put_off_since = None
    frames = list(outwards(frame))
    place, way = _place([call_of(each) for each in frames]), 0
    frames = frames[: len(place)][::-1]
    if _last is not None and (loop := loops_in(_last.place, place)) is not None:
        way = min(_last.way + 1, WAYS - 1)
        if way > 1:
            frames[loop].f_trace = _raise_at_line
            sys.settrace(_no_call)
    error = _swallowed_interrupt() if way else KeyboardInterrupt()
    # Last: no other thread runs between this and a `raise` of what is returned. It would see the
    # code where it was struck.
    _last = _Strike(way, time.monotonic(), place, frames if way else [])
    return error


def seconds_since_strike() -> float | None:
    """Returns how long ago the running code has seen an interrupt; None if it has not."""
    last = _last
    return None if last is None else time.monotonic() - last.at


def seconds_since_missed() -> float | None:
    """Returns how long ago a SIGINT came while it was ignored; None if none has."""
    return None if _missed_at is None else time.monotonic() - _missed_at


def swallowed() -> int:
    """Returns how many of the ``WAYS`` to interrupt it the code has swallowed, to go on in a loop.

    0 if it has seen none, and for code that handles one, or went on after what was interrupted: it
    may be about to end. 0 too for what it awaits, whose clean-up looks like the wait before.
    """
    last = _last
    if last is None:
        return 0
    loop = loops_in(last.place, _place(main_thread.stack()))
    return 0 if loop is None else last.way + 1


def loops_in(before: Place, now: Place) -> int | None:
    """Returns which call loops: where code is again where an interrupt struck, or has jumped back.

    What handles the interrupt comes after what was interrupted, in the code of the call that
    handles it; so does what follows. From Python 3.12 on handlers stand at the end of the code:
    what follows one that was struck is before it there, but not in the source. A call over several
    lines goes back in the source, but not in the code.

    Args:
        before: Where it was struck. The deeper calls of it have ended, up to the one that has
            caught the interrupt.
        now: Where it is.

    Returns:
        An index of both; None if it is not known to loop.
    """
    found = None
    both = zip(before, now, strict=False)
    for i, ((frame, code, line, at), (frame_now, code_now, line_now, at_now)) in enumerate(both):
        if frame != frame_now or code is not code_now:  # equal code is not the same call
            break
        found = i if at_now <= at and line_now <= line else None
        if at_now != at:
            break
    return found


def _place(calls: list[Call]) -> Place:
    """Returns the cell's own call and those within it, of calls that are innermost first."""
    own = max((i for i, each in enumerate(calls) if is_of_cell(each.code)), default=-1)
    return tuple(calls[own::-1]) if own >= 0 else ()


def _raise(_: int, frame: FrameType | None) -> None:
    if is_kept():
        return
    if frame and frame.f_back and frame.f_code in _jax_calls and sys.gettrace() is None:
        frame.f_back.f_trace_opcodes, frame.f_back.f_trace = True, _raise_at_once
        sys.settrace(_no_call)
        _note_missed()  # the collection may be within a call that goes on to wait
        return
    if frame and is_in_context_manager_of_jax(frame) and _may_put_off():
        _thread.start_new_thread(_send_again, ())  # which takes none of Python's own locks
        return
    raise strike_by_signal(frame)


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


def _may_put_off() -> bool:
    global _put_off_since
    now = time.monotonic()
    _put_off_since = _put_off_since or now
    return now - _put_off_since < PUT_OFF_SECONDS


def _send_again() -> None:
    time.sleep(PUT_OFF_FOR_SECONDS)
    os.kill(os.getpid(), signal.SIGINT)


def _raise_at_once(frame: FrameType, *_: object) -> object:
    frame.f_trace_opcodes, frame.f_trace = False, None
    raise strike_by_signal(frame)  # Python ends all tracing then


def _note_missed(*_: object) -> None:
    global _missed_at
    _missed_at = time.monotonic()


def _note_ignored(shown: Callable[[Any], object], unraisable: Any) -> None:
    global _last
    if _last is None or not issubclass(unraisable.exc_type, INTERRUPTS):
        shown(unraisable)
        return
    _last = None  # the code has not seen it
    _note_missed()


def _swallowed_interrupt() -> SwallowedInterrupt:
    return SwallowedInterrupt("the loop had swallowed KeyboardInterrupt")


def _no_call(*_: object) -> None:
    """Traces no call that begins now."""


def _raise_at_line(frame: FrameType, event: str, _: object) -> object:
    # Where a `with` ends Python goes on to take for handled what the block has raised. That ends
    # with the coroutine that IPython runs the cell in.
    if event != "line":
        return _raise_at_line
    frame.f_trace = None
    raise _swallowed_interrupt()  # Python ends all tracing then
