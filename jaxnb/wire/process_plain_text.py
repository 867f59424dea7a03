"""Text that can be sent: JSON in UTF-8 has no place for half a surrogate pair."""

from __future__ import annotations

from typing import Any

DROPPED_MESSAGE = "jaxnb_dropped"
"""The type of the messages that tell the notebook what was not sent."""

QUESTION_TYPE = "application/vnd.jaxnb.question+json"
"""The MIME type of what a process asks the user: it comes after all that was written before."""

OUTPUT_TYPES = frozenset(
    ("stream", "display_data", "update_display_data", "clear_output", DROPPED_MESSAGE)
)
"""The kinds of messages that have a cell's output."""


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


def install(kernel: Any) -> None:
    """Has all output that the kernel of this process sends be text that can be sent."""
    send = kernel.session.send

    def send_printable(
        stream: Any, message: Any, content: Any = None, *args: Any, **named: Any
    ) -> Any:
        if not isinstance(message, dict):
            content = printable(content) if message in OUTPUT_TYPES else content
        elif message["msg_type"] in OUTPUT_TYPES:
            message["content"] = printable(message["content"])
        return send(stream, message, content, *args, **named)

    kernel.session.send = send_printable
