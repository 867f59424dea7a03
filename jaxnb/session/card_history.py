"""The card of a session's history: a row for each cell that was run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxnb.display.card import Card, render
from jaxnb.display.text import fitted_table, joined, wrapped
from jaxnb.labels import format_bytes, format_count, format_seconds, one_line, plural, ranks_label
from jaxnb.model.history import CellRecord

MAX_ROWS = 100
_LONGEST = 80
_TITLES = (
    "cell",
    "began",
    "on",
    "took",
    "compiled",
    "allocated",
    "dispatches",
    "outcome",
    "lines",
    "code",
)
_ALIGN = "><<>>>><><"
_NUMBERS = (0, 3, 4, 5, 6, 8)
_OPTIONAL = (4, 5, 6)
"""Columns that are left out where nothing is in them."""

_ON, _OUTCOME, _CODE = 2, 7, 9

_IN_TEXT = {"compiled": "compile", "allocated": "alloc.", "dispatches": "disp."}
_NOTES = {
    5: "Allocated: how many bytes more are in use after the cell than before, on the device where "
    "that changed most.",
    6: "Dispatches: computations over several processes.",
}


@dataclass(frozen=True, slots=True)
class _Row:
    cells: tuple[str, ...]
    title: str
    is_bad: bool


def history_card(records: Sequence[CellRecord], forgotten: int = 0) -> Card:
    """The last cells, oldest first, with times, bytes and how each ended.

    Args:
        records: The cells.
        forgotten: How many there were before them.
    """
    shown = records[-MAX_ROWS:]
    earlier = len(records) - len(shown)
    rows = [_row(record) for record in shown]
    heading = plural(len(records), "cell")
    facts = [f"{format_seconds(sum(each.seconds for each in records))} in all"] if records else []
    bad = sum(record.outcome != "ok" for record in records)
    if bad:
        facts.append(f"{format_count(bad)} not ok")
    if earlier:
        facts.append(f"the last {MAX_ROWS} shown")
    if forgotten:
        facts.append(f"{format_count(forgotten)} before them not in it")
    columns = [
        place
        for place in range(len(_TITLES))
        if place not in _OPTIONAL or any(row.cells[place] for row in rows)
    ]
    note = " ".join(text for place, text in _NOTES.items() if place in columns and rows)
    html = render(
        "history",
        heading=heading,
        facts=facts,
        columns=[(place, _TITLES[place], place in _NUMBERS) for place in columns],
        rows=rows,
        outcome=_OUTCOME,
        code=_CODE,
        note=note,
    )
    text = joined([heading, *facts])
    if rows:
        titles = tuple(_IN_TEXT.get(title, title) for title in _TITLES)
        lines = [[cells[place] for place in columns] for cells in (titles, *_cells(rows))]
        align = "".join(_ALIGN[place] for place in columns)
        shrink = {columns.index(_CODE): 5, columns.index(_ON): 5, columns.index(_OUTCOME): 18}
        text += f"\n{fitted_table(lines, align, shrink, gap=1)}\n{wrapped(note)}".rstrip()
    return Card(html, text)


def _cells(rows: Sequence[_Row]) -> list[tuple[str, ...]]:
    return [row.cells for row in rows]


def _row(record: CellRecord) -> _Row:
    cells = (
        f"[{record.cell}]",
        record.began[11:19],
        ranks_label(record.processes),
        format_seconds(record.seconds),
        _compiled(record),
        _most(record.allocated_bytes),
        format_count(record.dispatches) if record.dispatches else "",
        f"{record.outcome} ({record.cause})" if record.cause else record.outcome,
        str(record.lines),
        one_line(record.code, _LONGEST),
    )
    title = " · ".join(filter(None, [record.began, record.code, record.detail]))
    return _Row(cells, title, record.outcome != "ok")


def _compiled(record: CellRecord) -> str:
    if record.compile_seconds < 0.001 and not record.compiles:
        return ""
    return format_seconds(record.compile_seconds)


def _most(sizes: Mapping[int, int]) -> str:
    if not sizes:
        return ""
    most = max(sizes.values(), key=abs)
    return f"−{format_bytes(-most)}" if most < 0 else format_bytes(most)
