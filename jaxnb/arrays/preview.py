"""The values at an array's corners, for people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice, product

EDGE_ITEMS = 3
"""How many elements of each end of a dimension a preview shows."""


def edge_indices(size: int, edge_items: int = EDGE_ITEMS) -> tuple[int, ...]:
    """Returns the indices along one dimension that a preview shows: both ends of it."""
    # What would be left out must be worth the "…".
    if size <= 2 * edge_items + 2:
        return tuple(range(size))
    return (*range(edge_items), *range(size - edge_items, size))


@dataclass(frozen=True, slots=True)
class PreviewSlice:
    """One matrix of a preview.

    Attributes:
        leading: Its place along the leading dimensions; empty up to two dimensions.
        rows: The elements as text, ``…`` where some were left out, ``?`` where no process
            told. A vector is one row; a scalar is one row of one element.
    """

    leading: tuple[int, ...]
    rows: tuple[tuple[str, ...], ...]


def preview(
    shape: Sequence[int],
    corner: Iterable[tuple[tuple[int, ...], str]],
    *,
    max_slices: int = 2,
    edge_items: int = EDGE_ITEMS,
) -> list[PreviewSlice]:
    """Assembles the elements at an array's corners to the matrices that a person reads.

    Args:
        shape: Shape of the array.
        corner: Pairs of a global index and the element there, as in
            :attr:`jaxnb.model.ArrayInfo.corner`.
        max_slices: How many matrices of an array of more than two dimensions to return.
        edge_items: What the corners were cut with.

    Returns:
        The matrices; none if the array is empty or no element is known.
    """
    known = dict(corner)
    if not known or 0 in shape:
        return []
    leading, trailing = tuple(shape[:-2]), tuple(shape[-2:])
    matrix = [_with_gap(size, edge_items) for size in trailing]
    row_axis: list[int | None] = [0] if len(matrix) < 2 else matrix[0]
    column_axis: list[int | None] = matrix[-1] if matrix else [0]

    def element(place: tuple[int, ...], row: int | None, column: int | None) -> str:
        if row is None or column is None:
            return "…"
        return known.get((*place, *(row, column)[2 - len(trailing) :]), "?")

    places = product(*(edge_indices(size, edge_items) for size in leading))
    return [
        PreviewSlice(
            place, tuple(tuple(element(place, r, c) for c in column_axis) for r in row_axis)
        )
        for place in islice(places, max_slices)
    ]


def _with_gap(size: int, edge_items: int) -> list[int | None]:
    """Indices of both ends, None between them if some are left out."""
    indices: list[int | None] = list(edge_indices(size, edge_items))
    if len(indices) < size:
        indices.insert(edge_items, None)
    return indices
