"""Values that differ by process."""

from __future__ import annotations

from collections.abc import Sequence

from jaxnb.display.blocks import Block, Cell, Column, Either, Facts, Fold, Note, Shown, Table
from jaxnb.display.rich import Said
from jaxnb.display.text import labelled
from jaxnb.labels import processes_label, ranks_label


def by_process_block(
    rows: Sequence[Said], silent: Sequence[int] = (), *, rich: bool, opened: bool = False
) -> Either:
    """Returns a table of values by process; of rich ones the first, the others a click away.

    Args:
        rows: The values.
        silent: The processes that have none.
        rich: Some are more than text.
        opened: All are shown.
    """
    labels = [(f"[{ranks_label(row.processes)}]", row.view.text) for row in rows]
    labels += [(f"[{ranks_label(silent)}]", "no value")] if silent else []
    shown = _rich(rows, silent, opened) if rich else [_table(rows, silent)]
    return Either(shown, "\n".join(labelled(labels)))


def _rich(rows: Sequence[Said], silent: Sequence[int], opened: bool) -> list[Block]:
    blocks: list[Block] = []
    for i, row in enumerate(rows):
        who, view = processes_label(row.processes), Shown(row.view)
        if i or opened:
            blocks.append(Fold(Facts([who]), [view], opened))
        else:
            blocks += [Note(who, "dim"), view]
    return [*blocks, Note(f"{processes_label(silent)}: no value", "dim")] if silent else blocks


def _table(rows: Sequence[Said], silent: Sequence[int]) -> Table:
    cells: list[list[Cell]] = [
        [Cell(processes_label(row.processes), "head"), Cell(row.view.content, "pre")]
        for row in rows
    ]
    if silent:
        cells.append([Cell(processes_label(silent), "head"), Cell("no value", "dim")])
    return Table([Column(), Column()], cells)
