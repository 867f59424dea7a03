"""Pure: keeps a cell that prints without end from drowning its notebook."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import replace

from jaxnb.cells.merged_line import MergedLine
from jaxnb.labels import format_count, plural
from jaxnb.model.cells import StreamName

LINES_SHOWN = 1_000
"""So many lines of a cell are shown as they come, and so many of the last ones at its end."""


class LineLimiter:
    """Passes the first lines through, then keeps only the last ones for the end.

    What is not shown is counted, and said: when the first lines are used up, and at the end.
    """

    def __init__(
        self,
        head: int = LINES_SHOWN,
        tail: int = LINES_SHOWN,
        max_chars: int = 10_000,
        holder: str = "result",
    ) -> None:
        """Prepares to pass lines.

        Args:
            head: How many lines to pass; with none, nothing is said before the end.
            tail: How many of the last lines to keep for the end.
            max_chars: Longer lines are cut.
            holder: The name of the result that has all lines, for the notice.
        """
        self._holder = holder
        self._left = head
        self._announce = head > 0
        self._max_chars = max_chars
        self._tail: deque[MergedLine] = deque(maxlen=tail)
        self._dropped = Counter[StreamName]()

    @property
    def dropped(self) -> int:
        """How many lines are not shown so far."""
        return self._dropped.total()

    def feed(self, lines: Iterable[MergedLine]) -> list[MergedLine]:
        """Takes merged lines and returns those to show now."""
        shown: list[MergedLine] = []
        for line in lines:
            if self._left > 0:
                self._left -= 1
                shown.append(self.cut(line))
                continue
            if self._announce:
                self._announce = False
                shown.append(self._announcement(line.name))
            if len(self._tail) == self._tail.maxlen:
                self._dropped[self._tail[0].name if self._tail else line.name] += 1
            self._tail.append(line)
        return shown

    def _announcement(self, name: StreamName) -> MergedLine:
        kept = self._tail.maxlen
        what = f"; the last {format_count(kept)} are shown at the end" if kept else ", not shown"
        # Whether the result will hold all of them is known at the end only.
        text = f"… more lines follow{what}"
        return MergedLine(name, frozenset(), text)

    def kept(self) -> list[MergedLine]:
        """Returns the notice of what is not shown, if any, and the lines kept for the end."""
        shown = [self.cut(line) for line in self._tail]
        if self.dropped:
            where = " and ".join(
                f"`{self._holder}.{name}`" for name in sorted(self._dropped, reverse=True)
            )
            verb = "hold" if len(self._dropped) > 1 else "holds"
            notice = f"… {plural(self.dropped, 'line')} not shown, {where} {verb} them"
            name: StreamName = "stdout" if "stdout" in self._dropped else "stderr"
            shown.insert(0, MergedLine(name, frozenset(), notice))
        return shown

    def finish(self) -> list[MergedLine]:
        """Returns what :meth:`kept` does, and forgets it."""
        shown = self.kept()
        self._tail.clear()
        self._dropped.clear()
        return shown

    def cut(self, line: MergedLine) -> MergedLine:
        """Returns the line, its end replaced by a count of characters if it is too long."""
        excess = len(line.text) - self._max_chars
        if excess <= 0:
            return line
        # Reset colours: the sequence that would have done so may be in what is cut off.
        reset = "\x1b[0m" if "\x1b[" in line.text else ""
        kept = line.text[: self._max_chars]
        return replace(line, text=f"{kept}{reset}… {format_count(excess)} characters not shown")
