"""The picture of an array for terminals: at most 80 columns, whatever the array."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import islice, product

from jaxnb.arrays import EDGE_ITEMS, PreviewSlice, blocks, preview
from jaxnb.arrays.draw_array import (
    Panel,
    Picture,
    devices_by_process,
    holders_of,
    index_label,
    interval_label,
    picture,
    tints,
)
from jaxnb.arrays.specs import dimension_label, replicas_label
from jaxnb.display.blocks import (
    Beside,
    Block,
    Box,
    Cell,
    Column,
    Either,
    Grid,
    Length,
    Note,
    Row,
    Strip,
    Table,
)
from jaxnb.display.html import ACCENT
from jaxnb.display.text import WIDTH, middle, text_table
from jaxnb.labels import format_bytes, one_line, plural, ranks_label
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
    return Box([str(device)], tints(owner), title)


def _title(mesh: MeshInfo, axis: int, *, alike: bool) -> str:
    title = f"{mesh.axis_names[axis]} · {mesh.shape[axis]}"
    return one_line(title if alike else f"{title} · {mesh.axis_types[axis]}", 40)


def _captions(mesh: MeshInfo, place: Sequence[int]) -> list[str]:
    named = zip(mesh.axis_names, place, strict=False)
    return [one_line(", ".join(f"{name} {index}" for name, index in named), 24)] if place else []


_MAX_LISTED = 16
_MAX_LINES = 40
_MAX_ELEMENT = 24


def text_picture(array: ArrayInfo) -> str:
    """Returns who owns which part: grids where they fit, else a list of the parts."""
    cut = picture(array, max_side=8)
    owned = devices_by_process(array)
    grids = [_grid(panel, cut, owned) for panel in cut.panels]
    lines = [line for grid in grids for line in grid.splitlines()]
    widest = max(map(len, lines), default=0)
    if cut.column is None or len(lines) > _MAX_LINES or widest > WIDTH:
        return _listed(array)
    axes = _axes_line(array, cut)
    rest = f"  … {plural(cut.left_out, 'more part')}" if cut.left_out else ""
    legend = f"  (P process, d device, × {replicas_label(array)})" if "×" in "".join(grids) else ""
    legend = legend or "  (P process, d device)"
    return "\n".join(part for part in (axes, *grids, rest, legend) if part)


def _axes_line(array: ArrayInfo, cut: Picture) -> str:
    """Which dimensions go down and across, where that is not plain from the shape."""
    if len(array.shape) < 3 or cut.row is None or cut.column is None:
        return ""
    down, across = dimension_label(array, cut.row), dimension_label(array, cut.column)
    return f"  {one_line(f'down {down}; across {across}', WIDTH - 2)}"


def _grid(panel: Panel, cut: Picture, owned: dict[int, frozenset[int]]) -> str:
    header = ["", *(interval_label(column) for column in panel.columns)]
    rows = [header]
    for row, parts in zip(panel.rows, panel.parts, strict=True):
        held = [holders_of(part, owned).short if part else "…" for part in parts]
        rows.append([interval_label(row) if cut.row is not None else "", *held])
    table = text_table(rows, ">" + "<" * len(panel.columns))
    return f"  {panel.label}\n{table}" if panel.label else table


def _listed(array: ArrayInfo) -> str:
    parts, owned = blocks(array.shards), devices_by_process(array)
    if not parts:
        return ""
    shown = [(index_label(p.index), holders_of(p, owned)) for p in parts[:_MAX_LISTED]]
    if all(held.whole for _, held in shown):
        rows = [["part", "process", "device"]]
        for label, held in shown:
            flat = [device for devices in held.devices for device in devices]
            who = [middle(ranks_label(held.processes), 14), middle(ranks_label(flat), 24)]
            rows.append([middle(label, 34), *who])
    else:
        rows = [["part", "held by"]]
        for label, held in shown:
            lines = textwrap.wrap(", ".join(held.pairs) + f" ×{held.count}", 38)
            lines = lines if len(lines) <= 4 else [*lines[:3], f"… ×{held.count} in all"]
            rows.append([middle(label, 36), lines[0]])
            rows += [["", line] for line in lines[1:]]
    table = text_table(rows, "<" * len(rows[0]))
    if len(parts) > _MAX_LISTED:
        table += f"\n  … {plural(len(parts) - _MAX_LISTED, 'more part')}"
    return table


def mesh_line(mesh: MeshInfo | None) -> str:
    """Returns which device is where in a mesh, if there is more to say than its size.

    One axis with its devices in order is what everyone expects.
    """
    if mesh is None:
        return ""
    if len(mesh.shape) < 2 and list(mesh.device_ids) == sorted(mesh.device_ids):
        return ""
    kinds = mesh.axis_types[:1] if len(set(mesh.axis_types)) == 1 else mesh.axis_types
    head = middle(f"mesh axes {', '.join(kinds)}; devices", 50)
    return f"  {head} {one_line(_nested(mesh.device_ids, mesh.shape), WIDTH - 3 - len(head))}"


def _nested(ids: Sequence[int], shape: Sequence[int]) -> str:
    """Returns numbers as NumPy prints them: ``[[0 1] [2 3]]``."""
    parts = [str(device) for device in ids]
    for size in reversed(shape):
        if size < 1:
            return "[]"
        parts = [f"[{' '.join(parts[i : i + size])}]" for i in range(0, len(parts), size)]
    return " ".join(parts)


def bytes_lines(sizes: Sequence[tuple[str, str]], more: int) -> str:
    """Returns sizes by device, several on a line.

    Args:
        sizes: Pairs of who has it and how much.
        more: How many devices were left out.
    """
    texts = [f"{label} {size}" for label, size in sizes]
    if more:
        texts.append(f"… {plural(more, 'more device')}")
    lines = ["  bytes:"]
    for i, text in enumerate(texts):
        piece = one_line(text, WIDTH - 6) + "," * (i < len(texts) - 1)
        if len(lines[-1]) + 1 + len(piece) > WIDTH:
            lines.append("   ")
        lines[-1] += f" {piece}"
    return "\n".join(lines) if texts else ""


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
) -> Either:
    """Returns what each device holds, as a table with bars and as a line of text.

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
    columns = [Column("device"), Column(), Column("bytes", ">")]
    table = Table(columns, rows, more=(more, "device"))
    labels = [(f"P{owners[device]} d{device}", format_bytes(size)) for device, size in shown]
    return Either([table], bytes_lines(labels, more))
