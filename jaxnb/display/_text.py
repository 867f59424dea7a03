"""Plain-text tables."""

from __future__ import annotations

from collections.abc import Sequence

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
