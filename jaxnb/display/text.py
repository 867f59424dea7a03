"""Plain-text tables."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from jaxnb.display import blocks as b
from jaxnb.labels import one_line, plural

WIDTH = 80
"""Columns that text variants are made for."""


def text_table(rows: Sequence[Sequence[str]], align: str, *, gap: int = 2) -> str:
    """Returns rows as columns of equal width, indented by two blanks.

    Args:
        rows: Rows of equal length.
        align: For each column ``"<"``, ``">"`` or ``"^"``.
        gap: Blanks between columns.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = (
            f"{cell:{side}{width}}" for cell, side, width in zip(row, align, widths, strict=True)
        )
        lines.append(f"  {(' ' * gap).join(cells)}".rstrip())
    return "\n".join(lines)


def indented(text: str, prefix: str) -> str:
    """Returns text with ``prefix`` before its first line and as many blanks before the rest."""
    return text.replace("\n", "\n" + " " * len(prefix)).join([prefix, ""])


def middle(text: str, width: int) -> str:
    """Returns text on one line, ``…`` in place of its middle if it is too long."""
    flat = " ".join(text.split())
    if len(flat) <= width:
        return flat
    end = (width - 1) // 2
    return f"{flat[: width - 1 - end]}…{flat[len(flat) - end :]}"


def fitted_table(
    rows: Sequence[Sequence[str]],
    align: str,
    shrink: Mapping[int, int],
    *,
    gap: int = 2,
    width: int = WIDTH,
) -> str:
    """Returns a table, long cells broken into lines.

    Args:
        rows: Rows of equal length.
        align: As for :func:`text_table`.
        shrink: The columns that may be narrower, and to what at least. The widest goes first.
        gap: Blanks between columns.
        width: It has no more columns of text, if it can be as narrow.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    excess = 2 + sum(widths) + gap * (len(widths) - 1) - width
    while excess > 0:
        able = [i for i, least in shrink.items() if widths[i] > least]
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1
        excess -= 1
    lines: list[Sequence[str]] = []
    for row in rows:
        cells = [textwrap.wrap(cell, max(1, n)) for cell, n in zip(row, widths, strict=True)]
        lines += list(zip_longest(*cells, fillvalue="")) or [row]
    return text_table(lines, align, gap=gap)


def wrapped(text: str, width: int = WIDTH) -> str:
    """Returns a sentence or more on lines of at most ``width`` columns."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def labelled(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Returns texts after their labels, which take equal width."""
    known = list(rows)
    width = max((len(label) for label, _ in known), default=0)
    return [indented(text, f"{label:<{width}} ") for label, text in known]


def joined(parts: Sequence[str]) -> str:
    """Returns parts with dots between, broken before the one that leaves :data:`WIDTH`.

    A part that is longer than a line by itself is broken too.
    """
    lines = [""]
    for part in parts:
        first, *more = _pieces(part)
        longer = f"{lines[-1]} · {first}" if lines[-1] else first
        if len(longer) > WIDTH and lines[-1]:
            lines.append(f"  {first}")
        else:
            lines[-1] = longer
        lines += [f"  {piece}" for piece in more]
    return "\n".join(lines)


def _pieces(part: str) -> list[str]:
    if len(part) <= WIDTH - 2:
        return [part]
    return textwrap.wrap(part, WIDTH - 2, break_on_hyphens=False) or [part]


def text_of(blocks: Iterable[b.Block]) -> str:
    """Returns a card of blocks, each on lines of its own."""
    return "\n".join(filter(None, (_TEXT[type(block)](block) for block in blocks)))


_BAR_WIDTH = 20


def _progress(progress: b.Progress) -> str:
    filled = round(progress.percent / 100 * _BAR_WIDTH)
    bar = "█" * filled + "░" * (_BAR_WIDTH - filled)
    tail = f" {bar} {' · '.join(progress.facts)}"
    return one_line(progress.doing, max(12, WIDTH - 1 - len(tail))) + tail


_MOST_LINES = 40
_MOST_LISTED = 16


def _grid(grid: b.Grid) -> str:
    cells = ([box.text if box else "…" for box in line] for line in grid.boxes)
    rows = [[name, *line] for name, line in zip_longest(grid.rows, cells, fillvalue="")]
    if not rows:
        return ""
    if grid.columns:
        rows.insert(0, ["", *grid.columns])
    lines = text_table(rows, ">" + "<" * (len(rows[0]) - 1)).split("\n")
    if len(lines) > _MOST_LINES or max(map(len, lines)) > WIDTH:
        titles = [middle(box.title, WIDTH - 2) for line in grid.boxes for box in line if box]
        lines = [f"  {title}" for title in titles[:_MOST_LISTED]]
        if len(titles) > _MOST_LISTED:
            lines.append(f"  … {plural(len(titles) - _MOST_LISTED, 'more place')}")
    return "\n".join(lines)


def _facts(facts: b.Facts) -> str:
    parts = [part for part in (facts.title, *facts.parts) if part]
    if facts.title.endswith(":"):
        parts[:2] = [" ".join(parts[:2])]
    line = joined(parts) if facts.wrap else " · ".join(parts)
    return f"{facts.before}{line}" if line else ""


def _note(note: b.Note) -> str:
    if not note.text:
        return ""
    text = wrapped(note.text, WIDTH - len(note.before)) if note.wrap else note.text
    return indented(text, note.before)


def table_text(table: b.Table, width: int = WIDTH) -> str:
    """Returns a table, its long cells broken where its columns allow it."""
    if not table.rows:
        return ""
    indices = table.shown_columns("text")
    columns = [table.columns[i] for i in indices]
    rows = [[_cell(row[i]) for i in indices] for row in table.rows]
    if any(_title(column) for column in columns):
        rows.insert(0, [_title(column) for column in columns])
    align = "".join(column.align for column in columns)
    shrink = {i: column.least for i, column in enumerate(columns) if column.least is not None}
    text = (
        fitted_table(rows, align, shrink, gap=table.gap, width=width)
        if shrink
        else text_table(rows, align, gap=table.gap)
    )
    return f"{text}\n  {table.rest}" if table.rest else text


def _lanes(lanes: b.Lanes) -> str:
    indent = max(map(len, lanes.labels)) + 4
    width = WIDTH - indent
    symbols = {key.color: key.symbol for key in lanes.legend}

    def bar(strip: Sequence[b.Length]) -> str:
        line = " " * width
        for each in strip:
            first, last = (round(x / 100 * width) for x in (each.start, each.start + each.percent))
            line = line[:first] + symbols.get(each.color, "█") * (last - first) + line[last:]
        return line

    axis = " " * width
    for at, label in lanes.ticks:
        start = min(round(at / 100 * width), width - len(label))
        axis = axis[:start] + label + axis[start + len(label) :]
    legend = "   ".join(f"{key.symbol} {key.name}" for key in lanes.legend)
    rows = [*zip(lanes.labels, map(bar, lanes.strips), strict=True), ("", axis)]
    lines = [f"{label:>{indent - 2}}  {line}".rstrip() for label, line in rows]
    return "\n".join(
        [*lines, *([" " * min(indent, WIDTH - len(legend)) + legend] if legend else [])]
    )


def _title(column: b.Column) -> str:
    return column.title if column.short is None else column.short


def _cell(cell: str | b.Cell) -> str:
    if isinstance(cell, b.Cell):
        return cell.text if cell.short is None else cell.short
    return cell


_TEXT: dict[type[Any], Callable[[Any], str]] = {
    b.Facts: _facts,
    b.Note: _note,
    b.Table: table_text,
    b.Pre: lambda pre: pre.text,
    b.Shown: lambda shown: shown.view.text,
    b.Progress: _progress,
    b.Grid: _grid,
    b.Lanes: _lanes,
    b.Fold: lambda fold: text_of([fold.summary, *fold.blocks]),
    b.Beside: lambda beside: text_of(block for group in beside.groups for block in group),
    b.Either: lambda either: either.text,
}
