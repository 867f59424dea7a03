"""What a process writes: bounded, rich outputs and bars, and pages."""

from __future__ import annotations

import base64
import importlib
import importlib.util
import os
import sys
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from math import inf
from types import ModuleType
from typing import Any

from IPython.core import page

from jaxnb.cells.allowance import Allowance, share_of
from jaxnb.compat.ipykernel import PythonOutStream
from jaxnb.compat.ipython import forget_output
from jaxnb.labels import format_count, plural
from jaxnb.wire.messages import DROPPED_MESSAGE, printable
from jaxnb.wire.process_features import CellHere, Feature

# Their widgets are of the kernel that made them: no front end is connected to a process, and each
# would show its own.


class _TextBars(MetaPathFinder, Loader):
    """Imports ``tqdm.notebook`` with the bars of ``tqdm`` in it."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Returns that module's only."""
        return importlib.util.spec_from_loader(name, self) if name == "tqdm.notebook" else None

    def exec_module(self, module: Any) -> None:
        """Fills the module."""
        std = importlib.import_module("tqdm.std")
        module.tqdm = module.tqdm_notebook = std.tqdm
        module.trange = module.tnrange = std.trange
        module.IProgress = module.WARN_NOIPYW = ""  # tqdm.autonotebook looks at both


def install_bars() -> None:
    """Has cells that import ``tqdm.auto`` or ``tqdm.notebook`` get bars of text."""
    sys.meta_path.insert(0, _TextBars())


MAX_TEXT_CHARS = 200_000
"""Longer plain text is cut. IPython makes the whole of it first, whatever is kept."""

MAX_DATA_CHARS = 32 << 20
"""What is larger in another format (HTML, a picture) is left out: half of it would be of no use."""

_WIDGET = "application/vnd.jupyter.widget-view+json"
_NO_WIDGETS = (
    "Widgets work in the notebook only: no page is connected to the processes. Make it in a cell "
    "without `%%spmd`, and push what it is set to: `%spmd_push NAME`."
)

_NOTE_CHARS = 200


def bounded(bundle: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a MIME bundle, as text that can be sent, without what is too large.

    Bytes, as PIL's images have them, become base64, as notebooks hold them. Its plain text says
    what was left out, and that a widget is.
    """
    kept: dict[str, Any] = {}
    notes = []
    for kind, given in printable(dict(bundle)).items():
        if kind == _WIDGET:
            notes.append(_NO_WIDGETS)
            continue
        data = base64.b64encode(given).decode("ascii") if isinstance(given, bytes) else given
        if kind == "text/plain":
            kept[kind] = shortened(data) if isinstance(data, str) else data
        elif (size := _size(data)) <= MAX_DATA_CHARS:
            kept[kind] = data
        else:
            notes.append(f"… its {kind} is not shown: {plural(size, 'character')}")
    if notes:
        kept["text/plain"] = "\n".join([*filter(None, [kept.get("text/plain")]), *notes])
    return kept


def shortened(text: str) -> str:
    """Returns a text, or its beginning with a note if it is longer than plain text may be."""
    if len(text) <= MAX_TEXT_CHARS:
        return text
    kept = text[: MAX_TEXT_CHARS - _NOTE_CHARS]
    missing = format_count(len(text) - len(kept))
    return f"{kept}… {missing} of {plural(len(text), 'character')} not shown"


def install_bundles(shell: Any) -> None:
    """Bounds what this shell formats, and what is displayed in its cells in any other way."""
    format_value, publish = shell.display_formatter.format, shell.display_pub.publish

    def format_bounded(*args: Any, **settings: Any) -> Any:
        data, metadata = format_value(*args, **settings)
        return bounded(data), metadata

    def publish_bounded(data: Mapping[str, Any], *args: Any, **settings: Any) -> Any:
        return publish(bounded(data), *args, **settings)

    shell.display_formatter.format = format_bounded
    shell.display_pub.publish = publish_bounded


def _size(data: Any) -> int:
    if isinstance(data, str | bytes):
        return len(data)
    if isinstance(data, Mapping):
        return sum(_size(key) + _size(value) for key, value in data.items())
    if isinstance(data, list | tuple):
        return sum(map(_size, data))
    return 1


class Paging(Feature):
    """Displays what IPython would page, on the first of a cell's processes.

    What the processes tell of an object may differ (where it is in memory, its values), and nobody
    wants to read its documentation so often.

    Args:
        shell: This process's shell. ipykernel puts what is paged into the reply, for a pager that
            a notebook has for its own kernel only.
        process_index: This process.
    """

    def __init__(self, shell: Any, process_index: int) -> None:
        self._me = process_index
        self._shows = True
        shell.set_hook("show_in_pager", page.as_hook(self._show), 0)

    def begin(self, cell: CellHere) -> None:
        """Notes whether this process is the first that runs the cell."""
        self._shows = self._me == min(cell.request.ranks, default=self._me)

    def _show(self, text: Any, *_: Any, **__: Any) -> None:
        if self._shows:
            page.display_page(text)


# A cell may print faster than anyone can read, and for longer than any memory lasts. Each process
# sends the first of what a cell writes, up to its share (:mod:`jaxnb.cells.allowance`), and from
# then on counts, and keeps the end: the last words of a cell are those that matter. When the cell
# ends they are sent, after a line that says what is missing; the notebook is told the count
# besides, and shows it. So the memory of the process and of the notebook
# is bounded, and a cell that prints without end can be interrupted like any other.
#
# Output to files, and what C code writes to file descriptors, is not counted here.

FLUSHES, FLUSHES_PER_SECOND = 50, 50.0
"""How many flushes are done at once, and how often after those. Each takes a round trip to
another thread, and a message through the controller to the notebook: a ``logging`` handler that
flushes each line would keep both busy with nothing else. What is not flushed goes with the next,
or after the 0.2 s of ipykernel's own timer."""

CELLS_KEPT = 64
"""Threads of so many earlier cells still have a share of their own."""


class LimitedStream:
    """Limits what one of the output streams sends, and how often it is flushed.

    Whoever holds the stream (a ``logging`` handler) is limited too.

    Args:
        stream: The stream.
        lines: The share of each cell, in lines.
        chars: The share, in characters.
    """

    def __init__(self, stream: PythonOutStream, lines: float, chars: float) -> None:
        self._stream = stream
        self._lines = lines
        self._chars = chars
        self.flush_now = stream.flush  # whatever the cell has flushed before
        self._shares: OrderedDict[str, tuple[Mapping[str, Any], Allowance]] = OrderedDict()
        self._in_cell = False
        self._flushes = float(FLUSHES)
        self._flushed = 0.0
        stream.limit, stream.flush = self._limit, self.flush  # type: ignore[method-assign]
        os.register_at_fork(after_in_child=self._write_to_file_descriptor)

    def _write_to_file_descriptor(self) -> None:
        """Has a forked child write where C code does, which the launcher reads.

        It has no thread that would send messages; ipykernel drops what it prints.
        """
        number = 2 if self._stream.name == "stderr" else 1
        plain = open(number, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)  # noqa: SIM115
        stream: Any = self._stream
        stream.write, stream.flush = plain.write, plain.flush

    def _limit(self, parent: Mapping[str, Any], text: str) -> str:
        """Returns what the share of a request allows of a text, and counts the rest."""
        name = str(parent.get("msg_id", ""))
        if name not in self._shares:
            self._shares[name] = parent, Allowance(self._lines, self._chars, time.monotonic())
            while len(self._shares) > CELLS_KEPT:
                self._shares.popitem(last=False)
        share = self._shares[name][1]
        was_full = share.full
        sent = share.take(text)
        if share.full and not was_full:
            self._tell(parent, share)
        return sent

    def set_limits(self, lines: float, chars: float) -> None:
        """Changes the share of each cell, that of the present one too."""
        with self._stream.lock:
            self._stream.settle()
            self._lines, self._chars = lines, chars
            self._shares.clear()
        self._in_cell = True

    def begin(self, *_: object) -> None:
        """Notes that a cell begins."""
        self._in_cell = True

    def end(self, *_: object) -> None:
        """Sends the end of what was not sent, of the cell that ends and of threads of others."""
        self._in_cell = False
        with self._stream.lock:
            self._stream.settle()
            for parent, share in list(self._shares.values()):
                if share.is_pending:
                    self._stream.write_of(parent, share.end())
                    self._tell(parent, share)

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
        if self._in_cell:
            now = time.monotonic()
            self._flushes += (now - self._flushed) * FLUSHES_PER_SECOND
            self._flushes = min(self._flushes, FLUSHES)
            self._flushed = now
            if self._flushes < 1:
                return
            self._flushes -= 1
        self.flush_now()


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


def install_limits(shell: Any, num_processes: int) -> None:
    """Limits what cells of this shell print.

    Args:
        shell: The shell of an IPython kernel.
        num_processes: The size of the group.
    """
    streams = [LimitedStream(each, *share_of(num_processes)) for each in PythonOutStream.made]
    _LIMITED[:] = streams

    for stream in streams:
        shell.events.register("pre_run_cell", stream.begin)
        shell.events.register("post_run_cell", stream.end)
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
