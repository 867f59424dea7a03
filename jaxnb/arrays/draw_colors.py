"""Pure: a colour for each process, that people with any colour vision can tell apart."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence

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
