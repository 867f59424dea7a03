"""Pure: cuts an array's parts into matrices that a person can look at.

A dimension that no device boundary crosses has nothing to show: the two dimensions of the
matrices are the last two that are split, and further split ones make a matrix per part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product

from jaxnb.arrays import Block, Index, Interval, blocks, boundaries
from jaxnb.model.arrays import ArrayInfo

Place = Interval | None
"""An interval of a dimension; None stands for those that were left out."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One matrix of parts.

    Attributes:
        label: What of the array it shows, ``"[0:1, :, :]"``; empty if there is only one.
        rows: Intervals of the row dimension.
        columns: Intervals of the column dimension.
        parts: For each row the parts in it; None where some were left out.
    """

    label: str
    rows: tuple[Place, ...]
    columns: tuple[Place, ...]
    parts: tuple[tuple[Block | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """An array's parts as matrices.

    Attributes:
        row: The dimension that goes down; None below two dimensions.
        column: The dimension that goes to the right; None for scalars.
        leading: The dimensions of which every part has a matrix of its own.
        whole: The dimensions that are not drawn as no part ends in them.
        panels: The matrices.
        left_out: How many parts are in none of them.
    """

    row: int | None
    column: int | None
    leading: tuple[int, ...]
    whole: tuple[int, ...]
    panels: tuple[Panel, ...]
    left_out: int


def interval_label(interval: Place) -> str:
    """Returns ``"0:4"``; ``"…"`` for None."""
    return "…" if interval is None else f"{interval[0]}:{interval[1]}"


def index_label(index: Index) -> str:
    """Returns ``"[0:4, 0:2]"``."""
    return f"[{', '.join(map(interval_label, index))}]"


def picture(
    array: ArrayInfo, *, max_side: int = 16, max_panels: int = 8, max_parts: int = 400
) -> Picture:
    """Returns the parts of an array as matrices.

    Args:
        array: The array.
        max_side: Longer rows and columns are shortened; one dimension alone may have twice
            as many parts.
        max_panels: How many matrices to make.
        max_parts: About how many parts to take at most.
    """
    parts = {part.index: part for part in blocks(array.shards)}
    sides = boundaries(parts.values(), len(array.shape))
    row, column = _drawn(sides)
    split = [d for d, side in enumerate(sides) if len(side) > 1]
    leading = tuple(d for d in split if d not in (row, column))
    whole = tuple(d for d in range(len(sides)) if d not in (row, column, *leading))
    if not parts:
        return Picture(row, column, leading, whole, (), 0)
    longest = 2 * max_side if len(split) == 1 else max_side
    rows = _shortened(sides[row], longest) if row is not None else (None,)
    columns = _shortened(sides[column], longest) if column is not None else (None,)
    most = min(max_panels, max(1, max_parts // (len(rows) * len(columns))))
    places = islice(product(*(sides[d] for d in leading)), most)
    shape = _Shape(array, row, column, leading, rows, columns)
    found = tuple(_panel(place, shape, sides, parts) for place in places)
    shown = sum(part is not None for panel in found for line in panel.parts for part in line)
    return Picture(row, column, leading, whole, found, len(parts) - shown)


def _drawn(sides: Sequence[Sequence[Interval]]) -> tuple[int | None, int | None]:
    if len(sides) < 2:
        return None, (0 if sides else None)
    split = [d for d, side in enumerate(sides) if len(side) > 1]
    chosen = split[-2:]
    chosen += [d for d in reversed(range(len(sides))) if d not in chosen][: 2 - len(chosen)]
    return min(chosen), max(chosen)


def _shortened(side: Sequence[Interval], longest: int) -> tuple[Place, ...]:
    if len(side) <= longest:
        return tuple(side)
    return (*side[: longest - 2], None, side[-1])


@dataclass(frozen=True, slots=True)
class _Shape:
    """What the matrices of one array have in common."""

    array: ArrayInfo
    row: int | None
    column: int | None
    leading: tuple[int, ...]
    rows: tuple[Place, ...]
    columns: tuple[Place, ...]


def _panel(
    place: Index, shape: _Shape, sides: Sequence[Sequence[Interval]], parts: dict[Index, Block]
) -> Panel:
    fixed = [side[0] for side in sides]
    for dimension, interval in zip(shape.leading, place, strict=True):
        fixed[dimension] = interval

    def part(row: Place, column: Place) -> Block | None:
        index = list(fixed)
        for dimension, interval in ((shape.row, row), (shape.column, column)):
            if dimension is None:
                continue
            if interval is None:
                return None
            index[dimension] = interval
        return parts.get(tuple(index))

    label = [interval_label(i) if d in shape.leading else ":" for d, i in enumerate(fixed)]
    return Panel(
        f"[{', '.join(label)}]" if place else "",
        shape.rows,
        shape.columns,
        tuple(tuple(part(row, column) for column in shape.columns) for row in shape.rows),
    )
