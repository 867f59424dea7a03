"""Where in a cell a dispatch was called from, and how it ended."""

from __future__ import annotations

import os
import traceback
import zlib
from collections import deque
from pathlib import Path
from types import CodeType, FrameType

import jax
import numpy as np

from jaxnb.model.dispatches import DispatchEnd

_OWN = (
    *(str(Path(file).parent) for file in (jax.__file__, np.__file__)),
    str(Path(__file__).parents[1]),
)
"""Where code lies that raises errors of a dispatch, jaxlib's too."""

_SKIPPED = tuple(f"{folder}{os.sep}" for folder in _OWN)

MAX_CALLS = 4096
"""So many calls are remembered, in which some code was on the way to a dispatch."""

_CALLS: dict[tuple[int, int], tuple[int | None, CodeType]] = {}
"""What :func:`_called` gives for a call, by the code's id and the instruction; and that code, held
so that its id is that of no other."""

MASK = (1 << 61) - 1
"""Sums of hashes stay below this, as hashes do."""


def line_in(frame: FrameType | None, code_name: str) -> int | None:
    """Returns the innermost line of the cell that called; None if it did not."""
    while frame is not None:
        if frame.f_code.co_filename == code_name:
            return frame.f_lineno
        frame = frame.f_back
    return None


def place_in(frame: FrameType | None, code_name: str) -> tuple[int | None, int]:
    """Returns the innermost line of the cell that called, and a number for the place in the code.

    The place is that of every call on the way to here, from the cell on, in functions of earlier
    cells and of modules too; calls on one line have different places. Outside of the cell: None and
    0. The number is the same in all processes.
    """
    line, place = None, 0
    while frame is not None:
        code, instruction = frame.f_code, frame.f_lasti
        known = _CALLS.get((id(code), instruction))
        called = _called(frame) if known is None else known[0]
        if called is not None:
            place = hash((place, called, instruction))
            if code.co_filename == code_name:
                if line is None:
                    line = frame.f_lineno
                if code.co_name == "<module>":
                    break
        frame = frame.f_back
    return (None, 0) if line is None else (line, place & MASK)


def _called(frame: FrameType) -> int | None:
    """Returns the number of a call by file, function and line; None if it is in code of JAX's."""
    code = frame.f_code
    called = None
    if not code.co_filename.startswith(_SKIPPED):
        # The folder of a cell's file may have the number of its process in its name.
        name = f"{code.co_filename.rpartition('/')[2]}:{code.co_name}"
        # The line too: each statement of a cell is compiled by itself.
        called = zlib.crc32(name.encode(), frame.f_lineno or 0)
    if len(_CALLS) >= MAX_CALLS:
        _CALLS.clear()
    _CALLS[id(code), frame.f_lasti] = called, code
    return called


def end_of(error: BaseException) -> DispatchEnd:
    """Returns how a dispatch ended that raised."""
    if isinstance(error, KeyboardInterrupt) or _is_of_handler(error):
        return "interrupted"
    return "broken" if "Gloo" in str(error) else "failed"


def _is_of_handler(error: BaseException) -> bool:
    """Whether a signal's handler has raised it: nothing else of the user's runs in a dispatch."""
    innermost = deque(traceback.walk_tb(error.__traceback__), maxlen=1)
    return not any(frame.f_code.co_filename.startswith(_OWN) for frame, _ in innermost)
