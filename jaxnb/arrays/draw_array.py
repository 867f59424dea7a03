"""The parts of an array as a drawing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from jaxnb.arrays import Block, elements_bytes
from jaxnb.arrays.card_spec import dimension_label
from jaxnb.arrays.draw_geometry import (
    LINE,
    Label,
    Span,
    apart,
    drawable,
    scales,
    spans,
    text_width,
    ticks,
)
from jaxnb.arrays.draw_holders import LEVELS, Holders, devices_by_process, holders_of
from jaxnb.arrays.draw_panels import Panel, Picture, Place, index_label, picture
from jaxnb.arrays.draw_shapes import Drawing, Shape, bands, centred, framed, moved
from jaxnb.labels import format_bytes
from jaxnb.model.layout import ArrayInfo

_WIDEST, _WIDEST_LONG, _HIGHEST = 720, 960, 620
_LONG, _LONG_OF_MANY, _LONG_OF_ONE = 240, 150, 130
_MAX_ASPECT = 3
_LAYER = 4
_MAX_LAYERS = 3
_BETWEEN = 24


@dataclass(frozen=True, slots=True)
class _Form:
    """What the panels of one array have in common."""

    array: ArrayInfo
    columns: tuple[Place, ...]
    rows: tuple[Place, ...]
    across: tuple[Span, ...]
    down: tuple[Span, ...]
    gap: int
    holders: dict[Block, Holders]
    needs: tuple[tuple[int, int], ...]

    @property
    def width(self) -> int:
        return self.across[-1].end

    @property
    def height(self) -> int:
        return self.down[-1].end


def array_drawing(array: ArrayInfo, summary: str) -> tuple[Drawing | None, Picture]:
    """Returns the picture of who owns which part of an array, and what is in it.

    The drawing is None if the array has no shards.
    """
    cut = picture(array, max_panels=16)
    if not cut.panels:
        return None, cut
    form = _form(array, cut)
    shapes: list[Shape] = []
    labels: list[Label] = []
    left = _tick_room(form, cut)
    top = 2 * LINE + 8 if cut.panels[0].label else LINE + 4
    pitch_x, pitch_y = form.width + left + _BETWEEN, form.height + top + _BETWEEN // 2
    per_line = _panels_per_line(cut, pitch_x)
    for i, panel in enumerate(cut.panels):
        line, place = divmod(i, per_line)
        x, y = place * pitch_x, line * pitch_y
        shapes += [moved(shape, x, y) for shape in _blocks(panel, form)]
        around = _edges(panel, form, cut, with_titles=i == 0)
        labels += [replace(label, x=label.x + x, y=label.y + y) for label in around]
    labels += _captions(array, cut, form, min(label.y for label in labels) if labels else 0)
    return framed(shapes, labels, drawable(summary, 300)), cut


def _panels_per_line(cut: Picture, pitch: int) -> int:
    fitting = max(1, (_WIDEST + _BETWEEN) // pitch)
    if len(cut.leading) < 2:
        return fitting
    # As a matrix of matrices, if that fits.
    last = len({panel.label.split(", ")[cut.leading[-1]] for panel in cut.panels})
    return last if last <= fitting else fitting


def _form(array: ArrayInfo, cut: Picture) -> _Form:
    owned = devices_by_process(array)
    drawn = {part for panel in cut.panels for line in panel.parts for part in line if part}
    holders = {part: holders_of(part, owned) for part in drawn}
    needs = tuple(_need([h.forms[level] for h in holders.values()]) for level in range(LEVELS))
    panel = cut.panels[0]
    most = max((h.count for h in holders.values()), default=1)
    gap = 3 + _LAYER * min(most - 1, _MAX_LAYERS)
    widest = _WIDEST if len(panel.columns) <= 16 else _WIDEST_LONG
    floor = next(
        (
            (width, height)
            for width, height in needs[:-1]
            if len(panel.columns) * (width + gap) <= widest
            and len(panel.rows) * (height + gap) <= _HIGHEST
        ),
        (9, 9),
    )
    width, height = _extent(array, cut, floor)
    columns = panel.columns if cut.column is not None else ((0, 1),)
    rows = panel.rows if cut.row is not None else ((0, 1),)
    across = spans(columns, width, floor[0], gap)
    # Room for the title of the axis, which is written upwards.
    title = text_width(dimension_label(array, cut.row)) + 4 if cut.row is not None else 0
    down = spans(rows, max(height, min(title, 150)), floor[1], gap)
    return _Form(array, columns, rows, tuple(across), tuple(down), gap, holders, needs)


def _need(forms: Sequence[tuple[str, ...]]) -> tuple[int, int]:
    """How large a block must be to hold each of the texts."""
    width = max((text_width(line) for lines in forms for line in lines), default=0)
    return width + 7, LINE * max(map(len, forms), default=0) + 3


def _extent(array: ArrayInfo, cut: Picture, floor: tuple[int, int]) -> tuple[int, int]:
    """How large to draw a panel, its blocks' floors apart."""
    if cut.column is None:
        return floor[0] + 12, floor[1] + 8
    columns = array.shape[cut.column]
    if cut.row is None:
        count = len(cut.panels[0].columns)
        return min(_WIDEST, max(_LONG, 84 * count)), max(floor[1] + 4, 36)
    long = _LONG_OF_MANY if len(cut.panels) > 1 else _LONG
    if len(cut.panels[0].rows) == len(cut.panels[0].columns) == 1:
        long = _LONG_OF_ONE
    ratio = max(array.shape[cut.row], 1) / max(columns, 1)
    ratio = min(max(ratio, 1 / _MAX_ASPECT), _MAX_ASPECT)
    return (round(long / ratio), long) if ratio > 1 else (long, round(long * ratio))


def _blocks(panel: Panel, form: _Form) -> list[Shape]:
    return [
        _block(part, form, across, down)
        for down, parts in zip(form.down, panel.parts, strict=True)
        for across, part in zip(form.across, parts, strict=True)
        if part is not None
    ]


def _block(part: Block, form: _Form, across: Span, down: Span) -> Shape:
    held = form.holders[part]
    x, y, width, height = across.start, down.start, across.length, down.length
    level = next(
        (i for i, (w, h) in enumerate(form.needs) if w <= width + 2 and h <= height + 2), LEVELS - 1
    )
    size = elements_bytes(prod(part.shape), form.array.itemsize_bits)
    title = f"{index_label(part.index)} · {held.long} · {format_bytes(size)}"
    return Shape(
        x,
        y,
        width,
        height,
        drawable(title, 300),
        bands(x, width, held.processes) if prod(part.shape) else (),
        centred(x, y, width, height, held.forms[level]),
        tuple(_LAYER * i for i in range(min(held.count - 1, _MAX_LAYERS), 0, -1)),
    )


def _tick_room(form: _Form, cut: Picture) -> int:
    if cut.row is None:
        return 0
    return max(text_width(str(i[1])) for i in form.rows if i is not None) + 6


def _edges(panel: Panel, form: _Form, cut: Picture, *, with_titles: bool) -> list[Label]:
    """What stands around a panel: boundaries, the dimensions, its own label."""
    labels: list[Label] = []
    y = -6
    if cut.column is not None:
        marks = ticks(form.columns, form.across, form.gap)
        marks = apart(marks, (text_width(str(index)) for _, index in marks))
        labels += [Label(x, y, str(index), "middle") for x, index in marks]
        y -= LINE + 2
        if panel.label:
            labels.append(Label(0, y, drawable(panel.label), "start"))
            y -= LINE + 4
        if with_titles:
            labels.append(Label(0, y, drawable(dimension_label(form.array, cut.column))))
    if cut.row is not None:
        marks = ticks(form.rows, form.down, form.gap)
        marks = apart(marks, (LINE - 4 for _ in marks))
        labels += [Label(-5, place + 4, str(index), "end") for place, index in marks]
        if with_titles:
            fitting = drawable(dimension_label(form.array, cut.row), form.height // 6)
            x = -_tick_room(form, cut) - 5
            labels.append(Label(x, form.height // 2, fitting, "middle", turned=True))
    labels += _gaps(form)
    return labels


def _gaps(form: _Form) -> list[Label]:
    """Three dots where parts were left out."""
    found = []
    for span, place in zip(form.across, form.columns, strict=True):
        if place is None:
            found.append(Label(span.start + span.length // 2, form.height // 2 + 4, "⋯", "middle"))
    for span, place in zip(form.down, form.rows, strict=True):
        if place is None:
            found.append(Label(form.width // 2, span.start + span.length // 2 + 4, "⋮", "middle"))
    return found


def _captions(array: ArrayInfo, cut: Picture, form: _Form, top: int) -> list[Label]:
    """What a reader must know of the dimensions that are no axis of the panels."""
    texts = []
    if cut.leading:
        of = ", ".join(dimension_label(array, d) for d in cut.leading)
        texts.append(f"one panel for each part of {of}")
    if cut.whole:
        of = ", ".join(dimension_label(array, d) for d in cut.whole)
        texts.append(f"not split: {of}")
    if _distorted(form, cut):
        texts.append("not to scale")
    return [
        Label(0, top - (LINE + 3) * (len(texts) - i), drawable(text, 110))
        for i, text in enumerate(texts)
    ]


def _distorted(form: _Form, cut: Picture) -> bool:
    if cut.column is None or 0 in form.array.shape:
        return False
    found = scales(form.columns, form.across)
    if cut.row is not None:
        found += scales(form.rows, form.down)
    return max(found) > 1.7 * min(found)
