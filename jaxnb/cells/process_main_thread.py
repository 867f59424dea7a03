"""What the main thread is in, and others are, looked at from another thread."""

from __future__ import annotations

import gc
import itertools
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import NamedTuple

from jaxnb.lockstep.process_interrupts import frames_of, outwards
from jaxnb.profile.process_looks import looking


class Call(NamedTuple):
    """A call as it was when it was looked at.

    The call itself is not kept: it would keep its variables, and so the memory of arrays, after it
    has ended.
    """

    code: CodeType
    line: int


def call_of(frame: FrameType) -> Call:
    """Returns where a call is now."""
    return Call(frame.f_code, frame.f_lineno or 0)


def innermost_file() -> str | None:
    """Returns the file of the code that it is in; None if it is in no Python code."""
    with _looking():
        return next((each.f_code.co_filename for each in outwards(_innermost())), None)


def calls() -> list[Call]:
    """Returns the calls that it is in, innermost first, those first that a cell awaits."""
    with _looking():
        return [call_of(each) for each in frames_of(_innermost())]


def entries_of_others() -> list[str]:
    """Returns the files in which the other threads have begun to run Python."""
    with _looking():
        return [list(outwards(frame))[-1].f_code.co_filename for frame in _others()]


LOOKED_AT = 6
"""So many of a thread's innermost calls are looked at."""


def another_is_in(file: str) -> bool:
    """Whether another thread is in a file, or in what that has just called.

    Args:
        file: How its path ends.
    """
    with _looking():
        return any(
            each.f_code.co_filename.endswith(file)
            for frame in _others()
            for each in itertools.islice(outwards(frame), LOOKED_AT)
        )


def _innermost() -> FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _others() -> list[FrameType]:
    """Returns the innermost call of each other thread."""
    main = threading.main_thread().ident
    return [frame for ident, frame in sys._current_frames().items() if ident != main]


@contextmanager
def _looking() -> Iterator[None]:
    """Looks as others do, and has no garbage collected by itself.

    To look at another thread's call is to make an object for it. In Python 3.11 that may begin a
    collection, which lets the other thread go on: then the object is made for a call that has
    ended, and what is in its place by then is written over. (A collection lets others go on where
    it frees something of JAX, or calls what JAX has put into ``gc.callbacks``.) A threshold of 0
    is what nobody looks at; ``gc.disable()`` would be seen by ``timeit``, which would keep it.
    """
    with looking():
        before = gc.get_threshold()[0]
        gc.set_threshold(0)
        try:
            yield
        finally:
            if gc.get_threshold()[0] == 0:
                gc.set_threshold(before)
