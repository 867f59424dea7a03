"""Pure: the chunks of one text stream to its lines, as a terminal would leave them."""

from __future__ import annotations

import re
from collections.abc import Callable

_CONTROL = re.compile(r"(\r|\n|\x08|\x1b\[[0-?]*[ -/]*[@-~])")
_PART_OF_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*)?\Z")
_MAX_ESCAPE = 64
_MAX_ROWS = 256
_MAX_COLUMNS = 10_000


def _nothing() -> str | None:
    return None


class LineAssembler:
    r"""Lines of one stream of one process, whatever the chunks they arrive in.

    Understands what progress bars write: ``\r``, ``\b``, cursor up and down
    (``ESC [ A``, ``ESC [ B``) and erasing in the line (``ESC [ K``). Colours stay in the
    text; other control sequences are dropped.

    A line is complete at its newline, unless the stream has moved the cursor up before: then
    the lines that it can reach again (as many as it went up) are held until it is past them,
    which a line that was never rewritten tells.

    As in a terminal, what is rewritten is no wider than the screen: a line of more than
    10 000 characters stays as it is, and what would rewrite it begins another. To copy it for
    each character that a bar moves back would take hours.
    """

    def __init__(self) -> None:
        self._rows = [""]
        self._rewritten = [False]
        self._row = 0
        self._column = 0
        self._reach = 0
        self._escape = ""
        # Pieces of a line that grows chunk by chunk; joined late, as joining each time
        # would take quadratic time.
        self._pieces: list[str] = []
        self._done: list[str] = []

    def feed(self, text: str, take_back: Callable[[], str | None] = _nothing) -> list[str]:
        """Takes a chunk and returns the lines it completed, without their newlines.

        Args:
            text: The chunk.
            take_back: Called when the cursor moves up into a line already returned by an
                earlier call; returns that line if it has not been shown yet, else None.
        """
        if self._escape:
            text, self._escape = self._escape + text, ""
        if not ("\r" in text or "\x1b" in text or "\b" in text) and self._is_plain():
            return self._feed_plain(text)
        self._settle()
        if (part := _PART_OF_ESCAPE.search(text)) and len(text) - part.start() < _MAX_ESCAPE:
            self._escape = part.group()
            text = text[: part.start()]
        pieces = _CONTROL.split(text)
        for i, piece in enumerate(pieces):
            if not piece:
                continue
            if i % 2 == 0:
                self._write(piece)
            else:
                self._control(piece, take_back)
        done, self._done = self._done, []
        return done

    def finish(self) -> list[str]:
        """Ends the stream and returns what was still open; a bar that was cleared is not."""
        self._settle()
        rows = [self._finished_row(i) for i in range(len(self._rows))]
        kept = [row for row, again in zip(rows, self._rewritten, strict=True) if row or not again]
        if kept and not kept[-1]:
            kept.pop()
        self._reset()
        return kept

    def open_rows(self) -> list[str]:
        """Returns the lines still being written, from top to bottom, blank ones left out."""
        self._settle()
        return [row.rstrip() for row in self._rows if row.strip()]

    def _is_plain(self) -> bool:
        return len(self._rows) == 1 and self._column == len(self._rows[0])

    def _feed_plain(self, text: str) -> list[str]:
        lines = text.split("\n")
        if len(lines) == 1:
            self._pieces.append(text)
            return []
        self._settle()
        self._write(lines[0])
        lines[0] = self._finished_row(0)
        self._reset()
        if lines[-1]:
            self._pieces.append(lines[-1])
        lines.pop()
        return lines

    def _reset(self) -> None:
        self._rows, self._rewritten = [""], [False]
        self._row = self._column = self._reach = 0

    def _settle(self) -> None:
        if self._pieces:
            text = "".join(self._pieces)
            self._pieces.clear()
            self._write(text)

    def _finished_row(self, row: int) -> str:
        # Bars pad with blanks to cover what they were before.
        return self._rows[row].rstrip() if self._rewritten[row] else self._rows[row]

    def _write(self, text: str) -> None:
        if self._column != len(self._rows[self._row]):
            self._wrap()
        row, column = self._rows[self._row], self._column
        if column == len(row):
            row += text
        elif "\x1b" in row or "\x1b" in text:
            # Colours take no columns, so what is overwritten cannot be counted.
            row = row[:column] + text
        else:
            row = row.ljust(column)[:column] + text + row[column + len(text) :]
        self._rows[self._row] = row
        self._column = column + len(text)

    def _wrap(self) -> None:
        """Leaves a line that is too long to be rewritten, and begins one below it."""
        if len(self._rows[self._row]) > _MAX_COLUMNS:
            self._row += 1
            self._column = 0
            self._rows.insert(self._row, "")
            self._rewritten.insert(self._row, False)

    def _control(self, control: str, take_back: Callable[[], str | None]) -> None:
        if control == "\n":
            self._newline()
        elif control == "\r":
            self._column = 0
            self._rewritten[self._row] = True
        elif control == "\b":
            self._column = max(0, self._column - 1)
            self._rewritten[self._row] = True
        elif control[-1] == "m":
            self._write(control)
        elif control[-1] == "K":
            self._erase(control[2:-1])
        elif control[-1] in "AB":
            digits = control[2:-1]
            count = min(int(digits), _MAX_ROWS) if digits.isdecimal() else 1
            for _ in range(count or 1):
                if control[-1] == "A":
                    self._up(take_back)
                elif self._row + 1 < len(self._rows):
                    self._row += 1

    def _erase(self, mode: str) -> None:
        if mode in ("1", "2") or self._column != len(self._rows[self._row]):
            self._wrap()
        row = self._rows[self._row]
        if mode == "2":
            row = ""
        elif mode == "1":
            row = " " * min(self._column, len(row)) + row[self._column :]
        else:
            row = row[: self._column]
        self._rows[self._row] = row
        self._rewritten[self._row] = True

    def _newline(self) -> None:
        last = self._row + 1 == len(self._rows)
        if last and not self._rewritten[self._row]:
            self._done += [self._finished_row(i) for i in range(len(self._rows))]
            self._reset()
            return
        self._row += 1
        self._column = 0
        if last:
            self._rows.append("")
            self._rewritten.append(False)
        passed = self._row - self._reach
        if passed > 0:
            self._done += [self._finished_row(i) for i in range(passed)]
            del self._rows[:passed], self._rewritten[:passed]
            self._row -= passed

    def _up(self, take_back: Callable[[], str | None]) -> None:
        if self._row > 0:
            self._row -= 1
        elif len(self._rows) < _MAX_ROWS:
            row = self._done.pop() if self._done else take_back()
            self._rows.insert(0, row or "")
            self._rewritten.insert(0, True)
        self._rewritten[self._row] = True
        self._reach = max(self._reach, len(self._rows) - 1 - self._row)
