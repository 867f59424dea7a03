"""The parts of an array as grids of boxes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from jaxnb.arrays import Block as Part
from jaxnb.arrays import elements_bytes
from jaxnb.arrays.card_spec import dimension_label
from jaxnb.arrays.draw_colors import SHARED, tints
from jaxnb.arrays.draw_holders import LEVELS, Holders, devices_by_process, holders_of
from jaxnb.arrays.draw_panels import Picture, Place, index_label, interval_label, picture
from jaxnb.display.blocks import Beside, Block, Box, Grid, Note
from jaxnb.labels import format_bytes, one_line, plural
from jaxnb.model.arrays import ArrayInfo

_MOST_CHIPS = 4
_CHAR, _LINE = 6.6, 15  # pixels of 11 px system-ui, on the wide side
_WIDEST, _WIDEST_OF_MANY, _HIGHEST, _GAP = 720, 960, 620, 2
_LONG, _LONG_OF_MANY, _LONG_OF_ONE = 240, 150, 130
_MAX_ASPECT = 3


def array_grids(array: ArrayInfo) -> list[Block]:
    """Returns the picture of who owns which part of an array; nothing if it has no shards."""
    cut = picture(array, max_panels=16)
    if not cut.panels:
        return []
    owned = devices_by_process(array)
    drawn = {part for panel in cut.panels for line in panel.parts for part in line if part}
    held = {part: holders_of(part, owned) for part in drawn}
    level, need = _level(held.values(), cut)
    widths, heights = _lengths(array, cut, need)
    grids = [
        Grid(
            [[_box(part, held, level, array) for part in line] for line in panel.parts],
            [panel.label] if panel.label else [],
            [interval_label(place) for place in panel.columns] if cut.column is not None else [],
            [interval_label(place) for place in panel.rows] if cut.row is not None else [],
            widths,
            heights,
        )
        for panel in cut.panels
    ]
    notes = [Note(text, "dim") for text in _captions(array, cut, widths, heights)]
    more = [Note(f"… {plural(cut.left_out, 'more part')}", "dim")] if cut.left_out else []
    return [*notes, Beside([[grid] for grid in grids]), *more]


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
    return Box(lines, colors, title, stacked=holders.count > 1, chips=chips)


def _level(held: Iterable[Holders], cut: Picture) -> tuple[int, tuple[int, int]]:
    """Returns the fullest form of the texts for which there is room, and the room it needs."""
    known = list(held)
    columns, rows = len(cut.panels[0].columns), len(cut.panels[0].rows)
    widest = _WIDEST if columns <= 16 else _WIDEST_OF_MANY
    for level in range(LEVELS):
        forms = [holders.forms[level] for holders in known]
        width = round(max((len(line) for lines in forms for line in lines), default=0) * _CHAR) + 7
        height = _LINE * max(map(len, forms), default=0) + 2
        fits = columns * (width + _GAP) <= widest and rows * (height + _GAP) <= _HIGHEST
        if fits or level == LEVELS - 1:
            return level, (width, height)
    raise AssertionError


def _lengths(array: ArrayInfo, cut: Picture, need: tuple[int, int]) -> tuple[list[int], list[int]]:
    """Returns how wide columns and how high rows are: as long as their parts, if there is room."""
    columns, rows = cut.panels[0].columns, cut.panels[0].rows
    if cut.column is None:
        return [need[0] + 12], [need[1] + 8]
    if cut.row is None:
        total = min(_WIDEST, max(_LONG, 84 * len(columns)))
        return lengths(columns, total, need[0]), [max(need[1] + 4, 36)]
    long = _LONG_OF_MANY if len(cut.panels) > 1 else _LONG
    long = _LONG_OF_ONE if len(rows) == len(columns) == 1 else long
    ratio = max(array.shape[cut.row], 1) / max(array.shape[cut.column], 1)
    ratio = min(max(ratio, 1 / _MAX_ASPECT), _MAX_ASPECT)
    width, height = (round(long / ratio), long) if ratio > 1 else (long, round(long * ratio))
    return lengths(columns, width, need[0]), lengths(rows, height, need[1])


def lengths(side: Sequence[Place], total: int, floor: int) -> list[int]:
    """Divides a length in proportion to intervals, but gives none less than ``floor``.

    The sum is ``total``, or more where the floors need more. What stands for intervals that were
    left out has the least.
    """
    sizes = [0 if place is None else place[1] - place[0] for place in side]
    free = set(range(len(sizes)))
    while True:
        rest = total - floor * (len(sizes) - len(free))
        size = sum(sizes[i] for i in free)
        small = {i for i in free if sizes[i] * rest < floor * size or size == 0}
        if not small:
            break
        free -= small
    return [round(sizes[i] * rest / size) if i in free else floor for i in range(len(sizes))]


def _captions(
    array: ArrayInfo, cut: Picture, widths: Sequence[int], heights: Sequence[int]
) -> list[str]:
    """What a reader must know of the dimensions."""
    texts = []
    if cut.leading:
        of = ", ".join(dimension_label(array, d) for d in cut.leading)
        texts.append(f"one panel for each part of {of}")
    if cut.whole:
        texts.append(f"not split: {', '.join(dimension_label(array, d) for d in cut.whole)}")
    if _is_distorted(array, cut, widths, heights):
        texts.append("not to scale")
    axes = [(cut.row, "↓"), (cut.column, "→")]
    named = [f"{arrow} {dimension_label(array, d)}" for d, arrow in axes if d is not None]
    return [one_line(text, 110) for text in [*texts, ", ".join(named)] if text]


def _is_distorted(
    array: ArrayInfo, cut: Picture, widths: Sequence[int], heights: Sequence[int]
) -> bool:
    if cut.column is None or 0 in array.shape:
        return False
    sides = [*zip(cut.panels[0].columns, widths, strict=True)]
    if cut.row is not None:
        sides += zip(cut.panels[0].rows, heights, strict=True)
    found = [n / (place[1] - place[0]) for place, n in sides if place and place[1] > place[0]]
    return max(found) > 1.7 * min(found)
