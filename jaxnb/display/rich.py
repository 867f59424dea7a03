"""MIME bundles of the user's own objects to what a card can hold."""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from jaxnb.display.markup import strip_ansi, trusted

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
