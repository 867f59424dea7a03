"""Pure: which process and device owns which part of an array, as panels of cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product

from jaxnb.arrays import Block, Index, Interval, blocks, boundaries
from jaxnb.display._text import WIDTH, text_table
from jaxnb.display.labels import plural, processes_label, ranks_label
from jaxnb.model import ArrayInfo

_MAX_SIDE = 16
_MAX_PANELS = 8
_MAX_LISTED = 16


@dataclass(frozen=True, slots=True)
class Cell:
    """One part of the array in a panel.

    Attributes:
        processes: Those that hold it.
        process_label: ``"process 0"``, ``"processes 0-3"``; ``"…"`` for parts left out.
        device_label: ``"device 0"``, ``"devices 0-1"``.
        replicas: How many devices hold it.
        extent: Its index as a slice, ``"[0:4, 0:2]"``.
    """

    processes: tuple[int, ...]
    process_label: str
    device_label: str
    replicas: int
    extent: str


@dataclass(frozen=True, slots=True)
class Panel:
    """One matrix of parts: all there is up to two dimensions, else one slice of it.

    Attributes:
        label: The slice, ``"[0:1, :, :]"``; empty if there is only one panel.
        columns: Intervals of the last dimension.
        rows: For each interval of the last but one dimension its label and its cells.
    """

    label: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]


_LEFT_OUT = Cell((), "…", "", 0, "")


def interval_label(interval: Interval | None) -> str:
    """Returns ``"0:4"``; ``"…"`` for None."""
    return "…" if interval is None else f"{interval[0]}:{interval[1]}"


def index_label(index: Index) -> str:
    """Returns ``"[0:4, 0:2]"``."""
    return f"[{', '.join(map(interval_label, index))}]"


def panels(array: ArrayInfo) -> tuple[list[Panel], int]:
    """Returns the panels of an array's picture, and how many parts are not in them."""
    parts = {part.index: part for part in blocks(array.shards)}
    if not parts:
        return [], 0
    sides = boundaries(parts.values(), len(array.shape))
    leading, trailing = sides[:-2], sides[-2:]
    # Where there is no such dimension, one row or column that adds nothing to an index.
    rows: _Axis = _shortened(trailing[0]) if len(trailing) == 2 else [()]
    columns: _Axis = _shortened(trailing[-1]) if trailing else [()]
    found = [
        _panel(place, rows, columns, parts) for place in islice(product(*leading), _MAX_PANELS)
    ]
    pictured = sum(bool(c.processes) for panel in found for _, cells in panel.rows for c in cells)
    return found, len(parts) - pictured


_Axis = list[tuple[Interval, ...] | None]


def _shortened(side: Sequence[Interval]) -> _Axis:
    intervals: _Axis = [(interval,) for interval in side]
    if len(intervals) <= _MAX_SIDE:
        return intervals
    return [*intervals[: _MAX_SIDE - 2], None, intervals[-1]]


def _axis_label(interval: tuple[Interval, ...] | None) -> str:
    if interval is None:
        return "…"
    return interval_label(interval[0]) if interval else ""


def _panel(place: Index, rows: _Axis, columns: _Axis, parts: dict[Index, Block]) -> Panel:
    def cell(row: tuple[Interval, ...] | None, column: tuple[Interval, ...] | None) -> Cell:
        if row is None or column is None:
            return _LEFT_OUT
        part = parts.get((*place, *row, *column))
        return _LEFT_OUT if part is None else _cell(part)

    label = f"[{', '.join(map(interval_label, place))}, :, :]" if place else ""
    return Panel(
        label,
        tuple(_axis_label(column) for column in columns),
        tuple((_axis_label(row), tuple(cell(row, column) for column in columns)) for row in rows),
    )


def _cell(part: Block) -> Cell:
    devices = part.device_ids
    return Cell(
        processes=part.processes,
        process_label=processes_label(part.processes),
        device_label=f"device{'s' * (len(devices) > 1)} {ranks_label(devices)}",
        replicas=len(part.shards),
        extent=index_label(part.index),
    )


def text_picture(array: ArrayInfo) -> str:
    """Returns the picture for terminals: grids where they fit, else a list of the parts."""
    found, left_out = panels(array)
    grids = [_text_panel(panel) for panel in found]
    lines = [line for grid in grids for line in grid.splitlines()]
    if len(array.shape) == 0 or len(lines) > 40 or max(map(len, lines), default=0) > WIDTH:
        return _text_list(array)
    if left_out:
        grids.append(f"  … {plural(left_out, 'more part')}")
    return "\n".join([*grids, "  (P process, d device)"])


def _text_panel(panel: Panel) -> str:
    rows = [["", *panel.columns]]
    rows += [[label, *(_short(cell) for cell in cells)] for label, cells in panel.rows]
    table = text_table(rows, ">" + "<" * len(panel.columns))
    return f"  {panel.label}\n{table}" if panel.label else table


def _short(cell: Cell) -> str:
    if not cell.processes:
        return cell.process_label
    return f"P{ranks_label(cell.processes)} d{cell.device_label.split()[-1]}"


def _text_list(array: ArrayInfo) -> str:
    parts = blocks(array.shards)
    rows = [["part", "process", "device"]]
    rows += [
        [index_label(part.index), ranks_label(part.processes), ranks_label(part.device_ids)]
        for part in parts[:_MAX_LISTED]
    ]
    table = text_table(rows, "<<<")
    if len(parts) > _MAX_LISTED:
        table += f"\n  … {plural(len(parts) - _MAX_LISTED, 'more part')}"
    return table
