"""Where a script's output goes: this process's standard output and error."""

from __future__ import annotations

import io
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import groupby
from types import FrameType

from jaxnb.cells.merge_output import MergedLine, bars_as_one
from jaxnb.cells.sinks import NoSink, SaysWaits
from jaxnb.model.cells import RichOutput

TIMED_OUT = 124
"""The exit status after a time-out, as of ``timeout``."""

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Ended(BaseException):
    """A signal has ended this command.

    Attributes:
        status: Its exit status, as a shell gives it.
    """

    def __init__(self, number: int) -> None:
        self.status = 128 + number


def install() -> None:
    """Has each of the signals raise :class:`Ended` in the main thread, wherever that is."""
    for number in ENDING:
        signal.signal(number, _end)


def _end(number: int, _: FrameType | None) -> None:
    raise Ended(number)


@contextmanager
def installed() -> Iterator[None]:
    """Does that for the block."""
    before = {number: signal.getsignal(number) for number in ENDING}
    install()
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


LIVE_SECONDS = 0.1


def say(text: str) -> None:
    """Writes a sentence of jaxnb's own."""
    sys.stderr.write(f"jaxnb: {text}\n")


class Terminal(SaysWaits, NoSink):
    """Writes the lines as they come, all of them; one line is rewritten in place on a terminal.

    Args:
        on_broken: Called when nothing can be written any more.
    """

    interrupt_by = "Ctrl-C"
    shows_cards = False

    def __init__(self, on_broken: Callable[[OSError], None]) -> None:
        self._on_broken = on_broken
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="backslashreplace")
        self._is_terminal = sys.stderr.isatty()
        self._colours = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        self._width = 0
        self._shown_at = 0.0

    def lines(self, lines: list[MergedLine]) -> None:
        """Writes lines that are final."""
        self._clear_line()
        for name, run in groupby(lines, lambda line: line.name):
            stream = sys.stdout if name == "stdout" else sys.stderr
            self._write(stream, "".join(map(self._line, run)))

    def live(self, lines: list[MergedLine]) -> None:
        """Shows the first of the lines that are being rewritten, on a terminal."""
        now = time.monotonic()
        if not self._is_terminal or (lines and now - self._shown_at < LIVE_SECONDS):
            return
        self._shown_at = now
        self._clear_line()
        if lines:
            text, columns = bars_as_one(lines)[0].labelled(), shutil.get_terminal_size().columns - 1
            self._width = min(len(text), columns)
            self._write(sys.stderr, text[:columns])

    def display(self, process_index: int, output: RichOutput) -> None:
        """Writes the text of a rich output."""
        text = str(output.data.get("text/plain", ""))
        who = frozenset([process_index])
        self.lines([MergedLine("stdout", who, line) for line in text.splitlines()])

    def notice(self, text: str) -> None:
        """Writes a sentence of jaxnb's own to standard error."""
        self._clear_line()
        self._write(sys.stderr, f"jaxnb: {text}\n")

    def _line(self, line: MergedLine) -> str:
        if not self._colours or not line.processes:
            return f"{line.labelled()}\n"
        return f"\x1b[36m{line.label}\x1b[0m {line.text}\n"

    def _clear_line(self) -> None:
        if self._width:
            self._width = 0
            self._write(sys.stderr, "\r\x1b[K")

    def _write(self, stream: object, text: str) -> None:
        try:
            stream.write(text)  # type: ignore[attr-defined]
            stream.flush()  # type: ignore[attr-defined]
        except OSError as error:
            self._on_broken(error)
            raise
