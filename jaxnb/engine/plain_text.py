"""Text that can be sent: JSON in UTF-8 has no place for half a surrogate pair."""

from __future__ import annotations

from typing import Any


def printable(thing: Any) -> Any:
    """Returns a text, or what is made of texts, with lone surrogates escaped, as Python does.

    What stands for a byte that could not be decoded (``surrogateescape``) is sent as it is, unless
    there are others beside it.
    """
    match thing:
        case str():
            return _encodable(thing)
        case dict():
            return {printable(key): printable(value) for key, value in thing.items()}
        case list() | tuple():
            return [printable(each) for each in thing]
    return thing


def _encodable(text: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace").decode()
    return text
