"""Where a running cell's output goes: a notebook, or a terminal."""

from __future__ import annotations

import sys
import time
import uuid
from types import TracebackType
from typing import Any

from IPython.display import clear_output, display, publish_display_data

from jaxnb.cells.merge_bars import bars_as_one, is_bar
from jaxnb.cells.merge_output import LineLimiter, MergedLine
from jaxnb.cells.sinks import SaysWaits
from jaxnb.display.blocks import Facts, Fold, Note
from jaxnb.display.card import Card, card_of
from jaxnb.labels import Outputs, plural
from jaxnb.magics.place import Place
from jaxnb.model.cells import RichOutput
from jaxnb.model.group import Waits

LIVE_LINES = 200
"""How many lines that are being rewritten are shown, the lowest ones."""


def is_notebook(shell: Any) -> bool:
    """Whether outputs can be updated in place: a kernel's front end can, a terminal cannot."""
    return hasattr(shell, "kernel")


class DisplayIds:
    """What the notebook calls the displays of processes, across cells.

    A process updates its displays by ids of its own; several may use the same.
    """

    def __init__(self) -> None:
        self._ours: dict[tuple[int, str], str] = {}

    def publish(self, process_index: int, output: RichOutput) -> None:
        """Shows an output as the notebook's own, or updates the one that it updates.

        An update of a display that is not known is shown as a new one.
        """
        transient: dict[str, Any] = {}
        update = False
        if output.display_id is not None:
            key = (process_index, output.display_id)
            update = output.update and key in self._ours
            if not update:
                self._ours[key] = uuid.uuid4().hex
            transient = {"display_id": self._ours[key]}
        publish_display_data(
            dict(output.data), dict(output.metadata), transient=transient, update=update
        )

    def forget(self, process_index: int, display_id: str) -> None:
        """Forgets a display that is not shown any more."""
        self._ours.pop((process_index, display_id), None)

    def forget_all(self) -> None:
        """Forgets all: the processes were replaced."""
        self._ours.clear()


class Sink(SaysWaits):
    """Shows final lines as ordinary standard output and error, which every front end takes.

    Rich outputs of the first process are shown as they come, those of the others by
    :meth:`rest`.

    Args:
        ids: The notebook's names for displays.
        holder: The name of the cell's result.
    """

    shows_cards = True

    def __init__(self, ids: DisplayIds | None = None, holder: str = "spmd.last_result") -> None:
        from jaxnb.cells import card_value

        self._ids = ids or DisplayIds()
        self._holder = holder
        self._columns = card_value.DisplayColumns()
        self._first = 0
        self._limiter = LineLimiter(holder=holder)

    def __enter__(self) -> Sink:
        return self

    def __exit__(self, *_: object) -> None:
        self._write(self._limiter.finish())

    def begin(self, processes: tuple[int, ...]) -> None:
        """Takes which processes run the cell."""
        self._first = min(processes)

    def tick(self) -> None:
        """Does nothing: all is shown as it comes."""

    def lines(self, lines: list[MergedLine]) -> None:
        """Shows lines, up to a limit; what is not shown is counted and said at the end."""
        self._write(self._limiter.feed(lines))

    def live(self, lines: list[MergedLine]) -> None:
        """Shows lines that are being rewritten."""

    def display(self, process_index: int, output: RichOutput) -> None:
        """Shows a rich output of the first process; one of another is kept."""
        self._columns.add(process_index, output)
        if process_index == self._first:
            self._ids.publish(process_index, output)

    def clear(self, process_index: int, wait: bool) -> None:
        """Forgets what another process displayed. What a terminal has shown stays."""
        self._columns.drop(process_index, wait)

    def rest(self, outputs: Outputs = "merged") -> Card:
        """Returns what the processes displayed and was not shown yet."""
        from jaxnb.cells import card_value

        return card_value.displays_card(self._columns, self._first, outputs)

    def notice(self, text: str) -> None:
        """Shows a sentence of jaxnb's own."""
        print(f"jaxnb: {text}", file=sys.stderr, flush=True)

    def _is_red(self, line: MergedLine) -> bool:
        return line.name == "stderr"

    def _write(self, lines: list[MergedLine]) -> None:
        # One write for a run of lines of one stream: each is a message to the front end.
        start = 0
        for i in range(1, len(lines) + 1):
            if i == len(lines) or self._is_red(lines[i]) != self._is_red(lines[start]):
                stream = sys.stderr if self._is_red(lines[start]) else sys.stdout
                stream.write("".join(line.labelled() + "\n" for line in lines[start:i]))
                stream.flush()
                start = i


class NotebookSink(Sink):
    """Shows lines that are being rewritten in a block of their own, updated in place.

    ``clear_output`` of the first process clears what the cell has shown.

    Args:
        ids: The notebook's names for displays.
        folds: Lines are shown at the end, a click away: what the compiler logs, say.
    """

    def __init__(
        self,
        ids: DisplayIds | None = None,
        holder: str = "spmd.last_result",
        *,
        folds: bool = False,
    ) -> None:
        super().__init__(ids, holder)
        self._folds = folds
        if folds:
            self._limiter = LineLimiter(head=0, holder=self._holder)
        self._live, self._waits = Place(), Place()
        self._cleared_by_next = False

    def lines(self, lines: list[MergedLine]) -> None:
        """Shows lines, up to a limit; what is not shown is counted and said at the end."""
        if lines:
            self._clear_if_asked()
        super().lines(lines)

    def _is_red(self, line: MergedLine) -> bool:
        return super()._is_red(line) and not is_bar(line)

    def notice(self, text: str) -> None:
        """Shows a sentence of jaxnb's own."""
        display(notice_card(text))  # standard error would be a red box, and not all of it is bad

    def display(self, process_index: int, output: RichOutput) -> None:
        """Shows a rich output of the first process; one of another is kept."""
        if process_index == self._first:
            self._clear_if_asked()
        super().display(process_index, output)

    def clear(self, process_index: int, wait: bool) -> None:
        """Clears what the cell has shown, if it is the first process that asks."""
        if process_index == self._first:
            for output in self._columns.get(process_index, ()):
                if output.display_id is not None:
                    self._ids.forget(process_index, output.display_id)
            # The front end is told when the next output comes: jaxnb's own card at the end
            # must not be what clears the cell.
            self._cleared_by_next = True
            if not wait:
                self._clear_if_asked(wait=False)
        super().clear(process_index, wait)

    def _clear_if_asked(self, wait: bool = True) -> None:
        if not self._cleared_by_next:
            return
        self._cleared_by_next = False
        self._live.leave()
        self._waits.leave()
        self._limiter = LineLimiter(holder=self._holder)
        clear_output(wait=wait)

    def live(self, lines: list[MergedLine]) -> None:
        """Shows progress bars and unfinished lines, a few times a second at most."""
        from jaxnb.cells import card_error

        if not lines:
            self._live.clear()
            return
        self._clear_if_asked()
        shown = lines[-LIVE_LINES:]
        self._live.offer(lambda: card_error.live_card([self._limiter.cut(line) for line in shown]))

    def tick(self) -> None:
        """Shows lines that came too soon after others."""
        self._live.tick()

    def waits(self, waits: Waits) -> None:
        """Shows where processes wait, in a place of its own."""
        from jaxnb.cells import card_waits

        self._waits.show(card_waits.waits_card(waits))
        if waits.has_ended and not waits.is_neutral:
            self._waits.leave()  # who waits again does so below

    def __exit__(self, *details: object) -> None:
        from jaxnb.cells import card_error

        self._live.clear()
        if self._folds and (lines := self._limiter.finish()):
            title = f"{plural(len(lines), 'line')} of output"
            display(card_of(Fold(Facts([title]), [card_error.output_block(lines)])))
        super().__exit__(*details)


class TerminalSink(Sink):
    """Shows the first line that is being rewritten, on the terminal's current line."""

    def __init__(self, ids: DisplayIds | None = None, holder: str = "spmd.last_result") -> None:
        super().__init__(ids, holder)
        self._width = 0

    def live(self, lines: list[MergedLine]) -> None:
        """Shows the first of the lines; a terminal's cell has one line to rewrite."""
        text = self._limiter.cut(bars_as_one(lines)[0]).labelled() if lines else ""
        sys.stderr.write("\r" + text.ljust(self._width) + ("" if lines else "\r"))
        sys.stderr.flush()
        self._width = len(text)

    def lines(self, lines: list[MergedLine]) -> None:
        """Clears the line that is being rewritten, and shows final lines above it."""
        if lines:
            self._clear_line()
        super().lines(lines)

    def display(self, process_index: int, output: RichOutput) -> None:
        """Shows the plain text of a rich output of the first process; others' is kept."""
        if process_index == self._first:
            self._clear_line()
        super().display(process_index, output)

    def _clear_line(self) -> None:
        if self._width:
            sys.stderr.write("\r" + " " * self._width + "\r")
            sys.stderr.flush()
            self._width = 0


def sink_for(
    shell: Any, ids: DisplayIds, holder: str = "spmd.last_result", **settings: bool
) -> Sink:
    """Returns the sink for a shell's front end; the settings are :class:`NotebookSink`'s."""
    if is_notebook(shell):
        return NotebookSink(ids, holder, **settings)
    return TerminalSink(ids, holder)


def notice_card(text: str) -> Card:
    """Returns the card of a sentence of jaxnb's own about a cell."""
    return card_of(Note(f"jaxnb: {text}", wrap=False), tone="warn")


class ProgressDisplay:
    """Shows the stages of a start in one place, which the final card then takes."""

    def __init__(self, shell: Any) -> None:
        self._place = Place() if is_notebook(shell) else None
        self._started = time.perf_counter()

    def __enter__(self) -> ProgressDisplay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None
    ) -> None:
        if kind is not None and self._place is not None:
            self._place.clear()

    def __call__(self, stage: str, detail: str) -> None:
        """Shows a stage."""
        from jaxnb.launch import card_group

        if self._place is None:
            print(f"jaxnb: {stage} {detail}", file=sys.stderr, flush=True)
            return
        seconds = time.perf_counter() - self._started
        self._place.show(card_group.progress_card(stage, detail, seconds))

    def show(self, card: Card) -> None:
        """Shows a card in the place of the progress."""
        if self._place is None:
            display(card)
        else:
            self._place.show(card)
