"""How arrays and lines are told of."""

from __future__ import annotations

import linecache
import math
from typing import Any

from jaxnb.labels import type_label
from jaxnb.model.insight import Pitfall


def pitfall(
    kind: str,
    code_name: str,
    line: int | None,
    message: str,
    advice: str,
    cause: str | None = None,
    subject: str = "",
) -> Pitfall:
    """Returns a pitfall at a line of a cell.

    Args:
        kind: Its kind.
        code_name: The file name of the cell's code.
        line: The line; None if it is in none.
        message: What happens.
        advice: What to type instead.
        cause: What makes it the same as another; by default subject and text of the line.
        subject: The function or array.
    """
    source = linecache.getline(code_name, line).strip() if line is not None else ""
    known = f"{subject}|{source}" if cause is None else cause
    return Pitfall(kind, message, advice, line, source, known)


def type_of(value: Any) -> str:
    """Returns ``"float32[8,4]"``."""
    return type_label(getattr(value, "dtype", type(value).__name__), getattr(value, "shape", ()))


def nbytes_of(value: Any) -> int:
    """Returns the bytes of an array, or of what describes one; 0 where nobody knows them."""
    itemsize = getattr(getattr(value, "dtype", None), "itemsize", 0)
    return math.prod(getattr(value, "shape", ())) * int(itemsize)
