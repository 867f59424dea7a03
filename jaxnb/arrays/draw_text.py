"""Meshes, corners of values, and sizes by device: what stands beside the picture of an array."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import islice, product

from jaxnb.arrays.blocks import EDGE_ITEMS, PreviewSlice, preview
from jaxnb.arrays.draw_array import (
    tints,
)
from jaxnb.display.blocks import (
    Beside,
    Block,
    Box,
    Cell,
    Column,
    Grid,
    Length,
    Note,
    Row,
    Strip,
    Table,
)
from jaxnb.display.html import ACCENT
from jaxnb.display.text import WIDTH, middle, text_table
from jaxnb.labels import format_bytes, one_line, plural
from jaxnb.model.arrays import ArrayInfo, MeshInfo

_MAX_SIDE = 16
_MAX_PANELS = 8


def mesh_grids(mesh: MeshInfo, owners: Mapping[int, int]) -> list[Block]:
    """Returns the picture of a mesh: the last two axes as a matrix for each place on the others.

    Args:
        mesh: The mesh.
        owners: Device id to the process that owns the device.
    """
    places = list(islice(product(*map(range, mesh.shape[:-2])), _MAX_PANELS))
    grids = [Grid(_boxes(mesh, i, owners), _captions(mesh, p)) for i, p in enumerate(places)]
    shown = sum(box is not None for grid in grids for line in grid.boxes for box in line)
    hidden = len(mesh.device_ids) - shown
    # Of axes of several types each says its own.
    alike = len(set(mesh.axis_types)) == 1
    word = "axis" if len(mesh.shape) == 1 else "axes"
    kinds = f" · {word} {mesh.axis_types[0]}" if alike else ""
    more = [Note(f"… {plural(hidden, 'more device')}", "dim")] if hidden > 0 else []
    arrows = ["↓", "→"][-len(mesh.shape) :]
    titles = [
        f"{arrow} {_title(mesh, axis - len(arrows), alike=alike)}"
        for axis, arrow in enumerate(arrows[: len(mesh.shape)])
    ]
    head = [f"mesh{kinds}", ", ".join(titles)]
    return [*(Note(t, "dim") for t in head if t), Beside([[grid] for grid in grids]), *more]


def _boxes(mesh: MeshInfo, panel: int, owners: Mapping[int, int]) -> list[list[Box | None]]:
    columns = mesh.shape[-1] if mesh.shape else 1
    rows = mesh.shape[-2] if len(mesh.shape) > 1 else 1
    first = panel * rows * columns
    return [
        [_box(mesh, first + row * columns + column, owners)
         for column in range(min(columns, _MAX_SIDE))]
        for row in range(min(rows, _MAX_SIDE))
    ]  # fmt: skip


def _box(mesh: MeshInfo, place: int, owners: Mapping[int, int]) -> Box | None:
    if place >= len(mesh.device_ids):
        return None
    device = mesh.device_ids[place]
    owner = [owners[device]] if device in owners else []
    title = " · ".join([f"device {device}", *(f"process {process}" for process in owner)])
    return Box([str(device)], tints(owner), title, str(device))


def _title(mesh: MeshInfo, axis: int, *, alike: bool) -> str:
    title = f"{mesh.axis_names[axis]} · {mesh.shape[axis]}"
    return one_line(title if alike else f"{title} · {mesh.axis_types[axis]}", 40)


def _captions(mesh: MeshInfo, place: Sequence[int]) -> list[str]:
    named = zip(mesh.axis_names, place, strict=False)
    return [one_line(", ".join(f"{name} {index}" for name, index in named), 24)] if place else []


_MAX_ELEMENT = 24


def preview_text(array: ArrayInfo) -> str:
    """Returns the values at the array's corners as aligned text; empty if none is known."""
    corner = [(place, one_line(text, _MAX_ELEMENT)) for place, text in array.corner]
    text, more = "", 0
    for edge_items in range(EDGE_ITEMS, 0, -1):
        found = preview(array.shape, corner, edge_items=edge_items)
        more = math.prod(array.shape[:-2]) - len(found) if found else 0
        text = "\n".join(_slice_text(part) for part in found)
        if max(map(len, text.splitlines()), default=0) <= WIDTH:
            break
    lines = [_cut(line) for line in text.splitlines()]
    return "\n".join([*lines, f"  … {plural(more, 'more slice')}"] if more else lines)


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"


def _slice_text(part: PreviewSlice) -> str:
    table = text_table(part.rows, ">" * len(part.rows[0]))
    if not part.leading:
        return table
    place = ", ".join(map(str, part.leading))
    return f"  {middle(f'[{place}, :, :]', WIDTH - 2)}\n{table}"


_MAX_ROWS = 16


def sizes_block(
    sizes: Mapping[int, int], owners: Mapping[int, int], most: int = _MAX_ROWS
) -> Table:
    """Returns what each device holds, with bars.

    Args:
        sizes: Device id to bytes.
        owners: Device id to the process that owns the device.
        most: How many devices to show at most.
    """
    largest = max(sizes.values(), default=0)
    shown = sorted(sizes.items())[:most]
    rows: list[Row] = [
        [
            f"device {device} · process {owners[device]}",
            Cell(strip=Strip([Length(0, 100 * size / largest if largest else 0.0, ACCENT)])),
            format_bytes(size),
        ]
        for device, size in shown
    ]
    more = max(0, len(sizes) - most)
    columns = [Column("device"), Column(only="html"), Column("bytes", ">")]
    return Table(columns, rows, more=(more, "device"))
