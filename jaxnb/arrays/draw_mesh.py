"""A mesh as a drawing: its axes, and which device is where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, product
from math import prod

from jaxnb.arrays.draw_geometry import LINE, Label, drawable, text_width
from jaxnb.arrays.draw_shapes import Drawing, Shape, bands, centred, framed
from jaxnb.labels import plural
from jaxnb.model.layout import MeshInfo

_MAX_SIDE = 16
_MAX_PANELS = 8
_HEIGHT = 20
_BETWEEN = 14
_WIDEST = 480


def mesh_drawing(mesh: MeshInfo, owners: Mapping[int, int]) -> Drawing:
    """Returns the picture of a mesh: the last two axes as a matrix for each place on the others.

    Args:
        mesh: The mesh.
        owners: Device id to the process that owns the device.
    """
    rows, columns = _last_two(mesh.shape)
    leading = mesh.shape[:-2]
    width = max((text_width(str(device)) for device in mesh.device_ids), default=0) + 10
    titles = [_axis_title(mesh, axis) for axis in range(len(mesh.shape))]
    height = _HEIGHT
    if len(titles) > 1:  # its title is written along the rows
        height = max(height, -(-(min(text_width(titles[-2]), 130) + 4) // min(rows, _MAX_SIDE)))
    labels: list[Label] = []
    shapes: list[Shape] = []
    places = list(islice(product(*map(range, leading)), _MAX_PANELS))
    named = max((text_width(_place_label(mesh, place)) for place in places), default=0)
    pitch = max(min(columns, _MAX_SIDE) * (width + 2), named) + _BETWEEN
    line = min(rows, _MAX_SIDE) * (height + 2) + LINE + 8
    per_line = max(1, _WIDEST // pitch)
    for i, place in enumerate(places):
        at = (i % per_line * pitch, i // per_line * line)
        shapes += _matrix(mesh, i * rows * columns, owners, at, (width, height))
        if place:
            labels.append(Label(at[0], at[1] - 5, _place_label(mesh, place)))
    labels += _axis_labels(titles, min(rows, _MAX_SIDE) * (height + 2), bool(leading))
    hidden = prod(mesh.shape) - len(shapes)
    if hidden:
        below = max((s.y + s.height for s in shapes), default=0) + LINE + 2
        labels.append(Label(0, below, f"… {plural(hidden, 'more device')}"))
    return framed(shapes, labels, drawable(_summary(mesh), 300))


def _last_two(shape: Sequence[int]) -> tuple[int, int]:
    if not shape:
        return 1, 1
    return (shape[-2] if len(shape) > 1 else 1), shape[-1]


def _matrix(
    mesh: MeshInfo,
    first: int,
    owners: Mapping[int, int],
    at: tuple[int, int],
    size: tuple[int, int],
) -> list[Shape]:
    rows, columns = _last_two(mesh.shape)
    found = []
    for row, column in product(range(min(rows, _MAX_SIDE)), range(min(columns, _MAX_SIDE))):
        place = first + row * columns + column
        if place >= len(mesh.device_ids):
            continue
        device = mesh.device_ids[place]
        x, y = at[0] + column * (size[0] + 2), at[1] + row * (size[1] + 2)
        owner = [owners[device]] if device in owners else []
        held = f"device {device} · process {owner[0]}" if owner else f"device {device}"
        found.append(
            Shape(
                x,
                y,
                *size,
                held,
                bands(x, size[0], owner) if owner else (),
                centred(x, y, *size, [str(device)]),
            )
        )
    return found


def _axis_title(mesh: MeshInfo, axis: int) -> str:
    title = f"{mesh.axis_names[axis]} · {mesh.shape[axis]}"
    kinds = mesh.axis_types
    if len(set(kinds)) > 1:
        title += f" · {kinds[axis]}"
    return drawable(title, 40)


def _place_label(mesh: MeshInfo, place: Sequence[int]) -> str:
    named = zip(mesh.axis_names, place, strict=False)
    return drawable(", ".join(f"{name} {index}" for name, index in named), 24)


def _axis_labels(titles: Sequence[str], height: int, with_places: bool) -> list[Label]:
    found = []
    if titles:
        found.append(Label(0, -LINE - 7 if with_places else -5, titles[-1]))
    if len(titles) > 1:
        fitting = drawable(titles[-2], max(6, height // 6))
        found.append(Label(-6, height // 2, fitting, "middle", turned=True))
    return found


def axis_types_label(mesh: MeshInfo) -> str:
    """Returns ``"axes Auto"``, or ``"axes Auto, Explicit"`` in the order of the axes."""
    kinds = mesh.axis_types
    known = kinds[:1] if len(set(kinds)) == 1 else kinds
    word = "axis" if len(mesh.shape) == 1 else "axes"
    return f"{word} {', '.join(known)}" if known else ""


def _summary(mesh: MeshInfo) -> str:
    sizes = zip(mesh.axis_names, mesh.shape, strict=True)
    axes = " × ".join(f"{name} {size}" for name, size in sizes)
    return f"mesh {axes} of {plural(len(mesh.device_ids), 'device')}, {axis_types_label(mesh)}"
