"""Pure: how long to draw things, in pixels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxnb.arrays.draw_panels import Place

LINE = 13
"""Height of a line of text."""

GAP_LENGTH = 20
"""What stands for the parts that were left out."""

_CHAR = 6.6  # of 11 px system-ui, on the wide side
_NOT_XML = re.compile(r"[^\t\n\r\x20-\uD7FF\uE000-\uFFFD\U00010000-\U0010FFFF]")


@dataclass(frozen=True, slots=True)
class Label:
    """A piece of text. Its baseline starts, is centred or ends at a point, by ``anchor``."""

    x: int
    y: int
    text: str
    anchor: str = "start"
    turned: bool = False


@dataclass(frozen=True, slots=True)
class Span:
    """Where an interval of a dimension is drawn."""

    start: int
    length: int

    @property
    def end(self) -> int:
        """Where it ends."""
        return self.start + self.length


def text_width(text: str) -> int:
    """About how wide a label is."""
    return round(len(text) * _CHAR)


def drawable(text: str, most: int = 60) -> str:
    """Returns text as XML allows it, its end replaced by ``…`` if it is too long."""
    flat = _NOT_XML.sub("\ufffd", " ".join(text.split()))
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def lengths(sizes: Sequence[int], total: int, floor: int) -> list[int]:
    """Divides a length in proportion to sizes, but gives none less than ``floor``.

    The sum is ``total``, or more where the floors need more.
    """
    free = set(range(len(sizes)))
    while True:
        rest = total - floor * (len(sizes) - len(free))
        size = sum(sizes[i] for i in free)
        small = {i for i in free if sizes[i] * rest < floor * size or size == 0}
        if not small:
            break
        free -= small
    return [round(sizes[i] * rest / size) if i in free else floor for i in range(len(sizes))]


def spans(side: Sequence[Place], total: int, floor: int, gap: int) -> list[Span]:
    """Lays the intervals of a dimension out, one after the other with a gap between."""
    known = lengths([i[1] - i[0] for i in side if i is not None], total, floor)
    left = iter(known)
    found: list[Span] = []
    start = 0
    for interval in side:
        length = GAP_LENGTH if interval is None else next(left)
        found.append(Span(start, length))
        start += length + gap
    return found


def scales(side: Sequence[Place], drawn: Iterable[Span]) -> list[float]:
    """Returns how many pixels an element takes, for each interval that has elements."""
    pairs = zip(side, drawn, strict=True)
    return [span.length / (i[1] - i[0]) for i, span in pairs if i is not None and i[1] > i[0]]


def ticks(side: Sequence[Place], drawn: Sequence[Span], gap: int) -> list[tuple[int, int]]:
    """Returns where to write which boundary: pairs of a position and an index."""
    found: dict[int, int] = {}
    for interval, span in zip(side, drawn, strict=True):
        if interval is None:
            continue
        after = gap // 2 if span is not drawn[-1] else 0
        found.setdefault(span.start - gap // 2 - gap % 2 if span.start else 0, interval[0])
        found[span.end + after] = interval[1]
    # Neighbours that do not touch, as of overlapping parts, both keep their ends.
    return sorted(found.items())


def apart(marks: Sequence[tuple[int, int]], room: Iterable[int]) -> list[tuple[int, int]]:
    """Leaves out marks that would be written over another; the first and last stay.

    Args:
        marks: Pairs of a position and an index.
        room: How much room each takes.
    """
    taken = list(room)
    kept: list[int] = []
    for i in range(len(marks)):
        if not kept or marks[i][0] - marks[kept[-1]][0] >= (taken[i] + taken[kept[-1]]) // 2 + 4:
            kept.append(i)
    last = len(marks) - 1
    if kept and kept[-1] != last:
        # The size of the dimension says more than the boundary before it.
        if len(kept) > 1:
            kept.pop()
        kept.append(last)
    return [marks[i] for i in kept]
