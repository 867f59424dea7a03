"""Text with ANSI colours to runs, each in one style."""

from __future__ import annotations

import re
from colorsys import hls_to_rgb, rgb_to_hls
from dataclasses import dataclass, replace

_ESCAPE = re.compile(
    r"\x1b\[([0-9;:]*)m|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)|\x1b"
)
# Mid-tones, readable on white and on black. Black and white follow the page.
_BASIC = ("", "#d03a3a", "#2b9348", "#b07d00", "#3b7ddd", "#b04fc4", "#1f9aa8", "")
_CUBE = (0, 95, 135, 175, 215, 255)


@dataclass(frozen=True, slots=True)
class Run:
    """A piece of text in one style.

    Attributes:
        text: The text.
        style: CSS made here, never text from a process; empty for the page's own.
    """

    text: str
    style: str = ""


_STYLES = {
    1: "font-weight:bold",
    2: "opacity:.65",
    3: "font-style:italic",
    4: "text-decoration:underline",
}
_ENDS = {22: (1, 2), 23: (3,), 24: (4,)}


def ansi_runs(text: str) -> list[Run]:
    """Splits text at its colour sequences (SGR); other escape sequences are dropped."""
    runs: list[Run] = []
    style = Run("")
    start = 0
    for match in _ESCAPE.finditer(text):
        _append(runs, style, text[start : match.start()])
        start = match.end()
        if match.group(1) is not None:
            style = _styled(style, match.group(1))
    _append(runs, style, text[start:])
    return runs


def strip_ansi(text: str) -> str:
    """Returns text without its escape sequences."""
    return _ESCAPE.sub("", text)


def _append(runs: list[Run], style: Run, text: str) -> None:
    if not text:
        return
    if runs and replace(runs[-1], text="") == style:
        runs[-1] = replace(runs[-1], text=runs[-1].text + text)
    else:
        runs.append(replace(style, text=text))


def _styled(style: Run, codes: str) -> Run:
    numbers = [int(code or 0) for code in re.split("[;:]", codes)]
    known = {each.split(":")[0]: each for each in style.style.split(";") if each}
    while numbers:
        code = numbers.pop(0)
        if code in _STYLES:
            _put(known, _STYLES[code])
        elif code in (38, 48):
            color = _extended(numbers)
            # Backgrounds are dropped: with a foreground fit for both themes they clash.
            if code == 38:
                _put(known, f"color:{color}")
        elif 30 <= code <= 37 or 90 <= code <= 97:
            _put(known, f"color:{_BASIC[code % 10]}")
        elif code == 0:
            known.clear()
        elif code == 39:
            known.pop("color", None)
        for ended in _ENDS.get(code, ()):
            known.pop(_STYLES[ended].split(":")[0], None)
    return Run("", ";".join(sorted(known.values())))


def _put(known: dict[str, str], declaration: str) -> None:
    name, _, value = declaration.partition(":")
    if value:
        known[name] = declaration
    else:
        known.pop(name, None)


def _extended(numbers: list[int]) -> str:
    """Takes the arguments of SGR 38 or 48 off ``numbers`` and returns their colour."""
    kind = numbers.pop(0) if numbers else 0
    if kind == 2 and len(numbers) >= 3:
        red, green, blue = (min(n, 255) for n in numbers[:3])
        del numbers[:3]
        return _readable(red, green, blue)
    if kind != 5 or not numbers:
        return ""
    index = numbers.pop(0)
    if index < 16:
        return _BASIC[index % 8]
    if index < 232:
        index -= 16
        return _readable(_CUBE[index // 36], _CUBE[index // 6 % 6], _CUBE[index % 6])
    grey = 8 + 10 * (min(index, 255) - 232)
    return _readable(grey, grey, grey)


def _readable(red: int, green: int, blue: int) -> str:
    """A colour of the same hue with enough contrast on white and on black."""
    hue, lightness, saturation = rgb_to_hls(red / 255, green / 255, blue / 255)
    # At the same lightness yellow and green look lighter, blue and violet darker.
    floor, ceiling = 0.35, 0.55
    if saturation > 0.3 and 0.12 < hue < 0.5:
        ceiling = 0.38
    elif saturation > 0.3 and 0.58 < hue < 0.88:
        floor, ceiling = 0.62, 0.66
    rgb = hls_to_rgb(hue, min(max(lightness, floor), ceiling), saturation)
    return "#" + "".join(f"{round(255 * part):02x}" for part in rgb)
