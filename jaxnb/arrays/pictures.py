"""Pictures of arrays and meshes over devices, as HTML and as text."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product
from math import prod

from jaxnb.arrays.blocks import (
    EDGE_ITEMS,
    Index,
    Interval,
    PreviewSlice,
    blocks,
    boundaries,
    dimension_label,
    elements_bytes,
    index_label,
    preview,
)
from jaxnb.arrays.blocks import Block as Part
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
from jaxnb.labels import format_bytes, one_line, plural, processes_label, ranks_label
from jaxnb.model.arrays import ArrayInfo, MeshInfo

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), its black taken for a grey: blocks
# are tinted with these over the page, which may be white or black.
_PALETTE = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#888888",
)
_TURN = 0.055
_LIGHTER = (1.0, 0.72, 1.25)

TINT = 0.36
"""How much of a colour is in a box, so that the page's text is readable on it."""

SHARED = "rgba(128,128,128,0.15)"
"""Behind what several processes have."""

_MAX_BANDS = 12

_MAX_SIDE, _MAX_PANELS, _MAX_PARTS = 16, 8, 400
"""Boxes in a row or column of a matrix, matrices, and about how many boxes in all."""


def process_color(process_index: int) -> str:
    """Returns ``"#0072B2"``: the same process always has the same colour.

    From the ninth process on the colours come again, turned in hue and of another lightness;
    beyond some 24 only the label tells for sure.
    """
    turns, place = divmod(process_index, len(_PALETTE))
    color = _PALETTE[place]
    if not turns:
        return color
    red, green, blue = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, lightness, saturation = colorsys.rgb_to_hls(red, green, blue)
    lightness = min(0.75, lightness * _LIGHTER[turns % len(_LIGHTER)])
    # A grey has no hue to turn.
    saturation = max(saturation, 0.25)
    turned = colorsys.hls_to_rgb((hue + turns * _TURN) % 1, lightness, saturation)
    return "#" + "".join(f"{round(part * 255):02X}" for part in turned)


def tints(processes: Sequence[int]) -> list[str]:
    """Returns the translucent colours of processes, of at most a dozen."""
    colors = [process_color(process) for process in processes[:_MAX_BANDS]]
    parts = ([str(int(color[i : i + 2], 16)) for i in (1, 3, 5)] for color in colors)
    return [f"rgba({','.join(rgb)},{TINT})" for rgb in parts]


_MAX_CHARS = 18


@dataclass(frozen=True, slots=True)
class Holders:
    """Who holds a part, and how that is said.

    Attributes:
        processes: Process indices, in order.
        devices: For each of them its devices that hold the part, in order.
        whole: Each of the processes holds it with all its devices that the array is on, so
            that ranges of both tell who has what.
    """

    processes: tuple[int, ...]
    devices: tuple[tuple[int, ...], ...]
    whole: bool

    @property
    def count(self) -> int:
        """On how many devices the part is."""
        return sum(map(len, self.devices))

    @property
    def pairs(self) -> list[str]:
        """``["P0 d0", "P1 d2-3"]``."""
        held = zip(self.processes, self.devices, strict=True)
        return [f"P{process} d{ranks_label(devices)}" for process, devices in held]

    @property
    def names(self) -> list[str]:
        """``["P0", "P1"]``; with their devices, if these are not all that they have."""
        return [f"P{process}" for process in self.processes] if self.whole else self.pairs

    @property
    def short(self) -> str:
        """``"P0 d0"``, ``"P0-1 d0-3 ×4"`` or ``"P0 d0, P1 d2 ×2"``."""
        times = f" ×{self.count}" if self.count > 1 else ""
        ranges = f"P{ranks_label(self.processes)} d{ranks_label(self._flat)}"
        return (ranges if self.whole else ", ".join(self.pairs)) + times

    @property
    def long(self) -> str:
        """``"process 0 · device 0"`` or ``"×2: P0 d0, P1 d2"``, cut after sixteen processes."""
        if self.count == 1 or self.whole:
            times = f" · ×{self.count}" if self.count > 1 else ""
            return f"{processes_label(self.processes)} · {self._devices}{times}"
        return f"×{self.count}: {', '.join(_some(self.pairs, 16))}"

    @property
    def forms(self) -> list[tuple[str, ...]]:
        """The lines to write into a block: in words, short, or none at all."""
        times = (f"×{self.count}",) if self.count > 1 else ()
        words = [processes_label(self.processes), self._devices]
        full = words if self.whole else _some(self.pairs, 4)
        short = [f"P{ranks_label(self.processes)}", f"d{ranks_label(self._flat)}"]
        lines = [[one_line(line, _MAX_CHARS) for line in each] for each in (full, short)]
        return [*((*each, *times) for each in lines), ()]

    @property
    def _flat(self) -> list[int]:
        return [device for devices in self.devices for device in devices]

    @property
    def _devices(self) -> str:
        return f"device{'s' * (self.count > 1)} {ranks_label(self._flat)}"


def devices_by_process(array: ArrayInfo) -> dict[int, frozenset[int]]:
    """Returns which devices of each process the array is on."""
    found: dict[int, set[int]] = {}
    for shard in array.shards:
        found.setdefault(shard.process_index, set()).add(shard.device_id)
    return {process: frozenset(devices) for process, devices in found.items()}


def holders_of(part: Part, owned: Mapping[int, frozenset[int]]) -> Holders:
    """Returns who holds a part.

    Args:
        part: The part.
        owned: What :func:`devices_by_process` says of its array.
    """
    held: dict[int, set[int]] = {}
    for shard in part.shards:
        held.setdefault(shard.process_index, set()).add(shard.device_id)
    whole = len(held) == 1 or all(held[process] == owned[process] for process in held)
    processes = tuple(sorted(held))
    return Holders(processes, tuple(tuple(sorted(held[p])) for p in processes), whole)


def _some(texts: list[str], most: int) -> list[str]:
    if len(texts) <= most:
        return texts
    return [*texts[: most - 1], f"… {len(texts) - most + 1} more"]


# A dimension that no device boundary crosses has nothing to show: the two dimensions of the
# matrices are the last two that are split, and further split ones make a matrix per part.

Place = Interval | None
"""An interval of a dimension; None stands for those that were left out."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One matrix of parts.

    Attributes:
        label: What of the array it shows, ``"[0:1, :, :]"``; empty if there is only one.
        parts: For each row the parts in it; None where some were left out.
    """

    label: str
    parts: tuple[tuple[Part | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """An array's parts as matrices.

    Attributes:
        row: The dimension that goes down; None below two dimensions.
        column: The dimension that goes to the right; None for scalars.
        leading: The dimensions of which every part has a matrix of its own.
        rows: Intervals of the row dimension.
        columns: Intervals of the column dimension.
        panels: The matrices.
        left_out: How many parts are in none of them.
    """

    row: int | None
    column: int | None
    leading: tuple[int, ...]
    rows: tuple[Place, ...]
    columns: tuple[Place, ...]
    panels: tuple[Panel, ...]
    left_out: int


def interval_label(interval: Place) -> str:
    """Returns ``"0:4"``; ``"…"`` for None."""
    return "…" if interval is None else f"{interval[0]}:{interval[1]}"


def picture(array: ArrayInfo) -> Picture:
    """Returns the parts of an array as matrices: a few, and long rows and columns shortened."""
    parts = {part.index: part for part in blocks(array.shards)}
    sides = boundaries(parts.values(), len(array.shape))
    row, column = _drawn(sides)
    split = [d for d, side in enumerate(sides) if len(side) > 1]
    leading = tuple(d for d in split if d not in (row, column))
    longest = 2 * _MAX_SIDE if len(split) == 1 else _MAX_SIDE
    rows = _shortened(sides[row], longest) if row is not None else (None,)
    columns = _shortened(sides[column], longest) if column is not None else (None,)
    if not parts:
        return Picture(row, column, leading, rows, columns, (), 0)
    most = min(_MAX_PANELS, max(1, _MAX_PARTS // (len(rows) * len(columns))))
    panels = []
    for place in islice(product(*(sides[d] for d in leading)), most):
        fixed: dict[int | None, Place] = {d: side[0] for d, side in enumerate(sides)}
        fixed |= dict(zip(leading, place, strict=True))
        label = [interval_label(fixed[d]) if d in leading else ":" for d in range(len(sides))]
        grid = tuple(
            tuple(_at(parts, len(sides), {**fixed, row: r, column: c}) for c in columns)
            for r in rows
        )
        panels.append(Panel(f"[{', '.join(label)}]" if place else "", grid))
    shown = sum(part is not None for panel in panels for line in panel.parts for part in line)
    return Picture(row, column, leading, rows, columns, tuple(panels), len(parts) - shown)


def _at(parts: Mapping[Index, Part], ndim: int, place: Mapping[int | None, Place]) -> Part | None:
    index = [interval for d in range(ndim) if (interval := place[d]) is not None]
    return parts.get(tuple(index)) if len(index) == ndim else None


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


_MOST_CHIPS = 4
_WIDEST, _WIDEST_OF_MANY, _HIGHEST = 110, 145, 48
"""Characters in a row of boxes, in one of over 16 boxes, and lines in a column of them."""


def array_grids(array: ArrayInfo) -> list[Block]:
    """Returns the picture of who owns which part of an array; nothing if it has no shards."""
    cut = picture(array)
    if not cut.panels:
        return []
    owned = devices_by_process(array)
    drawn = {part for panel in cut.panels for line in panel.parts for part in line if part}
    held = {part: holders_of(part, owned) for part in drawn}
    level = _level(list(held.values()), cut)
    grids = [
        Grid(
            [[_box(part, held, level, array) for part in line] for line in panel.parts],
            [panel.label] if panel.label else [],
            [interval_label(place) for place in cut.columns] if cut.column is not None else [],
            [interval_label(place) for place in cut.rows] if cut.row is not None else [],
        )
        for panel in cut.panels
    ]
    notes = [Note(text, "dim") for text in _captions(array, cut)]
    return [*notes, *_beside(grids, cut.left_out, "part")]


def _beside(grids: Sequence[Grid], hidden: int, what: str) -> list[Block]:
    more = [Note(f"… {plural(hidden, f'more {what}')}", "dim")] if hidden > 0 else []
    return [Beside([[grid] for grid in grids]), *more]


def _box(part: Part | None, held: dict[Part, Holders], level: int, array: ArrayInfo) -> Box | None:
    if part is None:
        return None
    holders = held[part]
    size = format_bytes(elements_bytes(prod(part.shape), array.itemsize_bits))
    title = one_line(f"{index_label(part.index)} · {holders.long} · {size}", 300)
    colors = tints(holders.processes) if prod(part.shape) else []
    lines, chips = holders.forms[level], list[tuple[str, str]]()
    if len(colors) > 1 and lines:  # side by side they would look like parts of the part
        if level == 0 and len(colors) <= _MOST_CHIPS:
            chips = list(zip(holders.names, colors, strict=True))
            lines = lines[len(chips) if not holders.whole else 1 :]
        colors = [SHARED]
    return Box(lines, colors, title, holders.short, stacked=holders.count > 1, chips=chips)


def _level(held: Sequence[Holders], cut: Picture) -> int:
    """Returns the fullest form of the texts for which there is room."""
    widest = _WIDEST if len(cut.columns) <= 16 else _WIDEST_OF_MANY
    for level, forms in enumerate(zip(*(holders.forms for holders in held), strict=True)):
        width = max((len(line) + 1 for lines in forms for line in lines), default=0)
        height = len(cut.rows) * max(map(len, forms), default=0)
        if len(cut.columns) * width <= widest and height <= _HIGHEST:
            return level
    return 0  # nothing is drawn: the last form has no lines


def _captions(array: ArrayInfo, cut: Picture) -> list[str]:
    """What a reader must know of the dimensions."""
    drawn = (cut.row, cut.column, *cut.leading)
    whole = [d for d in range(len(array.shape)) if d not in drawn]
    texts = []
    if cut.leading:
        of = ", ".join(dimension_label(array, d) for d in cut.leading)
        texts.append(f"one panel for each part of {of}")
    if whole:
        texts.append(f"not split: {', '.join(dimension_label(array, d) for d in whole)}")
    axes = [(cut.row, "↓"), (cut.column, "→")]
    named = [f"{arrow} {dimension_label(array, d)}" for d, arrow in axes if d is not None]
    return [one_line(text, WIDTH) for text in [*texts, ", ".join(named)] if text]


def mesh_grids(mesh: MeshInfo, owners: Mapping[int, int]) -> list[Block]:
    """Returns the picture of a mesh: the last two axes as a matrix for each place on the others.

    Args:
        mesh: The mesh.
        owners: Device id to the process that owns the device.
    """
    places = list(islice(product(*map(range, mesh.shape[:-2])), _MAX_PANELS))
    grids = [Grid(_boxes(mesh, i, owners), _mesh_captions(mesh, p)) for i, p in enumerate(places)]
    shown = sum(box is not None for grid in grids for line in grid.boxes for box in line)
    hidden = len(mesh.device_ids) - shown
    # Of axes of several types each says its own.
    alike = len(set(mesh.axis_types)) == 1
    word = "axis" if len(mesh.shape) == 1 else "axes"
    kinds = f" · {word} {mesh.axis_types[0]}" if alike else ""
    arrows = ["↓", "→"][-len(mesh.shape) :][: len(mesh.shape)]
    titles = [
        f"{arrow} {_title(mesh, axis - len(arrows), alike=alike)}"
        for axis, arrow in enumerate(arrows)
    ]
    head = [f"mesh{kinds}", ", ".join(titles)]
    return [*(Note(t, "dim") for t in head if t), *_beside(grids, hidden, "device")]


def _boxes(mesh: MeshInfo, panel: int, owners: Mapping[int, int]) -> list[list[Box | None]]:
    *_, rows, columns = 1, 1, *mesh.shape
    first = panel * rows * columns
    return [
        [_mesh_box(mesh, first + row * columns + column, owners)
         for column in range(min(columns, _MAX_SIDE))]
        for row in range(min(rows, _MAX_SIDE))
    ]  # fmt: skip


def _mesh_box(mesh: MeshInfo, place: int, owners: Mapping[int, int]) -> Box | None:
    if place >= len(mesh.device_ids):
        return None
    device = mesh.device_ids[place]
    owner = [owners[device]] if device in owners else []
    title = " · ".join([f"device {device}", *(f"process {process}" for process in owner)])
    return Box([str(device)], tints(owner), title, str(device))


def _title(mesh: MeshInfo, axis: int, *, alike: bool) -> str:
    title = f"{mesh.axis_names[axis]} · {mesh.shape[axis]}"
    return one_line(title if alike else f"{title} · {mesh.axis_types[axis]}", 40)


def _mesh_captions(mesh: MeshInfo, place: Sequence[int]) -> list[str]:
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
    lines = [x if len(x) <= WIDTH else f"{x[: WIDTH - 1]}…" for x in text.splitlines()]
    return "\n".join([*lines, f"  … {plural(more, 'more slice')}"] if more else lines)


def _slice_text(part: PreviewSlice) -> str:
    table = text_table(part.rows, ">" * len(part.rows[0]))
    if not part.leading:
        return table
    place = ", ".join(map(str, part.leading))
    return f"  {middle(f'[{place}, :, :]', WIDTH - 2)}\n{table}"


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
