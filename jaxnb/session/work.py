"""What a group is doing: which cell runs on it, or which pull, and who waits for a turn."""

from __future__ import annotations

import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from jaxnb.cells.merge_output import LINES_SHOWN
from jaxnb.cells.result import CellResult
from jaxnb.cells.running import RunningCell
from jaxnb.cells.sinks import StderrNotices, Strays
from jaxnb.errors import JaxnbError, UsageError
from jaxnb.model.scripts import cell_label, the_cell
from jaxnb.wire.asking import Channel
from jaxnb.wire.messages import Output

MOST_RESULTS = 20
"""The results of so many cells are kept, the last ones."""

MOST_LONG_RESULTS = 4
"""Of those that wrote more than a notebook shows so many."""

LONG_CHARS = 1 << 20
"""Who writes more writes much, in however few lines."""


def show_wait(text: str) -> None:
    """Writes who is waited for to standard error."""
    if text:
        StderrNotices().notice(text)


class _Results(dict[int, CellResult]):
    """Those that are kept, by the numbers of their cells."""

    def __missing__(self, cell: int) -> CellResult:
        raise UsageError(
            f"There is no result of cell [{cell}]: a group keeps those of its last {MOST_RESULTS} "
            f"cells, and of those that wrote more than is shown {MOST_LONG_RESULTS}."
        )


class Work:
    """The work on a group: one cell, pull, push or recovery at a time, in the order of the calls.

    Attributes:
        turns: Who waits, and who has the turn.
        current: The cell that runs.
        left: The last cell, if processes have not come back from it.
        channel: What a pull or push, or what else is asked of main threads beside cells, uses.
        cells_run: How many cells of the user's have been begun.
        last_cell: The number of the last of them that has ended; None before the first.
        last_result: What the last cell did, be it one of jaxnb's own.
        results: What the last cells did, by their numbers.
        last_failed: What the last of the user's cells did that has failed on these processes.
        show_wait: Shows who is waited for outside of cells; an empty text, that this is over.
    """

    def __init__(self) -> None:
        self.turns = Turns()
        self.channel: Channel | None = None
        self._channel_thread: int | None = None
        self._last_reason: Exception | None = None  # why channels were abandoned
        self.cells_run = 0
        self.last_cell: int | None = None
        self.last_result: CellResult | None = None
        self.results = _Results()
        self._long_results: list[int] = []
        self.last_failed: CellResult | None = None
        self.current: RunningCell | None = None
        self.left: RunningCell | None = None
        self._stuck: set[int] = set()  # in what an interrupted pull asked for
        self._strays = Strays()
        self._interrupted: threading.Event | None = None
        self.show_wait: Callable[[str], None] = show_wait
        self._shows_wait = False

    def note_result(self, result: CellResult) -> None:
        """Takes what a cell did."""
        self.last_result = result
        texts = [text for p in result.per_process.values() for text in (p.stdout, p.stderr)]
        lines = sum(text.count("\n") for text in texts)
        is_long = lines > LINES_SHOWN or sum(map(len, texts)) > LONG_CHARS
        self.results.pop(result.cell, None)  # so that it is the last one
        self.results[result.cell] = result
        long = [cell for cell in self._long_results if cell != result.cell and cell in self.results]
        self._long_results = [*long, result.cell] if is_long else long
        gone = self._long_results[:-MOST_LONG_RESULTS]
        self._long_results = self._long_results[-MOST_LONG_RESULTS:]
        if len(self.results) > MOST_RESULTS:
            gone.append(next(iter(self.results)))
        for cell in gone:
            self.results.pop(cell, None)

    @contextmanager
    def turn(self, on_wait: Callable[[], None], interrupted: threading.Event) -> Iterator[None]:
        """Waits for a turn and keeps it for the block, which :meth:`interrupt` and SIGINT reach.

        Args:
            on_wait: Called once if the turn does not come within a second.
            interrupted: What they set.

        Raises:
            KeyboardInterrupt: It was interrupted before its turn came.
        """
        try:
            with sigint_sets(interrupted), self.turns.turn(on_wait, interrupted):
                self.end_wait()
                self._interrupted = interrupted
                try:
                    yield
                finally:
                    self._interrupted = None
        finally:
            self.end_wait()

    @contextmanager
    def converse(self, open_channel: Callable[[threading.Event], Channel]) -> Iterator[Channel]:
        """Waits for a turn, and keeps it for the block, with a channel to main threads.

        SIGINT in the main thread ends the block with KeyboardInterrupt; one that comes when it has
        ended is not lost. A thread that has a channel goes on with it: where a class that is
        unpickled uses the arrays that it is made of, its turn would come when it has got them.

        Args:
            open_channel: Makes the channel; what it takes is set by SIGINT.
        """
        if self.channel is not None and self._channel_thread == threading.get_ident():
            yield self.channel
            return
        interrupted = threading.Event()
        with sigint_sets(interrupted), self.turns.turn(self.say_who_runs, interrupted):
            reason = self._last_reason
            channel = self.channel = open_channel(interrupted)
            self._channel_thread = threading.get_ident()
            try:
                missed = self._last_reason  # whoever gave it may not have seen the channel
                if missed is not None and missed is not reason:
                    channel.abandon(missed)
                channel.check()
                yield channel
            except Exception:
                channel.check()  # what failed since the processes ended says so
                raise
            finally:
                self.channel = self._channel_thread = None
                channel.end()
        if interrupted.is_set():
            raise KeyboardInterrupt

    def end_wait(self) -> None:
        """Takes away who was waited for: the turn has come, or nobody waits any more."""
        if self._shows_wait:
            self._shows_wait = False
            self.show_wait("")

    def interrupt(self) -> bool:
        """Interrupts who has the turn; returns whether somebody had."""
        interrupted = self._interrupted
        if interrupted is not None:
            interrupted.set()
        return interrupted is not None

    def begin(self, running: RunningCell) -> None:
        """Notes a cell that is about to be sent: before the first process can be in it."""
        self.current = running

    def hand_strays(self, running: RunningCell) -> None:
        """Gives a cell the output that came before it, between cells."""
        if dropped := self._strays.move_to(running.exchange, running.processes):
            running.notice(f"{dropped} pieces of output that came between cells were dropped")

    def end(self, running: RunningCell) -> None:
        """Notes that nobody waits for a cell any more; processes may be in it yet."""
        self.current = None
        self.left = running if running.waiting_for else None

    def note_stuck(self, processes: Iterable[int]) -> None:
        """Notes processes that are left in what a pull or push has asked for."""
        self._stuck.update(processes)

    def forget_left(self) -> None:
        """Notes that the processes are replaced: none is left in anything."""
        self.left = self.last_failed = None
        self._stuck.clear()

    def forget_output(self) -> None:
        """Forgets what processes wrote between cells: they are replaced by fresh ones."""
        self._strays = Strays()

    def in_cells(self) -> dict[int, str]:
        """Returns which processes are in a cell, given up or not, and in which."""
        found = {}
        for running in (self.left, self.current):
            if running is not None:
                doing = f"is in {cell_label(running.request.cell)}"
                found.update(dict.fromkeys(running.still_in_cell(), doing))
        return found

    def unended(self) -> set[int]:
        """Returns the processes that have not come back from what they were asked for."""
        return set(self.in_cells()) | self._stuck

    def say_who_runs(self, notice: Callable[[str], None] | None = None) -> None:
        """Shows who has the turn, for which somebody waits.

        Args:
            notice: Shows it; by default in place, until the turn has come.
        """
        self._shows_wait = notice is None
        if (current := self.current) is not None:
            (notice or self.show_wait)(WAITS_FOR.format(current.request.cell))
        elif self.channel is not None:
            (notice or self.show_wait)("waits for a pull or push to end")

    def notice(self, text: str) -> None:
        """Shows a sentence, if it is one, in the cell that runs, else on standard error."""
        if text:
            (self.current or StderrNotices()).notice(text)

    def take_output(self, output: Output, *, is_kept: bool) -> None:
        """Takes output that no request owns: into the running cell, else into the next one.

        Args:
            output: The output.
            is_kept: Whether it is kept for the next one.
        """
        running = self.current
        if running is not None and output.process_index in running.processes:
            running.exchange.events.put(output)
        elif is_kept:
            self._strays.add(output)

    def wake(self) -> None:
        """Has the one who waits for the running cell look at what has happened."""
        if (running := self.current) is not None:
            running.exchange.wake()

    def abandon(self, kind: type[JaxnbError], reason: str) -> None:
        """Ends the wait for the running cell, or for data."""
        if (running := self.current) is not None:
            running.abandon(kind(f"{reason} while {the_cell()} ran or waited."))
        self._last_reason = kind(f"{reason} while data were on the way.")
        if (channel := self.channel) is not None:
            channel.abandon(self._last_reason)


@contextmanager
def sigint_sets(event: threading.Event) -> Iterator[None]:
    """Turns SIGINT into an event for the block.

    KeyboardInterrupt could strike anywhere, in the middle of merging output too. Outside the
    main thread there are no signals to turn.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def sigint_held() -> Iterator[None]:
    """Holds SIGINT back until the block has ended, for what must not be left half done."""
    held = threading.Event()
    with sigint_sets(held):
        yield
    if held.is_set():
        raise KeyboardInterrupt


NOTICE_SECONDS = 1.0

WAITS_FOR = "waits for cell [{}] to end (to end that: Interrupt this wait, then `%spmd_interrupt`)"
"""What is said to one whose turn has not come, of the cell that has it."""


class Turns:
    """A queue of those who wait; the first one may run."""

    def __init__(self) -> None:
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()
        self._holder: int | None = None

    @contextmanager
    def turn(self, on_wait: Callable[[], None], interrupted: threading.Event) -> Iterator[None]:
        """Waits for all that came before, and keeps the turn for the block.

        Args:
            on_wait: Called once if the turn does not come within a second.
            interrupted: Ends the wait. SIGINT must set it, before and after the turn too: a
                KeyboardInterrupt that struck where the turn is given back would keep it for
                good.

        Raises:
            UsageError: It would wait for its own thread.
            KeyboardInterrupt: It was interrupted before its turn came.
        """
        if self._holder == threading.get_ident():
            raise UsageError(
                "This was called from within a cell's output, a pull or a push, and would wait "
                "for that to end. Nothing was run or moved. Call it afterwards."
            )
        place = object()
        with self._changed:
            self._queue.append(place)
        try:
            self._wait_for(place, on_wait, interrupted)
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = None
        finally:
            with self._changed:
                self._queue.remove(place)
                self._changed.notify_all()

    def _wait_for(
        self, place: object, on_wait: Callable[[], None], interrupted: threading.Event
    ) -> None:
        told_at = time.monotonic() + NOTICE_SECONDS
        told = False
        while True:
            if interrupted.is_set():
                raise KeyboardInterrupt("Interrupted before its turn came; nothing was run.")
            with self._changed:
                if self._queue[0] is place:
                    return
                self._changed.wait(0.1)
            if not told and time.monotonic() > told_at:
                told = True
                on_wait()

    def wait_until_free(self, seconds: float) -> bool:
        """Waits until nobody has or waits for a turn; returns whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queue, seconds)
