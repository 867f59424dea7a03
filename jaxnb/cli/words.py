"""What jaxnb says of a cell, in words for a script: sentences are made for notebooks."""

from __future__ import annotations

import re
from collections.abc import Callable

_MAGICS = re.compile(r" ?[^.;]*`%spmd_\w+[^`]*`[^.]*\.")

_TO_INTERRUPT = re.compile(
    r" to interrupt what \w+ do(?:es)? now; if that does not end the script either, (\w+ \w+) "
    "ended by force"
)
"""A second Ctrl-C ends a script at once."""


def worded_for(name: str) -> Callable[[str], str]:
    """Returns what puts a sentence about a cell into words for a script.

    Args:
        name: The script's name.
    """

    def worded(text: str) -> str:
        text = text.replace(" (cell output is shown with the cells)", "")
        text = re.sub(r" \(cell \[\d+\]\)", f" ({name})", text)
        text = re.sub(r"\b[Cc]ell \[\d+\]", name, text)
        text = re.sub(r"\b([Tt])he cell('s)?\b", r"\1he script\2", text)
        text = re.sub(r"\bthis cell\b", "this script", text)
        text = re.sub(
            r"[,:](?: and)? (?:new processes take over|variables are kept)[^.]*", "", text
        )
        text = _TO_INTERRUPT.sub(r" to end the script: \1 ended by force", text)
        return _MAGICS.sub("", text)

    return worded
