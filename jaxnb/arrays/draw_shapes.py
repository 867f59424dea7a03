"""Drawings: what the SVG template draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from jaxnb.arrays.draw_colors import process_color
from jaxnb.arrays.draw_geometry import LINE, Label, text_width

_MAX_BANDS = 12


@dataclass(frozen=True, slots=True)
class Band:
    """A stripe of a block, in the colour of a process."""

    x: int
    width: int
    color: str


@dataclass(frozen=True, slots=True)
class Shape:
    """One block of a drawing.

    Attributes:
        x: Its left edge.
        y: Its upper edge.
        width: Its width.
        height: Its height.
        title: What its tooltip says.
        bands: Its colours, one beside the other; none for an empty block.
        lines: The text in it.
        layers: Offsets of the outlines behind it, the farthest first.
    """

    x: int
    y: int
    width: int
    height: int
    title: str
    bands: tuple[Band, ...]
    lines: tuple[Label, ...]
    layers: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Drawing:
    """A whole picture; ``summary`` is for those who cannot see it."""

    width: int
    height: int
    summary: str
    shapes: tuple[Shape, ...]
    labels: tuple[Label, ...]


def bands(x: int, width: int, processes: Sequence[int]) -> tuple[Band, ...]:
    """Returns stripes of equal width, one for each process, of at most a dozen."""
    shown = processes[:_MAX_BANDS]
    edges = [x + round(width * i / len(shown)) for i in range(len(shown) + 1)]
    return tuple(
        Band(edge, edges[i + 1] - edge, process_color(shown[i]))
        for i, edge in enumerate(edges[:-1])
    )


def centred(x: int, y: int, width: int, height: int, lines: Sequence[str]) -> tuple[Label, ...]:
    """Returns lines of text in the middle of a block."""
    first = y + (height - LINE * (len(lines) - 1)) // 2 + 4
    return tuple(
        Label(x + width // 2, first + LINE * i, line, "middle") for i, line in enumerate(lines)
    )


def framed(
    shapes: Sequence[Shape], labels: Sequence[Label], summary: str, margin: int = 3
) -> Drawing:
    """Returns a drawing that is as large as its content; that may start at any point."""
    lefts = [shape.x for shape in shapes] + [label.x - _before(label) for label in labels]
    rights = [s.x + s.width + max(s.layers, default=0) for s in shapes]
    rights += [0 if label.turned else label.x + _after(label) for label in labels]
    tops = [shape.y for shape in shapes] + [_top(label) for label in labels]
    bottoms = [s.y + s.height + max(s.layers, default=0) for s in shapes]
    bottoms += [_bottom(label) for label in labels]
    dx, dy = margin - min(lefts), margin - min(tops)
    return Drawing(
        max(rights) + dx + margin,
        max(bottoms) + dy + margin,
        summary,
        tuple(moved(shape, dx, dy) for shape in shapes),
        tuple(replace(label, x=label.x + dx, y=label.y + dy) for label in labels),
    )


def moved(shape: Shape, dx: int, dy: int) -> Shape:
    """Returns the shape at another place."""
    return replace(
        shape,
        x=shape.x + dx,
        y=shape.y + dy,
        bands=tuple(replace(band, x=band.x + dx) for band in shape.bands),
        lines=tuple(replace(line, x=line.x + dx, y=line.y + dy) for line in shape.lines),
    )


_SHARE = {"start": 0.0, "middle": 0.5, "end": 1.0}


def _before(label: Label) -> int:
    return LINE - 3 if label.turned else round(text_width(label.text) * _SHARE[label.anchor])


def _after(label: Label) -> int:
    return round(text_width(label.text) * (1 - _SHARE[label.anchor]))


def _top(label: Label) -> int:
    if label.turned:  # it reads upwards
        return label.y - _after(label)
    return label.y - LINE + 3


def _bottom(label: Label) -> int:
    return label.y + (_before_turned(label) if label.turned else 3)


def _before_turned(label: Label) -> int:
    return round(text_width(label.text) * _SHARE[label.anchor])
