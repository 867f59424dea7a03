"""HTML that escapes whatever is put into it; the only module where markup is made."""

from __future__ import annotations

import base64
import html
import re
import zlib
from collections.abc import Iterable, Mapping
from colorsys import hls_to_rgb, rgb_to_hls
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

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
    known: dict[str, str] = {}  # what is declared, by property
    start = 0
    for match in _ESCAPE.finditer(text):
        _append(runs, known, text[start : match.start()])
        start = match.end()
        if match.group(1) is not None:
            _declare(known, match.group(1))
    _append(runs, known, text[start:])
    return runs


def strip_ansi(text: str) -> str:
    """Returns text without its escape sequences."""
    return _ESCAPE.sub("", text)


def _append(runs: list[Run], known: Mapping[str, str], text: str) -> None:
    style = ";".join(sorted(known.values()))
    if text and runs and runs[-1].style == style:
        runs[-1] = Run(runs[-1].text + text, style)
    elif text:
        runs.append(Run(text, style))


def _declare(known: dict[str, str], codes: str) -> None:
    numbers = [int(code or 0) for code in re.split("[;:]", codes)]
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


_CODE = re.compile("(?<!`)`([^`\n]+)`(?!`)")
_VOID = frozenset({"br", "img"})
_SPECIAL = re.compile("[&<>\"']")


class Html(str):
    """HTML: what :func:`tag` has made, or what the user's own object says of itself."""

    __slots__ = ()


def tag(name: str, *children: str, **attributes: str | None) -> Html:
    """Returns an element; every text in it is escaped.

    Args:
        name: Its name.
        *children: What is in it. Only what is :class:`Html` already is taken as it is.
        **attributes: Its attributes, those that are None left out.
    """
    said = ""
    for key, value in attributes.items():
        if value is not None:
            said += _style(value) if key == "style" else _attribute(key, value)
    end = "" if name in _VOID else f"{together(*children)}</{name}>"
    return Html(f"<{name}{said}>{end}")


def together(*children: str) -> Html:
    """Returns texts and elements one after the other; the texts are escaped."""
    return Html("".join([c if type(c) is Html else _escape(c, False) for c in children]))


def _escape(text: str, quote: bool) -> str:
    # Most texts have nothing to escape, and panels are made several times a second.
    return html.escape(text, quote) if _SPECIAL.search(text) else text


def _attribute(name: str, value: str) -> str:
    return f' {name.rstrip("_")}="{_escape(value, True)}"' if value else f" {name}"


@lru_cache(512)
def _style(value: str) -> str:
    return _attribute("style", value)


def coded(sentence: str) -> Html:
    """Returns a sentence with what stands between backticks as code."""
    parts = _CODE.split(sentence)
    return together(*(tag("code", part) if i % 2 else part for i, part in enumerate(parts)))


def trusted(html: str) -> Html:
    """Marks HTML that the user's own object made of itself: it is passed through.

    Only for what IPython would hand to the front end in the same way (``_repr_html_``, SVG).
    """
    return Html(html)


_IMAGES = ("image/png", "image/jpeg")
_MADE_UP = re.compile(
    r"0x[0-9a-f]{6,}|[0-9a-f]{8}-?(?:[0-9a-f]{4}-?){3}[0-9a-f]{12}|\bDevice: [A-Z]+ \d+\b",
    re.IGNORECASE,
)
"""Addresses of objects, the ids that displays give their elements, and each process's device as
treescope tells of it."""

_PACKED = re.compile(r"\be[JN][\w+/]{60,}={0,2}")
"""Compressed HTML, as treescope has it, which may hold addresses."""

_EMBEDDED = ("text/html", "image/svg+xml", *_IMAGES, "text/plain")


@dataclass(frozen=True, slots=True)
class View:
    """One MIME bundle, the part of it that a card shows.

    Attributes:
        kind: ``"html"``: markup of the user's own object, passed through as IPython would;
            ``"image"``: base64 data; ``"text"``: escaped.
        content: The markup, the data or the text.
        mime_type: MIME type of an image.
        text: The bundle's plain text.
        width: Of an image in CSS pixels, or None.
    """

    kind: Literal["html", "image", "text"]
    content: str
    mime_type: str
    text: str
    width: int | None = None


@dataclass(frozen=True, slots=True)
class Said:
    """A view with the processes it is from."""

    processes: tuple[int, ...]
    view: View


def view_of(bundle: Mapping[str, Any], metadata: Mapping[str, Any] | None = None) -> View:
    """Returns the richest representation in the bundle that a card can hold."""
    text = strip_ansi(_joined(bundle.get("text/plain", "")))
    for mime_type in ("text/html", "image/svg+xml"):
        if mime_type in bundle:
            return View("html", trusted(_joined(bundle[mime_type])), mime_type, text)
    for mime_type in _IMAGES:
        if mime_type in bundle:
            details = (metadata or {}).get(mime_type) or {}
            width = details.get("width") if isinstance(details, Mapping) else None
            width = width if isinstance(width, int) else None
            data = "".join(_joined(bundle[mime_type]).split())
            return View("image", data, mime_type, text, width)
    if not text and bundle:
        text = f"({', '.join(sorted(bundle))})"
    return View("text", text, "text/plain", text)


def is_rich(bundle: Mapping[str, Any]) -> bool:
    """Whether a card can show more of the bundle than its text."""
    return any(mime_type in bundle for mime_type in _EMBEDDED[:-1])


def needs_front_end(bundle: Mapping[str, Any]) -> bool:
    """Whether only the front end itself can show it as it is meant (LaTeX, widgets, …)."""
    return not is_rich(bundle) and any(mime_type not in _EMBEDDED for mime_type in bundle)


def shown_alike(bundle: Mapping[str, Any]) -> str:
    """Returns what is equal for bundles that differ in addresses and made-up ids alone."""
    text = "".join(f"{kind}: {_joined(bundle[kind])}\n" for kind in sorted(bundle))
    return _MADE_UP.sub("…", _PACKED.sub(_unpacked, text))


def _unpacked(found: re.Match[str]) -> str:
    with suppress(ValueError, zlib.error):
        return zlib.decompress(base64.b64decode(found[0])).decode("utf-8", "replace")
    return found[0]


def grouped(bundles: Iterable[tuple[int, Mapping[str, Any], bytes]]) -> list[Said]:
    """Groups processes with equal values, in order of their first process.

    Args:
        bundles: Process index, MIME bundle and digest; values are equal if their digests
            are, or what their bundles show where there is none.
    """
    groups: dict[object, tuple[list[int], Mapping[str, Any]]] = {}
    for process, bundle, digest in bundles:
        key: object = digest or shown_alike(bundle)
        groups.setdefault(key, ([], bundle))[0].append(process)
    return [Said(tuple(who), view_of(bundle)) for who, bundle in groups.values()]


def _joined(data: Any) -> str:
    # The notebook format allows a list of lines wherever it allows a string.
    return "".join(map(str, data)) if isinstance(data, list | tuple) else str(data)
