"""What merged lines of output say, however they were merged.

Equal lines of several processes are shown as one, ``[0-3] done``, if they come together. On a busy
machine one may come late and stand by itself: ``[0,2-3] done`` and then ``[1] done``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable


def processes_in(label: str) -> list[int]:
    """Returns the processes that a label names: ``"0,2-3"``."""
    parts = [part.partition("-") for part in label.split(",")]
    return [i for first, _, last in parts for i in range(int(first), int(last or first) + 1)]


def who_wrote(lines: Iterable[str], text: str, *, only_begins: bool = False) -> list[int]:
    """Returns which processes wrote a line, or one that begins so; as often as they did."""
    found: list[int] = []
    for line in lines:
        match = re.match(r"\[([\d,-]+)\] (.*)", line)
        if match and (match[2] == text or (only_begins and match[2].startswith(text))):
            found += processes_in(match[1])
    return sorted(found)
