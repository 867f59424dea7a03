"""The card of a session's history: a row for each cell that was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from jaxnb.display.blocks import Cell, Column, Either, Facts, Table
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import table_text, wrapped
from jaxnb.labels import (
    format_bytes,
    format_count,
    format_seconds,
    one_line,
    plural,
    processes_label,
    ranks_label,
)
from jaxnb.model.cells import CellRecord
from jaxnb.model.dispatches import Cause

MAX_ROWS = 100
_SHOWN = 32
_COLUMNS = (
    Column("cell", ">"),
    Column("began", only="text"),
    Column("on", least=5, optional=True),
    Column("took", ">"),
    Column("compiled", ">", short="compile", optional=True),
    Column("allocated", ">", short="alloc.", only="text", optional=True),
    Column("dispatches", ">", short="disp.", only="text", optional=True),
    Column("outcome", least=12, wrap=True),
    Column("lines", ">", only="text"),
    Column("code", least=10),
)
_OF_PAGE = (0, 9, 7, 3, 4, 5, 6, 2, 1, 8)
"""In the order of a page, which is narrow: the rest is in tooltips."""

_CAUSES: Mapping[Cause | Literal[""], str] = {
    "program": ": different programs",
    "input": ": different inputs",
    "order": ": different order",
    "missing": ": not all took part",
    "slow": ": a process was slow",
}
_ALLOCATED = (
    "Allocated: the change of memory in use over the cell, on the device where it changed most."
)
_DISPATCHES = "Dispatches: computations over several processes."


def history_card(records: Sequence[CellRecord], forgotten: int = 0) -> Card:
    """The last cells, oldest first, with times, bytes and how each ended.

    Args:
        records: The cells.
        forgotten: How many there were before them.
    """
    shown = records[-MAX_ROWS:]
    earlier = len(records) - len(shown)
    facts = [f"{format_seconds(sum(each.seconds for each in records))} in all"] if records else []
    alike = len({record.processes for record in shown}) == 1
    if alike:
        facts.append(f"on {processes_label(shown[0].processes)}")
    bad = sum(record.outcome != "ok" for record in records)
    if bad:
        facts.append(f"{format_count(bad)} not ok")
    if earlier:
        facts.append(f"the last {MAX_ROWS} shown")
    if forgotten:
        facts.append(f"{format_count(forgotten)} before them not in it")
    notes = [
        _ALLOCATED if any(record.allocated_bytes for record in shown) else "",
        _DISPATCHES if any(record.dispatches for record in shown) else "",
    ]
    rows, tips, starts = list[list[str | Cell]](), list[str](), 0
    for each in shown:
        if starts not in (0, each.starts):
            rows.append([*[""] * (len(_COLUMNS) - 1), Cell("new processes", "dim")])
            tips.append("")
        starts = each.starts
        rows.append(_cells(each, "" if alike else ranks_label(each.processes)))
        tips.append(_tooltip(each))
    return card_of(
        Facts(facts, plural(len(records), "cell")),
        Either([_of_page(Table(_COLUMNS, rows, tips))], table_text(Table(_COLUMNS, rows, gap=1))),
        Either(text=wrapped(" ".join(filter(None, notes)))),
    )


def _tooltip(record: CellRecord) -> str:
    """Returns what a page has no room for."""
    allocated = _most(record.allocated_bytes)
    said = [
        f"began {record.began}",
        plural(record.lines, "line"),
        plural(record.dispatches, "dispatch") if record.dispatches else "",
        f"memory in use changed by {allocated}" if allocated else "",
        record.code,
        record.detail,
    ]
    return " · ".join(filter(None, said))


def _of_page(table: Table) -> Table:
    rows = [[row[i] for i in _OF_PAGE] for row in table.rows]
    return replace(table, columns=[table.columns[i] for i in _OF_PAGE], rows=rows)


def _cells(record: CellRecord, on: str) -> list[str | Cell]:
    why = "" if record.outcome in ("error", "died") else _CAUSES.get(record.cause, "")
    outcome = f"{record.outcome}{why}"
    return [
        f"[{record.cell}]",
        record.began[11:19],
        on,
        format_seconds(record.seconds),
        _compiled(record),
        _most(record.allocated_bytes),
        format_count(record.dispatches) if record.dispatches else "",
        outcome if record.outcome == "ok" else Cell(outcome, "warn"),
        str(record.lines),
        Cell(one_line(record.code, _SHOWN), "code"),
    ]


def _compiled(record: CellRecord) -> str:
    if record.compile_seconds < 0.001 and not record.compiles:
        return ""
    return format_seconds(record.compile_seconds)


def _most(sizes: Mapping[int, int]) -> str:
    if not sizes:
        return ""
    most = max(sizes.values(), key=abs)
    return f"−{format_bytes(-most)}" if most < 0 else format_bytes(most)
