"""Keeps what a value, or a display, looks like to what a notebook can hold."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from jaxnb.labels import format_count, plural
from jaxnb.wire.messages import printable

MAX_TEXT_CHARS = 200_000
"""Longer plain text is cut. IPython makes the whole of it first, whatever is kept."""

MAX_DATA_CHARS = 32 << 20
"""What is larger in another format (HTML, a picture) is left out: half of it would be of no use."""

_WIDGET = "application/vnd.jupyter.widget-view+json"
_NO_WIDGETS = (
    "Widgets work in the notebook only: no page is connected to the processes. Make it in a cell "
    "without `%%spmd`, and push what it is set to: `%spmd_push NAME`."
)

_NOTE_CHARS = 200


def bounded(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a MIME bundle, as text that can be sent, without what is too large.

    Bytes, as PIL's images have them, become base64, as notebooks hold them. Its plain text says
    what was left out, and that a widget is.
    """
    kept: dict[str, Any] = {}
    notes = []
    for kind, given in printable(dict(bundle)).items():
        if kind == _WIDGET:
            notes.append(_NO_WIDGETS)
            continue
        data = base64.b64encode(given).decode("ascii") if isinstance(given, bytes) else given
        if kind == "text/plain":
            kept[kind] = shortened(data) if isinstance(data, str) else data
        elif (size := _size(data)) <= MAX_DATA_CHARS:
            kept[kind] = data
        else:
            notes.append(f"… its {kind} is not shown: {plural(size, 'character')}")
    if notes:
        kept["text/plain"] = "\n".join([*filter(None, [kept.get("text/plain")]), *notes])
    return kept


def shortened(text: str, most: int = MAX_TEXT_CHARS) -> str:
    """Returns a text of at most ``most`` characters, with a note if its end is missing."""
    if len(text) <= most:
        return text
    kept = text[: most - _NOTE_CHARS]
    missing = format_count(len(text) - len(kept))
    return f"{kept}… {missing} of {plural(len(text), 'character')} not shown"


def install(shell: Any) -> None:
    """Bounds what this shell formats, and what is displayed in its cells in any other way."""
    format_value, publish = shell.display_formatter.format, shell.display_pub.publish

    def format_bounded(*args: Any, **settings: Any) -> Any:
        data, metadata = format_value(*args, **settings)
        return bounded(data), metadata

    def publish_bounded(data: Mapping[str, Any], *args: Any, **settings: Any) -> Any:
        return publish(bounded(data), *args, **settings)

    shell.display_formatter.format = format_bounded
    shell.display_pub.publish = publish_bounded


def _size(data: Any) -> int:
    if isinstance(data, str | bytes):
        return len(data)
    if isinstance(data, Mapping):
        return sum(_size(key) + _size(value) for key, value in data.items())
    if isinstance(data, list | tuple):
        return sum(map(_size, data))
    return 1
