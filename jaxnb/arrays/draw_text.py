"""The picture of an array for terminals: at most 80 columns, whatever the array."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

from jaxnb.arrays import EDGE_ITEMS, PreviewSlice, blocks, preview
from jaxnb.arrays.card_spec import dimension_label, replicas_label
from jaxnb.arrays.draw_holders import devices_by_process, holders_of
from jaxnb.arrays.draw_panels import Panel, Picture, index_label, interval_label, picture
from jaxnb.display.text import WIDTH, middle, text_table
from jaxnb.labels import one_line, plural, ranks_label
from jaxnb.model.arrays import ArrayInfo, MeshInfo

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
