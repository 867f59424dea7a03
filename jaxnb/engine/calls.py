"""Where in a cell a dispatch was called from, and how it ended."""

from __future__ import annotations

import traceback
from collections import deque
from pathlib import Path
from types import FrameType

import jax
import numpy as np

from jaxnb.engine.interrupts import INTERRUPTS
from jaxnb.model import DispatchEnd

_OWN = tuple(str(Path(file).parent) for file in (jax.__file__, np.__file__, __file__))
"""Where code lies that raises errors of a dispatch, jaxlib's too."""

_MASK = (1 << 61) - 1


def line_in(frame: FrameType | None, code_name: str) -> int | None:
    """Returns the innermost line of the cell that called; None if it did not."""
    return place_in(frame, code_name)[0]


def place_in(frame: FrameType | None, code_name: str) -> tuple[int | None, int]:
    """Returns the innermost line of the cell that called, and a number for the place in it.

    Calls on one line have different places. Outside of the cell: None and 0.
    """
    while frame is not None:
        if frame.f_code.co_filename == code_name:
            line = frame.f_lineno
            return line, hash((line, frame.f_lasti)) & _MASK
        frame = frame.f_back
    return None, 0


def end_of(error: BaseException) -> DispatchEnd:
    """Returns how a dispatch ended that raised."""
    if isinstance(error, INTERRUPTS) or _is_of_handler(error):
        return "interrupted"
    return "broken" if "Gloo" in str(error) else "failed"


def _is_of_handler(error: BaseException) -> bool:
    """Whether a signal's handler has raised it: nothing else of the user's runs in a dispatch."""
    innermost = deque(traceback.walk_tb(error.__traceback__), maxlen=1)
    return not any(frame.f_code.co_filename.startswith(_OWN) for frame, _ in innermost)
