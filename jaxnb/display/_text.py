"""Plain-text tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 80
"""Columns that text variants are made for."""


def text_table(rows: Sequence[Sequence[str]], align: str, *, indent: int = 2, gap: int = 2) -> str:
    """Returns rows as columns of equal width.

    Args:
        rows: Rows of equal length.
        align: For each column ``"<"``, ``">"`` or ``"^"``.
        indent: Blanks before each row.
        gap: Blanks between columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        )
        lines.append((" " * indent + (" " * gap).join(cells)).rstrip())
    return "\n".join(lines)


def indented(text: str, prefix: str) -> str:
    """Returns text with ``prefix`` before its first line and as many blanks before the rest."""
    return text.replace("\n", "\n" + " " * len(prefix)).join([prefix, ""])


def one_line(text: str, width: int = WIDTH) -> str:
    """Returns text on one line, its end replaced by ``…`` if it is too long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= width else flat[: width - 1] + "…"


def wrapped(text: str) -> str:
    """Returns a sentence or more on lines of at most :data:`WIDTH` columns."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def labelled(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Returns texts after their labels, which take equal width."""
    known = list(rows)
    width = max((len(label) for label, _ in known), default=0)
    return [indented(text, f"{label:<{width}} ") for label, text in known]


def joined(parts: Sequence[str]) -> str:
    """Returns parts with dots between, broken before the one that leaves :data:`WIDTH`."""
    lines = [""]
    for part in parts:
        longer = f"{lines[-1]} · {part}" if lines[-1] else part
        if len(longer) > WIDTH and lines[-1]:
            lines.append(f"  {part}")
        else:
            lines[-1] = longer
    return "\n".join(lines)
