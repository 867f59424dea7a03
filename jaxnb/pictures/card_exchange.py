"""The picture of a collective: what devices have before, what goes where, what they have after."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from jaxnb.arrays.pictures import SHARED, tint
from jaxnb.display.blocks import Beside, Block, Box, Either, Facts, Grid, Note
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import WIDTH, text_table
from jaxnb.errors import UsageError
from jaxnb.labels import one_line, plural, short_number
from jaxnb.model.arrays import MeshInfo
from jaxnb.model.compiled import CollectiveKind
from jaxnb.options import one_of
from jaxnb.pictures.exchange import Arrival, Exchange, Held, Piece, cuts, play

DRAWN = 8
"""A group of more devices is drawn as one of :data:`FEW`."""

FEW = 4

_MAX_MESH = 64
_MAX_VALUE = 18
_NOWHERE = Box([], "transparent", "", "")

KINDS: dict[str, CollectiveKind] = {
    "psum": "all-reduce",
    "all_gather": "all-gather",
    "psum_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "ppermute": "collective-permute",
}
"""What JAX calls collectives, to what XLA does."""

NAMES = {kind: name for name, kind in KINDS.items()}

_SAYS: dict[CollectiveKind, str] = {
    "all-reduce": "Every device gets the sum Σ: in the first half of the steps parts are summed on "
    "their way around, in the second the sums go around. Each step: from which device, and the sum "
    "so far.",
    "all-gather": "Every device gets all: each step passes on what came in the one before.",
    "reduce-scatter": "Every device gets its own part of the sum Σ: parts are summed on their way "
    "around. Each step: from which device, and the sum so far.",
    "all-to-all": "Every device gets its own part of each one's data.",
    "ragged-all-to-all": "Every device gets its own part of each one's data.",
    "collective-permute": "Every device sends what it has to one other.",
    "collective-broadcast": "Every device gets what the first has.",
}


@dataclass(frozen=True)
class _Labels:
    """Says what pieces are, in a group of so many devices; their values, if those are known."""

    size: int
    values: Sequence[Any] = ()

    def __call__(self, piece: Piece | None) -> str:
        if piece is None:
            return "·"
        if len(self.values):
            arrays = [
                each if piece.part is None else np.array_split(each, self.size)[piece.part]
                for each in (self.values[d] for d in sorted(piece.of))
            ]
            return one_line(
                " ".join(map(short_number, np.sum(arrays, axis=0).flat)) or "–", _MAX_VALUE
            )
        part = "" if piece.part is None else str(piece.part)
        names = [f"{self.name(d)}{part}" for d in self._in_order(piece.of)]
        if len(names) == self.size > 1:
            return f"Σ{part}"
        most = 3 if self.size <= FEW else 2
        return "+".join(names) if len(names) <= most else f"{names[0]}…{names[-1]}"

    def _in_order(self, of: frozenset[int]) -> list[int]:
        """Returns places in the order in which they were summed around the ring."""
        first = next((d for d in sorted(of) if (d - 1) % self.size not in of), min(of))
        return [d % self.size for d in range(first, first + len(of))]

    def name(self, place: int) -> str:
        return string.ascii_lowercase[place]


def _color(piece: Piece | None) -> str:
    """Returns the colour of whose data it is; of several, a grey."""
    if piece is None:
        return ""
    return tint(min(piece.of)) if len(piece.of) == 1 else SHARED


def exchange_blocks(
    kind: CollectiveKind,
    group: Sequence[int],
    *,
    pairs: Sequence[tuple[int, int]] = (),
    owners: Mapping[int, int] | None = None,
    mesh: MeshInfo | None = None,
    values: Sequence[Any] = (),
    elements: int | None = None,
) -> list[Block]:
    """Returns the picture of a collective in a group of devices.

    Args:
        kind: The collective.
        group: The devices, as ``Device.id``.
        pairs: Of a permute: who sends to whom.
        owners: Device to process, if there are processes.
        mesh: The mesh that the group is in.
        values: What each device of the group has, if it is to be shown.
        elements: How many elements each device has, if that is known.
    """
    size = len(group) if len(group) <= DRAWN else FEW
    is_ring = not pairs or (group[-1], group[0]) in pairs
    is_small = kind == "all-reduce" and not cuts(kind, len(group), elements)
    found, label = play(kind, size, is_ring=is_ring, is_cut=not is_small), _Labels(size, values)
    is_whole = size == len(group)
    rows = [
        f"{label.name(d)}{f' · {device_label(group[d], owners or {})}' if is_whole else ''}"
        for d in range(size)
    ]
    how = ["Every device gets the sum Σ; it is too small to be cut." if is_small else _SAYS[kind]]
    if size > FEW and not is_small and kind in ("all-reduce", "reduce-scatter"):
        how.append("b0…d0 is a sum too, of b0, c0 and d0.")
    if pairs and not is_ring:
        how.append("Who gets nothing has zeros.")
    if not is_whole:
        how.append(f"Drawn with {size} devices; the group has {len(group)}.")
    picture = Either([_grid(found, rows, label)], _text(found, rows, label))
    place = [] if mesh is None else _mesh(mesh, group, label, size)
    return [Beside([[picture], place]), Note(" ".join(how), "dim")]


def device_label(device: int, owners: Mapping[int, int]) -> str:
    """Returns a device, and its process if that is known: ``"P1 d2048"``."""
    return f"P{owners[device]} d{device}" if device in owners else f"d{device}"


def _grid(found: Exchange, rows: Sequence[str], label: _Labels) -> Grid:
    shown = _shown_steps(len(found.steps))
    boxes: list[list[Box | None]] = []
    for d in range(len(rows)):
        line: list[Box | None] = [_box(piece, label) for piece in found.before[d]]
        line.append(_NOWHERE)
        line += [None if i is None else _arrived(found.steps[i], d, label) for i in shown]
        line.append(_NOWHERE)
        line += [_box(piece, label) for piece in found.after[d]]
        boxes.append(line)
    steps = ["⋯" if i is None else f"step {i + 1}" for i in shown]
    columns = [*_head("before", found.before), "→", *steps, "→", *_head("after", found.after)]
    return Grid(boxes, columns, rows)


def _shown_steps(count: int) -> list[int | None]:
    """Returns which steps are drawn: of many the first two and the last of each half."""
    if count < DRAWN:
        return [*range(count)]
    half = count // 2
    return [0, 1, None, half - 1, half, half + 1, None, count - 1]


def _head(text: str, held: Held) -> list[str]:
    return [text, *[""] * (len(held[0]) - 1)]


def _box(piece: Piece | None, label: _Labels) -> Box:
    return Box([label(piece)], _color(piece), "", label(piece))


def _arrival(step: Sequence[Arrival], place: int) -> Arrival | None:
    return next((each for each in step if each.target == place), None)


def _arrived(step: Sequence[Arrival], place: int, label: _Labels) -> Box:
    each = _arrival(step, place)
    if each is None:
        return _NOWHERE
    source, piece = label.name(each.source), label(each.piece)
    title = f"{label.name(place)} gets it from {source}, and then has {piece}"
    return Box([f"{source}→ {piece}"], _color(each.piece), title, f"{source}→ {piece}")


def _text(found: Exchange, rows: Sequence[str], label: _Labels) -> str:
    """Returns the picture with a line for each step, as a terminal is narrow."""
    is_wide = len(rows) > FEW  # then it is not said from where: from the left, of a ring

    def has(pieces: Sequence[Piece | None]) -> str:
        texts = [label(each) for each in pieces if each or not is_wide]
        between = "…" if len(label.values) else "-"
        is_cut = is_wide and len(texts) > 1
        return f"{texts[0]}{between}{texts[-1]}" if is_cut else " ".join(texts)

    def came(step: Sequence[Arrival], place: int) -> str:
        if (each := _arrival(step, place)) is None:
            return ""
        return label(each.piece) if is_wide else f"{label.name(each.source)}→ {label(each.piece)}"

    places = range(len(rows))
    names = [label.name(d) for d in places] if is_wide else rows
    table = [["", *names], ["before", *map(has, found.before)]]
    for i, step in enumerate(found.steps, 1):
        table.append([f"step {i}", *(came(step, d) for d in places)])
    table.append(["after", *map(has, found.after)])
    lines = text_table(table, "<" * len(table[0]), gap=1 if is_wide else 2).split("\n")
    lines[:0] = [", ".join(rows)] * is_wide
    return "\n".join(x if len(x) <= WIDTH else f"{x[: WIDTH - 1]}…" for x in lines)


def _mesh(mesh: MeshInfo, group: Sequence[int], label: _Labels, size: int) -> list[Block]:
    """Returns which devices of a mesh the group is."""
    width = mesh.shape[-1] if mesh.shape else 1
    count = len(mesh.device_ids)
    if count > _MAX_MESH or (set(group) == set(mesh.device_ids) and len(mesh.shape) == 1):
        return []
    names = {device: label.name(d) for d, device in enumerate(group) if d < size}
    boxes = [
        Box(
            [names.get(device, str(device))],
            tint(group.index(device)) if device in names else SHARED,
            f"device {device}",
            names.get(device, str(device)),
        )
        for device in mesh.device_ids
    ]
    lines = [boxes[start : start + width] for start in range(0, count, width)]
    return [Note(f"in the mesh {mesh.label}", "dim"), Grid(lines)]


def picture(
    collective: str,
    mesh_shape: Mapping[str, int] | Sequence[int],
    axis: str | int,
    values: Any = None,
) -> Card:
    """Draws a collective; what :func:`jaxnb.picture` returns."""
    by_kind = {kind.replace("-", "_"): name for name, kind in KINDS.items()}  # XLA's, and MPI's
    collective = by_kind.get(str(collective), str(collective))
    kind = KINDS[one_of("collective", collective, (*KINDS,), "Nothing was drawn.")]
    mesh, along = _asked_mesh(mesh_shape, axis)
    places = np.moveaxis(np.arange(prod(mesh.shape)).reshape(mesh.shape), along, -1)
    groups = places.reshape(-1, mesh.shape[along])
    shown = _asked_values(values, prod(mesh.shape), len(groups[0]), kind)
    facts = [f"mesh {mesh.label}"]
    if len(groups) > 1:
        facts.append(f"the first of {len(groups)} groups of {plural(len(groups[0]), 'device')}")
    group = tuple(map(int, groups[0]))
    own = [shown[d] for d in group if len(shown)]
    elements = len(own[0]) if own else None
    blocks = exchange_blocks(kind, group, mesh=mesh, values=own, elements=elements)
    title = f"{collective} over {one_line(mesh.axis_names[along], 40)}"
    return card_of(Facts(facts, title), *blocks)


def _asked_mesh(mesh_shape: Any, axis: Any) -> tuple[MeshInfo, int]:
    if isinstance(of_mesh := getattr(mesh_shape, "shape", None), Mapping):
        mesh_shape = of_mesh
    if isinstance(mesh_shape, Mapping):
        names, shape = tuple(map(str, mesh_shape)), tuple(mesh_shape.values())
    else:
        shape = tuple(mesh_shape) if isinstance(mesh_shape, Iterable) else (mesh_shape,)
        names = tuple("xyzw"[: len(shape)])
    is_mesh = shape and len(names) == len(shape) and all(_is_size(each) for each in shape)
    if not is_mesh or prod(shape) > _MOST:
        raise UsageError(
            f"A mesh has a size of at least 1 for each axis: {{'data': 2, 'model': 4}}, or (2, 4) "
            f"with axes x and y (up to four without names), and at most {_MOST} devices; not "
            f"{mesh_shape!r}. Nothing was drawn."
        )
    if isinstance(axis, list | tuple):
        raise UsageError(f"A picture is of one axis, not of {axis!r}. Nothing was drawn.")
    name = names[axis] if isinstance(axis, int) and -len(names) <= axis < len(names) else axis
    along = names.index(one_of("axis", str(name), names, "Nothing was drawn."))
    count = prod(shape)
    return MeshInfo(names, shape, ("Auto",) * len(shape), tuple(range(count))), along


def _is_size(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= 1)


_MOST = 65536


def _asked_values(
    values: Any, devices: int, size: int, kind: CollectiveKind
) -> np.ndarray[Any, Any] | Sequence[Any]:
    if values is None:
        return ()
    try:
        found = np.asarray(values)
    except ValueError:  # lists of different lengths
        found = np.array(None)
    is_few = found.ndim in (1, 2) and found.size <= devices * DRAWN * 2
    if found.dtype.kind not in "biufc" or not is_few or len(found) != devices or size > DRAWN:
        raise UsageError(
            f"`values` has a number, or a few, for each of the {devices} devices, and is drawn in "
            f"groups of at most {DRAWN}. Nothing was drawn."
        )
    found = found.reshape(devices, -1)
    if cuts(kind, size, found.shape[1]) and found.shape[1] % size:
        raise UsageError(
            f"Each device has {plural(found.shape[1], 'value')}, which cannot be cut into {size} "
            f"equal parts, one for each. Nothing was drawn. Give each device {size} values."
        )
    return found
