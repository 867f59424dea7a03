"""A mesh as grids of boxes: its axes, and which device is where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, product

from jaxnb.arrays.draw_colors import tints
from jaxnb.display.blocks import Beside, Block, Box, Grid, Note
from jaxnb.labels import one_line, plural
from jaxnb.model.arrays import MeshInfo

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
