"""Pure: how much of what a cell prints is kept, and what is said of the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from jaxnb.labels import plural, processes_label

if TYPE_CHECKING:
    from jaxnb.wire.messages import Dropped


TOTAL_LINES = 500_000
"""How many lines of one cell all processes together send, of each of the two streams."""

TOTAL_CHARS = 64 << 20
"""How many characters of one cell all processes together send, of each of the two streams."""

LEAST_LINES, LEAST_CHARS = 25_000, 1 << 20
"""What each process sends in any case, however many there are."""

MORE_LINES_PER_MINUTE, MORE_CHARS_PER_MINUTE = 600, 64 << 10
"""What a process may send beyond its share for each full minute that the cell runs: a progress
bar that moves for days is no flood."""

TAIL_CHARS = 32 << 10
"""How much of the end is kept of what is not sent."""


class Allowance:
    """What one process may still send of one stream of one cell, and what it did not send.

    Pure: texts in, texts out; time is passed in.

    Args:
        lines: How many lines it may send.
        chars: How many characters.
        now: The time of the first.
    """

    def __init__(self, lines: float, chars: float, now: float) -> None:
        self._lines = float(lines)
        self._chars = float(chars)
        self._refilled = now
        self._tail = ""
        self._missing_lines = 0
        self._missing_chars = 0
        self._sent = ""
        self.full = False
        self.dropped_lines = 0
        self.dropped_chars = 0

    def take(self, text: str, now: Callable[[], float] = time.monotonic) -> str:
        """Takes what is written, and returns what of it is to be sent now."""
        if self.full:
            self._keep_end(text)
            return ""
        lines, chars = text.count("\n"), len(text)
        if lines > self._lines or chars > self._chars:
            self._refill(now())
        if lines > self._lines or chars > self._chars:
            return self._fill_up(text)
        self._lines -= lines
        self._chars -= chars
        self._sent = text
        return text

    def _refill(self, now: float) -> None:
        minutes = (now - self._refilled) // 60
        self._refilled += minutes * 60
        self._lines += minutes * MORE_LINES_PER_MINUTE
        self._chars += minutes * MORE_CHARS_PER_MINUTE

    def _fill_up(self, text: str) -> str:
        self.full = True
        end = min(int(self._chars), _after_lines(text, int(self._lines)))
        self._keep_end(text[end:])
        self._sent = text[:end] or self._sent
        return text[:end]

    def _keep_end(self, text: str) -> None:
        self._missing_lines += text.count("\n")
        self._missing_chars += len(text)
        self._tail = (self._tail + text[-TAIL_CHARS:])[-TAIL_CHARS:]

    def end(self) -> str:
        """Returns the end of what was not sent, after a line that says what still is not.

        What comes later counts anew.
        """
        tail, self._tail = self._tail, ""
        chars = self._missing_chars - len(tail)
        if chars:
            # The first line of the end begins somewhere in its middle.
            begin = tail.find("\n") + 1
            tail, chars = tail[begin:], chars + begin
        lines = self._missing_lines - tail.count("\n")
        self._missing_lines = self._missing_chars = 0
        if not chars:
            return tail
        self.dropped_lines += lines
        self.dropped_chars += chars
        first = "" if self._sent.endswith("\n") else "\n"
        self._sent = "\n"
        return f"{first}… {plural(lines, 'line')} ({plural(chars, 'character')}) not kept\n{tail}"

    @property
    def is_pending(self) -> bool:
        """Whether something was written that :meth:`end` has not dealt with."""
        return self._missing_chars > 0


def share_of(num_processes: int) -> tuple[int, int]:
    """Returns how many lines and characters of a cell's stream each process sends."""
    return (
        max(LEAST_LINES, TOTAL_LINES // num_processes),
        max(LEAST_CHARS, TOTAL_CHARS // num_processes),
    )


def _after_lines(text: str, lines: int) -> int:
    """Returns where the first ``lines`` lines of a text end; its length if it has fewer."""
    end = 0
    for _ in range(lines):
        end = text.find("\n", end) + 1
        if not end:
            return len(text)
    return end


def flood_text(event: Dropped) -> str:
    """Returns the sentence on a process that has begun to write more than a cell keeps."""
    return (
        f"process {event.process_index} has written more to {_stream_text(event)}. What follows "
        "is counted, and only its end is kept."
    )


def dropped_texts(events: Collection[Dropped]) -> list[str]:
    """Returns the sentences on what processes wrote and no result holds."""
    texts = []
    for name in ("stdout", "stderr"):
        found = [event for event in events if event.name == name and event.characters]
        if found:
            lines, chars = (sum(e.lines for e in found), sum(e.characters for e in found))
            texts.append(
                f"{processes_label(e.process_index for e in found)} wrote {plural(lines, 'line')} "
                f"({plural(chars, 'character')}) more to {_stream_text(found[0])}. They are in no "
                "result; what is written to a file is not limited."
            )
    return texts


def _stream_text(event: Dropped) -> str:
    stream = {"stdout": "standard output", "stderr": "standard error"}[event.name]
    most = f"{plural(event.most_lines, 'line')} or {plural(event.most_characters, 'character')}"
    return f"{stream} than a cell keeps ({most} of each process)"
