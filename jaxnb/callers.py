"""Whose line a warning is about."""

from __future__ import annotations

import sys


def levels_to_caller() -> int:
    """Returns the ``stacklevel`` of the line that called jaxnb: what a warning is about.

    How many of jaxnb's own functions lie between depends on what was called.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and _is_of_jaxnb(frame.f_globals.get("__name__", "")):
        frame, level = frame.f_back, level + 1
    return level


def _is_of_jaxnb(module: str) -> bool:
    return module.partition(".")[0] == __name__.partition(".")[0]
