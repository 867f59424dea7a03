"""Runs a notebook's cells by nbclient, and writes the text of their outputs as it comes."""

from __future__ import annotations

import re
import signal
import sys
from collections import Counter
from typing import Any, TextIO

from nbclient import NotebookClient

from jaxnb.cli import terminal
from jaxnb.display.markup import strip_ansi

_LABEL = re.compile(r"\[[\d,-]+\] ")


class LiveClient(NotebookClient):
    """Writes streams and displays to this process's standard output and error.

    A display that is updated in place (a progress bar, a panel) is written as it was at first and
    as it is at the end of its cell. Where a cell has cleared its output, a line that it has written
    before is not written again, whoever it is of: jaxnb merges lines so when a cell has ended.
    """

    _written: Counter[str]
    """How often the cell has written a line since it last cleared its output."""
    _cleared: Counter[str]
    """How often before that."""
    _shown: dict[str, str]
    _last: dict[str, str]
    _open: TextIO | None
    """The stream in whose last line there is something."""

    def begin_cell(self, **_: Any) -> None:
        """Forgets what the last cell has written."""
        self._written, self._cleared = Counter(), Counter()
        self._shown, self._last, self._open = {}, {}, None

    def end_cell(self, **_: Any) -> None:
        """Writes displays that have changed since they were written."""
        for display_id, text in self._last.items():
            if text != self._shown.get(display_id):
                self._write(sys.stdout, f"{text}\n" if text else "")
        self._end_line()

    def process_message(self, msg: dict[str, Any], cell: Any, cell_index: int) -> Any:
        """Takes a message of the kernel."""
        output = super().process_message(msg, cell, cell_index)
        content, kind = msg["content"], msg["msg_type"]
        display_id = (content.get("transient") or {}).get("display_id")
        text = content.get("text") or content.get("data", {}).get("text/plain", "")
        stream = sys.stderr if content.get("name") == "stderr" else sys.stdout
        if kind == "clear_output":
            self._written, self._cleared = Counter(), self._written
        elif kind == "update_display_data" and display_id in self._last:
            self._last[display_id] = text
        elif kind == "error" and self._goes_on(cell):  # else it is told as the run ends
            self._end_line()
            self._write(sys.stderr, "\n".join([*content["traceback"], ""]))
        elif output is not None and text:
            if display_id:
                self._shown[display_id] = self._last[display_id] = text
            if kind != "stream" or stream is not self._open:
                self._end_line()
            self._write(stream, text if kind == "stream" else f"{text}\n")
        return output

    def _goes_on(self, cell: Any) -> bool:
        tags = cell.get("metadata", {}).get("tags", ())
        return self.allow_errors or "raises-exception" in tags

    def _end_line(self) -> None:
        if self._open is not None:
            self._write(self._open, "\n")

    def _is_new(self, line: str) -> bool:
        said = _LABEL.sub("", line, 1)
        self._written[said] += 1
        self._cleared[said] -= 1
        return self._cleared[said] < 0

    def _write(self, stream: TextIO, text: str) -> None:
        text = "".join(filter(self._is_new, text.splitlines(keepends=True)))
        if not text:
            return
        self._open = None if text.endswith("\n") else stream
        try:
            stream.write(text if stream.isatty() else strip_ansi(text))
            stream.flush()
        except BrokenPipeError as error:
            raise terminal.Ended(signal.SIGPIPE) from error
