"""Where a running cell's output goes: a notebook, or a terminal."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any

from IPython import get_ipython
from IPython.display import clear_output, display, publish_display_data

from jaxnb.cells.merge_output import LineLimiter, MergedLine, bars_as_one, is_bar
from jaxnb.cells.sinks import SaysWaits
from jaxnb.display.blocks import Note
from jaxnb.display.card import NOTHING, Card, card_of
from jaxnb.labels import Outputs
from jaxnb.model.cells import RichOutput
from jaxnb.model.group import Waits

if TYPE_CHECKING:
    from jaxnb.arrays.moving import Ticker


LIVE_SECONDS = 0.2
"""Shortest time between two showings of what changes all the time."""


class Place:
    """An output that shows one card, from any thread; the next card takes its place.

    It stands in the cell that runs when it is shown first, and stays there: `%%capture` around
    later code does not take it.

    Args:
        cell: Returns what tells the running cell from others: each has an output of its own then.
    """

    def __init__(self, cell: Callable[[], object] | None = None) -> None:
        self._cell = cell
        self._shown_in: object = None
        self._publisher: Any = None
        self._display_id = ""
        self._has_card = False
        self._shown_at = 0.0
        self._next: Callable[[], Card] | None = None  # makes what was offered too soon

    def show(self, card: Card) -> None:
        """Shows a card at once."""
        if self._cell is not None and self._shown_in != (here := self._cell()):
            self._shown_in = here
            self.leave()
        update = bool(self._display_id)
        if not update:
            self._publisher, self._display_id = get_ipython().display_pub, uuid.uuid4().hex
        self._next, self._has_card, self._shown_at = None, card is not NOTHING, time.monotonic()
        where = {"display_id": self._display_id}
        self._publisher.publish(card._repr_mimebundle_(), transient=where, update=update)

    def offer(self, make: Callable[[], Card]) -> None:
        """Shows a card a few times a second at most: what comes too soon waits for :meth:`tick`."""
        self._next = make
        self.tick()

    def tick(self) -> None:
        """Shows what was offered last, once it is time; called a few times a second."""
        if self._next is not None and time.monotonic() - self._shown_at >= LIVE_SECONDS:
            self.show(self._next())

    def clear(self) -> None:
        """Takes the card away, if one is shown; the place stays."""
        self._next = None
        if self._has_card:
            self.show(NOTHING)

    def leave(self) -> None:
        """Leaves what is shown as it is: the next card is an output of its own."""
        self._display_id, self._has_card, self._next = "", False, None

    def finish(self, card: Card) -> None:
        """Shows a last card, and leaves it."""
        self.show(card)
        self.leave()


QUIET_SECONDS = 1.0
"""Transfers that are over sooner show nothing."""


class TransferMeter:
    """Shows the progress of transfers: a :data:`jaxnb.arrays.moving.Meter`.

    Nothing is shown of one that takes less than a second. At its end, good or bad, the bar is
    taken away.

    Args:
        place: Where bars are shown: a notebook's output, or a terminal's current line.
        clock: Returns the time in seconds.

    Attributes:
        moved_bytes: How much transfers have moved since :meth:`begin`.
        moving_seconds: How long that took, without what came before and after: waiting for a
            cell to end, preparing the data.
    """

    def __init__(
        self, place: Place | TerminalPlace, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._place = place
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """Counts from zero."""
        self.moved_bytes, self.moving_seconds, self._began = 0, 0.0, self._clock()

    def seconds(self) -> float:
        """Returns the time since :meth:`begin`."""
        return self._clock() - self._began

    @contextmanager
    def __call__(self, doing: str, total_bytes: int) -> Iterator[Ticker]:
        """Shows one transfer; gives what takes the number of bytes done."""
        from jaxnb.arrays.card_transfer import transfer_card

        started = self._clock()
        show_at = started + QUIET_SECONDS
        before = self.moved_bytes

        def tick(done_bytes: int) -> None:
            nonlocal show_at
            self.moved_bytes = before + done_bytes
            now = self._clock()
            if now < show_at or done_bytes >= total_bytes:
                return
            show_at = now + LIVE_SECONDS
            with suppress(Exception):  # a front end that fails must not end the transfer
                self._place.show(transfer_card(doing, done_bytes, total_bytes, now - started))

        try:
            yield tick
        finally:
            self.moving_seconds += self._clock() - started
            with suppress(Exception):
                self._place.clear()

    def finish(self, card: Card) -> None:
        """Shows a card about what was moved, where the bar was."""
        self._place.finish(card)


class TerminalPlace:
    """The current line of a terminal."""

    def __init__(self) -> None:
        self._width = 0

    def show(self, card: Card) -> None:
        """Shows the bar, over the one before."""
        self.write(card.text)

    def clear(self) -> None:
        """Blanks the line, if something is on it."""
        if self._width:
            self.write("")
            self.write("")

    def finish(self, card: Card) -> None:
        """Shows the last card."""
        display(card)

    def write(self, text: str) -> None:
        """Writes over what is on the line."""
        sys.stderr.write("\r" + text.ljust(self._width))
        sys.stderr.flush()
        self._width = len(text)


def meter_for(shell: Any) -> TransferMeter:
    """Returns what shows the progress of transfers in a shell."""
    if is_notebook(shell):
        return TransferMeter(Place(lambda: shell.displayhook.prompt_count))
    return TransferMeter(TerminalPlace())


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

    def lines(self, lines: list[MergedLine]) -> None:
        """Shows lines, up to a limit; what is not shown is counted and said at the end."""
        self._write(self._limiter.feed(lines))

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
        for is_red, run in groupby(lines, self._is_red):
            stream = sys.stderr if is_red else sys.stdout
            stream.write("".join(line.labelled() + "\n" for line in run))
            stream.flush()


class NotebookSink(Sink):
    """Shows lines that are being rewritten in a block of their own, updated in place.

    ``clear_output`` of the first process clears what the cell has shown.

    Args:
        ids: The notebook's names for displays.
    """

    def __init__(self, ids: DisplayIds | None = None, holder: str = "spmd.last_result") -> None:
        super().__init__(ids, holder)
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
        from jaxnb.cells import card_cell

        self._waits.show(card_cell.waits_card(waits))
        if waits.has_ended and not waits.is_neutral:
            self._waits.leave()  # who waits again does so below

    def __exit__(self, *details: object) -> None:
        self._live.clear()
        super().__exit__(*details)


class TerminalSink(Sink):
    """Shows the first line that is being rewritten, on the terminal's current line."""

    def __init__(self, ids: DisplayIds | None = None, holder: str = "spmd.last_result") -> None:
        super().__init__(ids, holder)
        self._line = TerminalPlace()

    def live(self, lines: list[MergedLine]) -> None:
        """Shows the first of the lines; a terminal's cell has one line to rewrite."""
        if lines:
            self._line.write(self._limiter.cut(bars_as_one(lines)[0]).labelled())
        else:
            self._line.clear()

    def lines(self, lines: list[MergedLine]) -> None:
        """Clears the line that is being rewritten, and shows final lines above it."""
        if lines:
            self._line.clear()
        super().lines(lines)

    def display(self, process_index: int, output: RichOutput) -> None:
        """Shows the plain text of a rich output of the first process; others' is kept."""
        if process_index == self._first:
            self._line.clear()
        super().display(process_index, output)


def sink_for(shell: Any, ids: DisplayIds, holder: str = "spmd.last_result") -> Sink:
    """Returns the sink for a shell's front end."""
    return NotebookSink(ids, holder) if is_notebook(shell) else TerminalSink(ids, holder)


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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
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
        display(card) if self._place is None else self._place.show(card)
