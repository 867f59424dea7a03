"""Pictures of arrays and meshes over devices, as HTML and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from math import prod

from jaxnb.arrays.blocks import Block as Part
from jaxnb.arrays.blocks import (
    Interval,
    blocks,
    boundaries,
    dimension_label,
    elements_bytes,
    index_label,
    preview,
)
from jaxnb.display.blocks import (
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
from jaxnb.display.text import WIDTH, text_table
from jaxnb.labels import (
    format_bytes,
    one_line,
    plural,
    plural_word,
    processes_label,
    ranks_label,
)
from jaxnb.model.arrays import ArrayInfo, MeshInfo, ShardInfo

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), its black replaced by a grey: boxes
# are tinted with these over the page, which may be white or black.
_PALETTE = (
    (0, 114, 178),
    (230, 159, 0),
    (0, 158, 115),
    (204, 121, 167),
    (86, 180, 233),
    (213, 94, 0),
    (240, 228, 66),
    (136, 136, 136),
)

TINT = 0.36
"""How much of a colour is in a box, so that the page's text is readable on it."""

SHARED = "rgba(128,128,128,0.15)"
"""Behind what several processes have."""

_MAX_SIDE = 16
"""Boxes in a row or column; twice as many where there are few columns or rows."""

_MAX_PAIRS = 4
"""So many processes are listed one by one in a box; a tooltip lists more."""


def tint(process_index: int) -> str:
    """Returns a process's translucent colour; from the ninth process on the colours come again."""
    red, green, blue = _PALETTE[process_index % len(_PALETTE)]
    return f"rgba({red},{green},{blue},{TINT})"


def devices_by_process(shards: Iterable[ShardInfo]) -> dict[int, set[int]]:
    """Returns which devices of each process have one of these shards."""
    found: dict[int, set[int]] = {}
    for shard in shards:
        found.setdefault(shard.process_index, set()).add(shard.device_id)
    return dict(sorted(found.items()))


def _some(texts: list[str], most: int) -> list[str]:
    if len(texts) <= most:
        return texts
    return [*texts[: most - 1], f"… {len(texts) - most + 1} more"]


# A dimension that no device boundary crosses has nothing to show: the last dimension that is split
# goes across, and the others go down, with a row for each combination of their intervals.

Place = tuple[Interval, ...]
"""Intervals of the dimensions that go across, or of those that go down."""


def _label(place: Place | None) -> str:
    if place is None:
        return "…"
    return ", ".join(f"{start}:{stop}" for start, stop in place)


def array_grid(array: ArrayInfo) -> list[Block]:
    """Returns the picture of who owns which part of an array; nothing if it has no shards."""
    parts = {part.index: part for part in blocks(array.shards)}
    if not parts:
        return []
    sides = boundaries(parts.values(), len(array.shape))
    split = [d for d, side in enumerate(sides) if len(side) > 1]
    others = [d for d in reversed(range(len(sides))) if d not in split]
    drawn = sorted([*split, *others[: max(0, 2 - len(split))]])
    down, across = drawn[:-1], drawn[-1:]
    rows = list(product(*(sides[d] for d in down)))
    columns = list(product(*(sides[d] for d in across)))
    shown_rows, shown_columns = _shortened(rows, columns), _shortened(columns, rows)
    owned = devices_by_process(array.shards)

    def box(row: Place | None, column: Place | None) -> Box | None:
        if row is None or column is None:
            return None
        place = dict(zip(drawn, [*row, *column], strict=True))
        part = parts.get(tuple(place.get(d, side[0]) for d, side in enumerate(sides)))
        return None if part is None else _box(part, owned, array)

    grid = Grid(
        [[box(row, column) for column in shown_columns] for row in shown_rows],
        list(map(_label, shown_columns)) if across else [],
        list(map(_label, shown_rows)) if down else [],
    )
    return [*_captions(array, down, across), grid, *_rest(grid, len(parts), "part")]


def _shortened(side: list[Place], other: list[Place]) -> list[Place | None]:
    """Returns the places along one side of a grid, and None for those that are left out."""
    longest = _MAX_SIDE if len(other) > 2 else 2 * _MAX_SIDE
    return [*side] if len(side) <= longest else [*side[: longest - 2], None, side[-1]]


def _rest(grid: Grid, count: int, what: str) -> list[Block]:
    """Returns how many of the boxes that there could be are not in a grid."""
    more = count - sum(box is not None for line in grid.boxes for box in line)
    return [Note(f"… {plural(more, f'more {what}')}", "dim")] if more else []


def _box(part: Part, owned: Mapping[int, set[int]], array: ArrayInfo) -> Box:
    """Returns the box of a part.

    Args:
        part: The part.
        owned: What :func:`devices_by_process` says of its array.
        array: That.
    """
    held = devices_by_process(part.shards)
    devices = part.device_ids
    times = [f"×{len(devices)}"] if len(devices) > 1 else []
    if len(held) == 1 or all(held[process] == owned[process] for process in held):
        ids = ranks_label(devices)
        lines = [f"P{ranks_label(held)}", f"d{ids}"]
        text = " ".join([*lines, *times])
        long = [processes_label(held), f"{plural_word(len(devices), 'device')} {ids}", *times]
    else:  # ranges would not say which process has which device
        pairs = [f"P{process} d{ranks_label(those)}" for process, those in held.items()]
        lines = _some(pairs, _MAX_PAIRS)
        text = " ".join([", ".join(pairs), *times])
        long = [*times, ", ".join(_some(pairs, 16))]
    size = format_bytes(elements_bytes(prod(part.shape), array.itemsize_bits))
    title = one_line(" · ".join([index_label(part.index), *long, size]), 300)
    color = tint(next(iter(held))) if len(held) == 1 else SHARED
    return Box(
        [*(one_line(line, _MAX_CHARS) for line in (*lines, *times)), *_values(part, array)],
        color if prod(part.shape) else "",
        title,
        text,
        stacked=len(devices) > 1,
    )


_MAX_CHARS = 18
"""Characters in a line of a box."""

_MAX_VALUE = 12
_MAX_VALUES = 4


def _values(part: Part, array: ArrayInfo) -> list[str]:
    """Returns the elements of a part, row by row, if all of the array are known and these few."""
    is_known = len(array.corner) == prod(array.shape)
    if not is_known or not 0 < prod(part.shape) <= _MAX_VALUES or part.shape == array.shape:
        return []
    known = dict(array.corner)
    if any(len(text) > _MAX_VALUE for text in known.values()):
        return []
    *leading, last = [range(*interval) for interval in part.index]
    return [" ".join(one_line(known[(*place, k)]) for k in last) for place in product(*leading)]


def has_values_drawn(array: ArrayInfo) -> bool:
    """Whether the picture has all values of an array."""
    if len(array.corner) != prod(array.shape):
        return False  # the common case, without sorting
    parts = list(blocks(array.shards))
    return 0 < len(parts) <= _MAX_SIDE and all(_values(part, array) for part in parts)


def _captions(array: ArrayInfo, down: Sequence[int], across: Sequence[int]) -> list[Block]:
    """What a reader must know of the dimensions."""
    whole = [d for d in range(len(array.shape)) if d not in (*down, *across)]
    texts = []
    for before, dimensions in (("not split: ", whole), ("↓ ", down), ("→ ", across)):
        if dimensions:
            texts.append(before + ", ".join(dimension_label(array, d) for d in dimensions))
    lines = [*texts[:1], ", ".join(texts[1:])] if whole else [", ".join(texts)]
    return [Note(one_line(line, WIDTH), "dim") for line in lines]


def mesh_grid(mesh: MeshInfo, owners: Mapping[int, int]) -> list[Block]:
    """Returns the picture of a mesh: its last axis goes across, and the others go down.

    Args:
        mesh: The mesh.
        owners: Device id to the process that owns the device.
    """
    width = mesh.shape[-1] if mesh.shape else 1
    starts = range(0, len(mesh.device_ids), max(1, width))[: 2 * _MAX_SIDE]
    places = [", ".join(map(str, place)) for place in product(*map(range, mesh.shape[:-1]))]
    grid = Grid(
        [
            [
                _mesh_box(device, owners)
                for device in mesh.device_ids[start : start + min(width, _MAX_SIDE)]
            ]
            for start in starts
        ],
        rows=places[: len(starts)] if len(mesh.shape) > 2 else [],
    )
    # Of axes of several types each says its own.
    alike = len(set(mesh.axis_types)) == 1
    word = "axis" if len(mesh.shape) == 1 else "axes"
    names = [
        one_line(f"{name} · {size}" if alike else f"{name} · {size} · {kind}", 40)
        for name, size, kind in zip(mesh.axis_names, mesh.shape, mesh.axis_types, strict=True)
    ]
    texts = [f"{arrow} {', '.join(x)}" for arrow, x in (("↓", names[:-1]), ("→", names[-1:])) if x]
    head = [f"mesh · {word} {mesh.axis_types[0]}" if alike else "mesh", ", ".join(texts)]
    notes = [Note(one_line(text, WIDTH), "dim") for text in head if text]
    return [*notes, grid, *_rest(grid, len(mesh.device_ids), "device")]


def _mesh_box(device: int, owners: Mapping[int, int]) -> Box:
    owner = owners.get(device)
    title = f"device {device}" if owner is None else f"device {device} · process {owner}"
    return Box([str(device)], "" if owner is None else tint(owner), title, str(device))


_MAX_ELEMENT = 24


def preview_text(array: ArrayInfo) -> str:
    """Returns the values at the array's corners as aligned text; empty if none is known."""
    corner = [(place, one_line(text, _MAX_ELEMENT)) for place, text in array.corner]
    rows = preview(array.shape, corner)
    if not rows:
        return ""
    lines = text_table(rows, ">" * len(rows[0])).split("\n")
    if leading := array.shape[:-2]:
        lines.insert(0, f"  [{'0, ' * len(leading)}:, :]")
        if more := prod(leading) - 1:
            lines.append(f"  … {plural(more, 'more slice')}")
    return "\n".join(x if len(x) <= WIDTH else f"{x[: WIDTH - 1]}…" for x in lines)


_MAX_ROWS = 16


def sizes_block(sizes: Mapping[int, int], owners: Mapping[int, int]) -> Table:
    """Returns what each device holds, with bars.

    Args:
        sizes: Device id to bytes.
        owners: Device id to the process that owns the device.
    """
    largest = max(sizes.values(), default=0)
    rows: list[Row] = [
        [
            f"device {device} · process {owners[device]}",
            Cell(strip=Strip([Length(0, 100 * size / largest if largest else 0.0, ACCENT)])),
            format_bytes(size),
        ]
        for device, size in sorted(sizes.items())[:_MAX_ROWS]
    ]
    columns = [Column("device"), Column(only="html"), Column("bytes", ">")]
    return Table(columns, rows, more=(len(sizes) - len(rows), "device"))
