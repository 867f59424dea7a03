"""Keeps what a cell prints within bounds, where it is written.

A cell may print faster than anyone can read, and for longer than any memory lasts. Each process
sends the first of what a cell writes, up to its share (:mod:`jaxnb.cells.allowance`), and from
then on counts, and keeps the end: the last words of a cell are those that matter. When the cell
ends they are sent, after a line that says what is missing; the notebook is told the count
besides, and shows it. So the memory of the process and of the notebook
is bounded, and a cell that prints without end can be interrupted like any other.

Output to files, and what C code writes to file descriptors, is not counted here.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import inf
from typing import Any

from jaxnb.cells.allowance import Allowance, share_of
from jaxnb.compat.ipython_shell import forget_output
from jaxnb.wire.messages import DROPPED_MESSAGE

FLUSHES, FLUSHES_PER_SECOND = 50, 50.0
"""How many flushes are done at once, and how often after those. Each takes a round trip to
another thread, and a message through the controller to the notebook: a ``logging`` handler that
flushes each line would keep both busy with nothing else. What is not flushed goes with the next,
or after the 0.2 s of ipykernel's own timer."""

CELLS_KEPT = 64
"""Threads of so many earlier cells still have a share of their own."""


class LimitedStream:
    """Stands before one of ipykernel's output streams.

    It takes the place of the stream's ``write`` and ``flush``, so that whoever holds the stream
    (a ``logging`` handler) is limited too.

    Args:
        stream: An ``ipykernel.iostream.OutStream``.
        lines: The share of each cell, in lines.
        chars: The share, in characters.
    """

    def __init__(self, stream: Any, lines: float, chars: float) -> None:
        self._stream = stream
        self._lines = lines
        self._chars = chars
        self._write = stream.write
        self._flush = stream.flush
        self._pid = os.getpid()
        # Reentrant: the collection of garbage may run a __del__ that prints, anywhere.
        self._lock = threading.RLock()
        self._shares: OrderedDict[str, tuple[Mapping[str, Any], Allowance]] = OrderedDict()
        self._parent: Mapping[str, Any] | None = None
        self._share = Allowance(lines, chars, time.monotonic())
        self._in_cell = False
        self._flushes = float(FLUSHES)
        self._flushed = 0.0
        stream.write, stream.flush = self.write, self.flush
        os.register_at_fork(after_in_child=self._write_to_file_descriptor)

    def _write_to_file_descriptor(self) -> None:
        """Has a forked child write where C code does, which the launcher reads.

        It has no thread that would send messages; ipykernel drops what it prints.
        """
        number = 2 if self._stream.name == "stderr" else 1
        plain = open(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        self._stream.write, self._stream.flush = plain.write, plain.flush

    def write(self, text: Any) -> int:
        """Writes what the share of the cell allows, and counts the rest."""
        if not isinstance(text, str):
            return int(self._write(text))  # it says what is wrong with that
        parent = self._stream.parent_header
        share = self._share
        if share.full and parent is self._parent:  # without the lock: it costs as much as this
            if share.keep_end(text):
                with self._lock:
                    share.settle()
            return len(text)
        with self._lock:
            if parent is not self._parent:
                self._choose(parent)
            share, was_full = self._share, self._share.full
            sent = share.take(text)
        if sent:
            self._write(sent)
        if share.full and not was_full:
            self._tell(parent, share)
        return len(text)

    def _choose(self, parent: Mapping[str, Any]) -> None:
        """Makes the share of what ``parent`` asked for the current one."""
        name = str(parent.get("msg_id", ""))
        if name not in self._shares:
            self._shares[name] = (parent, Allowance(self._lines, self._chars, time.monotonic()))
            while len(self._shares) > CELLS_KEPT:
                self._shares.popitem(last=False)
        self._parent, self._share = parent, self._shares[name][1]

    def set_limits(self, lines: float, chars: float) -> None:
        """Changes the share of each cell, that of the present one too."""
        with self._lock:
            self._lines, self._chars = lines, chars
            self._shares.clear()
            self._parent = None
        self._in_cell = True

    def begin(self) -> None:
        """Notes that a cell begins."""
        self._in_cell = True

    def end(self) -> None:
        """Sends the end of what was not sent, of the cell that ends and of threads of others."""
        self._in_cell = False
        with self._lock:
            pending = [pair for pair in self._shares.values() if pair[1].is_pending]
        for parent, share in pending:
            token = self._stream.set_thread_parent(parent)
            try:
                with self._lock:
                    text = share.end()
                self._write(text)
                self._tell(parent, share)
            finally:
                self._stream.reset_thread_parent(token)

    def _tell(self, parent: Mapping[str, Any], share: Allowance) -> None:
        """Tells the notebook what is not sent so far; nothing yet when that begins."""
        content = {
            "name": self._stream.name,
            "lines": share.dropped_lines,
            "characters": share.dropped_chars,
            "most_lines": self._lines,
            "most_characters": self._chars,
        }
        session = self._stream.session
        message = session.msg(DROPPED_MESSAGE, content, parent=parent)
        session.send(self._stream.pub_thread, message, ident=self._stream.topic)

    def flush(self) -> None:
        """Flushes, unless a cell does so too often: then its text goes a moment later."""
        if self._in_cell and os.getpid() == self._pid:
            now = time.monotonic()
            self._flushes += (now - self._flushed) * FLUSHES_PER_SECOND
            self._flushes = min(self._flushes, FLUSHES)
            self._flushed = now
            if self._flushes < 1:
                return
            self._flushes -= 1
        self._flush()

    def flush_now(self) -> None:
        """Flushes, whatever the cell has flushed before: what is displayed next comes after."""
        self._flush()


_LIMITED: list[LimitedStream] = []


@contextmanager
def without_limits() -> Iterator[None]:
    """Sends all that is written in the block."""
    for stream in _LIMITED:
        stream.set_limits(inf, inf)
    try:
        yield
    finally:
        for stream in _LIMITED:
            stream.end()


def install(shell: Any, num_processes: int) -> None:
    """Limits what cells of this shell print.

    Args:
        shell: The shell of an IPython kernel.
        num_processes: The size of the group.
    """
    streams = [LimitedStream(s, *share_of(num_processes)) for s in (sys.stdout, sys.stderr)]
    _LIMITED[:] = streams

    def begin(*_: Any) -> None:
        for stream in streams:
            stream.begin()

    def end(*_: Any) -> None:
        for stream in streams:
            stream.end()

    shell.events.register("pre_run_cell", begin)
    shell.events.register("post_run_cell", end)
    _keep_order(shell.display_pub, streams)
    forget_output(shell)


def _keep_order(publisher: Any, streams: list[LimitedStream]) -> None:
    """Makes what is displayed, or cleared, come after all that was written before."""
    for name in ("publish", "clear_output"):
        original = getattr(publisher, name)

        def after_text(*args: Any, original: Any = original, **settings: Any) -> Any:
            for stream in streams:
                stream.flush_now()
            return original(*args, **settings)

        setattr(publisher, name, after_text)
