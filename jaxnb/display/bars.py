"""Bars of several parts each, over one axis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, repeat
from math import floor, log10

from jaxnb.display.blocks import Key, Lanes, Length
from jaxnb.labels import format_bytes, one_line

# Okabe and Ito's palette: https://jfly.uni-koeln.de/color/. The last one is that of all further.
_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00")
_SYMBOLS = "█▓▒░▚#"

Ticks = list[tuple[float, str]]
"""Places on an axis, and what stands there."""


def keys_of(names: Iterable[str]) -> list[Key]:
    """Returns what parts of these names look like."""
    looks = chain(zip(_COLORS, _SYMBOLS, strict=True), repeat((_COLORS[-1], _SYMBOLS[-1])))
    return [Key(one_line(name, 40), *look) for name, look in zip(names, looks, strict=False)]


def stacked_bars(
    labels: Sequence[str],
    keys: Sequence[Key],
    parts: Sequence[Sequence[float]],
    ticks: Callable[[float], Ticks],
    show: Callable[[float], str],
) -> Lanes:
    """Returns bars whose parts stand one behind the other, the longest as long as the axis.

    Args:
        labels: The name of each bar.
        keys: What each part looks like.
        parts: For each part how long it is in each bar.
        ticks: Returns what stands on an axis of a length.
        show: Returns a length as text.
    """
    most = max(map(sum, zip(*parts, strict=True)), default=0) or 1
    strips = []
    for sizes in zip(*parts, strict=True):
        strip, start = [], 0.0
        for size, key in zip(sizes, keys, strict=True):
            if size:
                length = 100 * size / most
                strip.append(Length(start, length, key.color, f"{key.name}: {show(size)}"))
                start += length
        strips.append(strip)
    return Lanes(
        labels,
        strips,
        [(100 * x / most, text) for x, text in ticks(most)],
        keys if len(keys) > 1 else [],
    )


def byte_ticks(most: float) -> Ticks:
    """Returns places on an axis of so many bytes: powers of two, as their units are."""
    step = 1 << max(0, int(most) - 1).bit_length() >> 2 or 1
    places = range(0, int(most) - step // 4, step)
    return [(x, format_bytes(x) if x else "0") for x in places]


def time_ticks(seconds: float) -> Ticks:
    """Returns places on an axis of so many seconds, at most six of them."""
    rough = seconds / 5
    power = 10.0 ** floor(log10(rough))
    step = next(power * each for each in (1, 2, 5, 10) if power * each >= rough)
    unit, name = (1.0, "s") if seconds >= 1 else (1e-3, "ms") if seconds >= 1e-3 else (1e-6, "µs")
    digits = max(0, -floor(log10(step / unit) + 1e-9))
    count = floor(seconds / step + 1e-9)
    return [
        (i * step, f"{i * step / unit:.{digits}f} {name}" if i else "0") for i in range(count + 1)
    ]
