"""Blocks to text for terminals, at most 80 columns where their content allows."""

from __future__ import annotations

from collections.abc import Iterable

from jaxnb.display import blocks as b
from jaxnb.display.text import WIDTH, fitted_rows, indented, joined, text_table, wrapped


def text_of(blocks: Iterable[b.Block]) -> str:
    """Returns a card of blocks, each on lines of its own."""
    return "\n".join(text for block in blocks if (text := _text(block)))


def _text(block: b.Block) -> str:
    match block:
        case b.Facts():
            return facts_text(block)
        case b.Note():
            return _note(block)
        case b.Table():
            return table_text(block)
        case b.Pre():
            return block.text
        case b.Shown():
            return block.view.text
        case b.Progress():
            return f"{block.doing} {' · '.join(block.facts)}"
        case b.Fold():
            return text_of([block.summary, *block.blocks])
        case b.Beside():
            return "\n".join(filter(None, map(text_of, block.groups)))
        case b.Either():
            return block.text
    return ""  # a picture


def facts_text(facts: b.Facts) -> str:
    """Returns facts with dots between, on one line or on several."""
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


def table_text(table: b.Table) -> str:
    """Returns a table, its long cells broken where its columns allow it."""
    if not table.rows:
        return ""
    places = table.places("text")
    columns = [table.columns[i] for i in places]
    rows = [[_cell(row[i]) for i in places] for row in table.rows]
    if table.titled and any(_title(column) for column in columns):
        rows.insert(0, [_title(column) for column in columns])
    align = "".join(column.align for column in columns)
    shrink = {i: column.least for i, column in enumerate(columns) if column.least is not None}
    if shrink:
        text = "\n".join(fitted_rows(rows, align, shrink, gap=table.gap))
    else:
        text = text_table(rows, align, gap=table.gap)
    return f"{text}\n  {table.rest}" if table.rest else text


def _title(column: b.Column) -> str:
    return column.title if column.short is None else column.short


def _cell(cell: str | b.Cell) -> str:
    if isinstance(cell, b.Cell):
        return cell.text if cell.short is None else cell.short
    return cell
