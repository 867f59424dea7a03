"""Where code is that awaits: a suspended coroutine is on no thread's stack."""

from __future__ import annotations

import cmd
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from types import CodeType, CoroutineType, FrameType
from typing import Any

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
