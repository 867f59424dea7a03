"""Where a running cell's output goes: a notebook, or a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

from IPython.display import DisplayHandle, display

from jaxnb.display import cards
from jaxnb.display.card import Card
from jaxnb.display.cards_live import live_card
from jaxnb.display.merge import LineLimiter, MergedLine

LIVE_SECONDS = 0.2
"""Shortest time between two showings of lines that are being rewritten."""


def is_notebook(shell: Any) -> bool:
    """Whether outputs can be updated in place: a kernel's front end can, a terminal cannot."""
    return hasattr(shell, "kernel")


class Sink:
    """Shows final lines as ordinary standard output and error, which every front end takes."""

    def __init__(self) -> None:
        self._limiter = LineLimiter(holder="spmd.last_result")

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self._write(self._limiter.finish())

    def lines(self, lines: list[MergedLine]) -> None:
        """Shows lines, up to a limit; what is not shown is counted and said at the end."""
        self._write(self._limiter.feed(lines))

    def live(self, lines: list[MergedLine]) -> None:
        """Shows lines that are being rewritten."""

    def notice(self, text: str) -> None:
        """Shows a sentence of jaxnb's own."""
        print(f"jaxnb: {text}", file=sys.stderr, flush=True)

    def _write(self, lines: list[MergedLine]) -> None:
        # One write for a run of lines of one stream: each is a message to the front end.
        start = 0
        for i in range(1, len(lines) + 1):
            if i == len(lines) or lines[i].name != lines[start].name:
                stream = sys.stdout if lines[start].name == "stdout" else sys.stderr
                stream.write("".join(line.labelled() + "\n" for line in lines[start:i]))
                stream.flush()
                start = i


class NotebookSink(Sink):
    """Shows lines that are being rewritten in a block of their own, updated in place."""

    def __init__(self) -> None:
        super().__init__()
        self._handle: DisplayHandle | None = None
        self._shown_at = 0.0

    def live(self, lines: list[MergedLine]) -> None:
        """Shows progress bars and unfinished lines, a few times a second at most."""
        now = time.monotonic()
        if lines and now - self._shown_at < LIVE_SECONDS:
            return
        self._shown_at = now
        if self._handle is None:
            if not lines:
                return
            self._handle = display(live_card(lines), display_id=True)
        else:
            self._handle.update(live_card(lines))

    def __exit__(self, *details: object) -> None:
        if self._handle is not None:
            self._handle.update(live_card([]))
        super().__exit__(*details)


class TerminalSink(Sink):
    """Shows the first line that is being rewritten, on the terminal's current line."""

    def __init__(self) -> None:
        super().__init__()
        self._width = 0

    def live(self, lines: list[MergedLine]) -> None:
        """Shows the first of the lines; a terminal's cell has one line to rewrite."""
        text = lines[0].labelled() if lines else ""
        sys.stderr.write("\r" + text.ljust(self._width) + ("" if lines else "\r"))
        sys.stderr.flush()
        self._width = len(text)

    def lines(self, lines: list[MergedLine]) -> None:
        """Clears the line that is being rewritten, and shows final lines above it."""
        if self._width and lines:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0
        super().lines(lines)


def sink_for(shell: Any) -> Sink:
    """Returns the sink for a shell's front end."""
    return NotebookSink() if is_notebook(shell) else TerminalSink()


class ProgressDisplay:
    """Shows the stages of a start in one place, which the final card then takes."""

    def __init__(self, shell: Any) -> None:
        self._updates = is_notebook(shell)
        self._handle: DisplayHandle | None = None
        self._started = time.perf_counter()

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._handle is not None:
            self._handle.update(Card("", ""))

    def __call__(self, stage: str, detail: str) -> None:
        """Shows a stage."""
        if not self._updates:
            print(f"jaxnb: {stage} {detail}", file=sys.stderr, flush=True)
            return
        seconds = time.perf_counter() - self._started
        self.show(cards.progress_card(stage, detail, seconds))

    def show(self, card: Card) -> None:
        """Shows a card in the place of the progress."""
        if self._handle is None or not self._updates:
            self._handle = display(card, display_id=True)
        else:
            self._handle.update(card)
