"""Blocks to text for terminals, at most 80 columns where their content allows."""

from __future__ import annotations

from collections.abc import Iterable

from jaxnb.display.blocks import (
    Beside,
    Block,
    Cell,
    Column,
    Either,
    Facts,
    Fold,
    Note,
    Pre,
    Progress,
    Shown,
    Table,
)
from jaxnb.display.text import WIDTH, fitted_table, indented, joined, text_table, wrapped


def text_of(blocks: Iterable[Block]) -> str:
    """Returns a card of blocks, each on lines of its own."""
    return "\n".join(text for block in blocks if (text := _text(block)))


def _text(block: Block) -> str:
    match block:
        case Facts():
            return facts_text(block)
        case Note():
            return _note(block)
        case Table():
            return table_text(block)
        case Pre():
            return block.text
        case Shown():
            return block.view.text
        case Progress():
            return f"{block.doing} {' · '.join(block.facts)}"
        case Fold():
            return text_of([block.summary, *block.blocks])
        case Beside():
            return "\n".join(filter(None, map(text_of, block.groups)))
        case Either():
            return block.text
    return ""  # a picture


def facts_text(facts: Facts) -> str:
    """Returns facts with dots between, on one line or on several."""
    parts = [part for part in (facts.title, *facts.parts) if part]
    if facts.title.endswith(":"):
        parts[:2] = [" ".join(parts[:2])]
    return (facts.before + (joined(parts) if facts.wrap else " · ".join(parts))).rstrip()


def _note(note: Note) -> str:
    text = wrapped(note.text, WIDTH - len(note.before)) if note.wrap else note.text
    text = indented(text, note.before)
    return f"{text}\n{' ' * len(note.before)}{note.link[0]}" if note.link else text


def table_text(table: Table) -> str:
    """Returns a table, its long cells shortened where its columns allow it."""
    places = [i for i, column in enumerate(table.columns) if column.only != "html"]
    columns = [table.columns[i] for i in places]
    rows = [[_cell(row[i]) for i in places] for row in table.rows]
    if table.titled and any(_title(column) for column in columns):
        rows.insert(0, [_title(column) for column in columns])
    align = "".join(column.align for column in columns)
    shrink = {i: column.least for i, column in enumerate(columns) if column.least is not None}
    parts = []
    if rows and shrink:
        parts.append(fitted_table(rows, align, shrink, gap=table.gap))
    elif rows:
        parts.append(text_table(rows, align, gap=table.gap))
    if table.more:
        parts.append(f"  … {table.more}")
    return "\n".join(parts)


def _title(column: Column) -> str:
    return column.title if column.short is None else column.short


def _cell(cell: str | Cell) -> str:
    if isinstance(cell, Cell):
        return cell.text if cell.short is None else cell.short
    return cell
