"""One cell on its way through the group: its output as it comes, its result at the end."""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf
from typing import Literal

from jaxnb.cells.allowance import Allowance, dropped_texts, flood_text, share_of
from jaxnb.cells.merge_output import MergedLine, StreamMerger, merged_again, stream_mergers
from jaxnb.cells.result import timing_of
from jaxnb.cells.sinks import Ended, HeldOutput, LineEnds, NoSink, OutputSink, StderrNotices
from jaxnb.labels import Outputs, processes_label
from jaxnb.model.cells import (
    NO_ANSWER,
    CellReply,
    CellRequest,
    CellTiming,
    ProcessError,
    RequestFailed,
    RichOutput,
    StreamChunk,
    StreamName,
)
from jaxnb.model.dispatches import Cause
from jaxnb.model.group import Waits
from jaxnb.model.insight import Pitfall
from jaxnb.model.scripts import the_cell
from jaxnb.pitfalls.findings import merged
from jaxnb.wire.messages import (
    ClearOutput,
    Display,
    Dropped,
    Event,
    Exchange,
    Question,
    Reply,
)


@dataclass(frozen=True, slots=True)
class Collected:
    """All that the processes of a cell have sent.

    Attributes:
        request: The cell.
        replies: Each process's answer; for one without, an error that says it did not end the
            cell.
        silent: The processes that sent no answer, the dead included.
        displays: What each has displayed.
        texts: Name of a stream to what each has written.
        merged: Name of a stream to all that, merged and labelled.
        seconds: How long it took, as seen from the notebook.
    """

    request: CellRequest
    replies: Mapping[int, CellReply]
    silent: frozenset[int]
    displays: Mapping[int, tuple[RichOutput, ...]]
    texts: Mapping[str, Mapping[int, str]]
    merged: Mapping[str, str]
    seconds: float

    @property
    def errors(self) -> dict[int, ProcessError]:
        """What processes raised: their errors, interrupts, or that they did not end the cell."""
        return {i: each.error for i, each in self.replies.items() if each.error is not None}

    @property
    def timing(self) -> CellTiming:
        """How long its calls took on each process, if it is timed."""
        return timing_of({i: reply.calls for i, reply in self.replies.items()})

    @property
    def pitfalls(self) -> tuple[Pitfall, ...]:
        """What the processes saw of pitfalls, each cause once."""
        return merged({i: reply.pitfalls for i, reply in self.replies.items()})


TICK_SECONDS = 0.05
"""How often output that waits for equal lines of other processes is looked at again."""

STEP_SECONDS = 0.1
"""The longest that one step takes output, and the longest that it then shows output, however much
there is: between steps, interrupts, time-outs and deaths are looked at."""

PIECE_CHARS = 1 << 18
"""Longer text is taken in pieces, so that a step can end between them."""

STEP_LINES = 10_000
"""How many lines one step merges, about."""


class RunningCell:
    """Collects what the processes of one cell send.

    Args:
        request: The cell.
        exchange: Its exchange.
        processes: The indices of the processes that it runs on.
        num_processes: Size of the group.
        sink: Where its output goes.
        interrupted: Set by whoever wants the cell interrupted.
        outputs: ``"merged"``; ``"all"``: equal lines of several processes are shown for each;
            ``"first"``: those of the first process only. The result holds all in any case.
    """

    def __init__(
        self,
        request: CellRequest,
        exchange: Exchange,
        processes: Iterable[int],
        num_processes: int,
        sink: OutputSink,
        interrupted: threading.Event,
        outputs: Outputs = "merged",
    ) -> None:
        self.request = request
        self.exchange = exchange
        self.waiting_for = set(processes)
        self.processes = tuple(processes)
        self._num_processes = num_processes
        self._sink = sink
        self.is_shown = sink.shows_cards
        self.is_script = isinstance(sink, StderrNotices)
        self.interrupted = interrupted
        self._mergers = dict.fromkeys(self.processes, stream_mergers(self.processes))
        if outputs != "merged":
            shown = self.processes if outputs == "all" else self.processes[:1]
            self._mergers = {index: stream_mergers([index]) for index in shown}
        self._texts = {name: defaultdict[int, list[str]](list) for name in ("stdout", "stderr")}
        self._shown: list[MergedLine] = []
        self._is_merged = outputs == "merged"
        self._allowances: dict[tuple[int, StreamName], Allowance] = {}
        self._pieces: deque[Event] = deque()
        self.is_behind = False
        self._dropped: dict[tuple[StreamName, int], Dropped] = {}
        self._displays: dict[int, list[RichOutput]] = defaultdict(list)
        self._replies: dict[int, CellReply] = {}
        self._answered: set[int] = set()
        self._live: list[MergedLine] = []
        self.questions: list[Question] = []  # that nobody has taken yet
        self._held = HeldOutput()
        self.began = self.shown_at = time.monotonic()  # and when output was last shown
        self._left_in_cell: set[int] | None = None
        self.sink_error: Exception | None = None
        self.abandoned: Exception | None = None
        self.waits: Waits | None = None
        self.wait_cause: Cause | Literal[""] = ""  # of the last wait that was shown
        self._to_sink(lambda sink: sink.begin(self.processes))

    @property
    def seconds(self) -> float:
        """Time since the cell was sent."""
        return time.monotonic() - self.began

    @property
    def interrupt_by(self) -> str:
        """How the user interrupts it."""
        return self._sink.interrupt_by

    @property
    def silent(self) -> set[int]:
        """The processes that have sent no answer, and may never send one, the dead included."""
        return set(self.processes) - self._answered

    @property
    def errors(self) -> Mapping[int, ProcessError]:
        """The errors of the processes that have left the cell."""
        replies = self._replies.items()
        return {i: each.error for i, each in replies if each.error is not None}

    def how_others_left(self, others: Collection[int]) -> str:
        """Returns, as a clause, how the processes that are not in the cell left it.

        It is empty if there are none.

        Args:
            others: Their indices; some may not have been asked to run it.
        """
        ends: dict[str, list[int]] = {}
        for index in sorted(others):
            reply = self._replies.get(index)
            if reply is None:
                end = f"{{have}} not been asked to run {the_cell()}"
            else:
                end = "{have} finished" if reply.error is None else reply.error.ending
            ends.setdefault(end, []).append(index)
        return ", ".join(
            f"{processes_label(who)} {end.replace('{have}', 'has' if len(who) == 1 else 'have')}"
            for end, who in ends.items()
        )

    def abandon(self, reason: Exception) -> None:
        """Makes the one who waits for this cell stop, and raise ``reason``."""
        self.abandoned = reason
        self.exchange.wake()

    def step(self, timeout_seconds: float = TICK_SECONDS) -> None:
        """Takes what has come, waiting for at most ``timeout_seconds`` if nothing has."""
        # What has come in the meantime is taken together: merging by line is for people, and
        # doing it for each message would cost more than the messages.
        take_until = None
        for event in self._arrived(0.0 if self.is_behind else timeout_seconds):
            self._take(event)
            now = time.perf_counter()
            take_until = take_until or now + STEP_SECONDS
            if now > take_until:
                break
        self.is_behind = bool(self._pieces)
        show_until = time.perf_counter() + STEP_SECONDS
        while self._show_merged() and self._show_held():
            if time.perf_counter() > show_until:
                self.is_behind = True
                break
        self._show_live()
        self._to_sink(lambda sink: sink.tick())

    def _show_merged(self) -> bool:
        """Shows the lines that can be decided now; returns whether those were all."""
        now, are_all = time.perf_counter(), True
        for merger in self._distinct_mergers():
            lines = merger.drain(now, STEP_LINES)
            are_all &= len(lines) < STEP_LINES
            self._show(lines)
        self.is_behind |= not are_all
        return are_all

    def _arrived(self, timeout_seconds: float) -> Iterator[Event]:
        """Yields what has come, in pieces small enough to be quick; waits if nothing has."""
        first = self.exchange.get(timeout_seconds) if timeout_seconds and not self._pieces else None
        for event in (first, *self.exchange.drain()):
            match event:
                case StreamChunk(index, name, text):
                    for start in range(0, len(text), PIECE_CHARS):
                        piece = text[start : start + PIECE_CHARS]
                        self._pieces.append(StreamChunk(index, name, piece))
                case None:
                    pass
                case _:
                    self._pieces.append(event)
        while self._pieces:
            yield self._pieces.popleft()

    def _take(self, event: Event) -> None:
        match event:
            case StreamChunk(index, name, text):
                self._write(index, name, self._allowance(index, name).take(text))
            case Dropped():
                if not self._dropped:
                    self.notice(flood_text(event))
                self._dropped[event.name, event.process_index] = event
            case Question(index):
                self._feed(LineEnds(index))
                self._held.put(event)
            case Display(index, output):
                self._displays[index].append(output)
                if not output.update:
                    self._feed(LineEnds(index))
                self._held.put(event)
            case ClearOutput(index):
                self._feed(LineEnds(index))  # half a line is cleared too
                self._held.put(event)
            case Reply(index, answer):
                if not isinstance(answer, BaseException):
                    self._answered.add(index)
                self._finish(index, answer)

    def _write(self, index: int, name: StreamName, text: str) -> None:
        if not text:
            return
        if self.request.script is None:
            self._texts[name][index].append(text)
        self._feed(StreamChunk(index, name, text))

    def _feed(self, event: StreamChunk | LineEnds | Ended) -> None:
        """Merges text (or its end) once earlier displays of the process have been shown."""
        index = event.process_index
        if index not in self._mergers:
            return
        if self._held.holds(index):
            self._held.put(event)
        else:
            self._merge(event)

    def _merge(self, event: StreamChunk | LineEnds | Ended) -> None:
        match event:
            case StreamChunk(index, name, text):
                self._mergers[index][name].feed(index, text, time.perf_counter())
            case LineEnds(index):
                for merger in self._mergers[index].values():
                    merger.end_line(index)
            case Ended(index):
                for merger in self._mergers[index].values():
                    merger.finish(index)

    def _allowance(self, index: int, name: StreamName) -> Allowance:
        """Returns the notebook's limit for a stream, higher than what Python code may send.

        It catches what C code and threads of earlier cells write, which is not limited where it
        is written. A script's output has no limit.
        """
        key = (index, name)
        if key not in self._allowances:
            lines, chars = share_of(self._num_processes)
            times = 2 if self.request.script is None else inf
            self._allowances[key] = Allowance(times * lines, times * chars, time.monotonic())
        return self._allowances[key]

    def _end_floods(self) -> None:
        """Takes the ends of what was too much for the notebook, and says what is missing."""
        lines, chars = share_of(self._num_processes)
        for (index, name), allowance in self._allowances.items():
            if not allowance.is_pending:
                continue
            self._write(index, name, allowance.end())
            told = self._dropped.get((name, index), Dropped(index, name, 0, 0, lines, chars))
            self._dropped[name, index] = replace(
                told,
                lines=told.lines + allowance.dropped_lines,
                characters=told.characters + allowance.dropped_chars,
            )

    def _finish(self, index: int, answer: object) -> None:
        if index not in self.waiting_for:
            return
        self.waiting_for.discard(index)
        self._feed(Ended(index))
        match answer:
            case CellReply():
                self._replies[index] = answer
                return
            case RequestFailed():
                error = answer.error
            case BaseException():
                said = str(answer)
                # at 0: this error caused the others' interrupts, so it sorts first
                error = ProcessError(type(answer).__name__, said, said, said, at=0.0)
            case _:
                raise TypeError(f"unexpected answer {answer!r}")
        self._replies[index] = CellReply(index, None, error, self.seconds, 0.0, 0)

    def _show_held(self) -> bool:
        """Shows rich output, and takes questions, once the lines before it are out.

        Returns:
            Whether there are more lines now.
        """
        has_merged = False
        for event in self._held.ready(
            lambda i: any(merger.is_waiting(i) for merger in self._mergers.get(i, {}).values())
        ):
            match event:
                case Question():
                    self.questions.append(event)
                case Display(index, output):
                    self.shown_at = time.monotonic()
                    self._to_sink(lambda sink, i=index, o=output: sink.display(i, o))  # type: ignore[misc]
                case ClearOutput(index, wait):
                    self._to_sink(lambda sink, i=index, w=wait: sink.clear(i, w))  # type: ignore[misc]
                case _:
                    self._merge(event)
                    has_merged = True
        return has_merged

    def _distinct_mergers(self) -> list[StreamMerger]:
        return list(dict.fromkeys(m for each in self._mergers.values() for m in each.values()))

    def _show(self, lines: list[MergedLine]) -> None:
        if lines and self.request.script is None:  # a script's lines are not asked for afterwards
            self._shown += lines
        if lines:
            self.shown_at = time.monotonic()
            self._to_sink(lambda sink: sink.lines(lines))

    def _show_live(self) -> None:
        live = [line for merger in self._distinct_mergers() for line in merger.live()]
        if live != self._live:
            self._live, self.shown_at = live, time.monotonic()
            self._to_sink(lambda sink: sink.live(live))

    def notice(self, text: str) -> None:
        """Shows a sentence of jaxnb's own beside the output."""
        self._to_sink(lambda sink: sink.notice(text))

    def show_waits(self, waits: Waits) -> None:
        """Shows where all processes wait, in the place where that was shown before."""
        self.waits, self.wait_cause = waits, waits.cause
        self._to_sink(lambda sink: sink.waits(waits))

    def end_waits(self, *, by_itself: bool = False, was_interrupted: bool = False) -> None:
        """Shows that the processes do not wait any more, if it was shown that they did.

        Args:
            by_itself: What they waited for has come, so nothing was wrong.
            was_interrupted: They are interrupted now.
        """
        if self.waits is not None:
            now = replace(self.waits, has_ended=True, was_interrupted=was_interrupted)
            self.show_waits(now)
            if by_itself:
                self.wait_cause = ""
            self.waits = None

    def _to_sink(self, show: Callable[[OutputSink], None]) -> None:
        """Shows something; a sink that fails must not leave processes unattended in a cell."""
        try:
            show(self._sink)
        except Exception as error:
            self.sink_error = error
            self._sink = NoSink()

    def still_in_cell(self, seconds: float = 0.0) -> set[int]:
        """Returns the processes that have not answered, also after :meth:`finish`.

        Args:
            seconds: How long to wait for an answer.
        """
        if self._left_in_cell is None:
            return set(self.waiting_for)
        first = self.exchange.get(seconds) if seconds else None
        for event in (first, *self.exchange.drain()):
            if isinstance(event, Reply):
                self._left_in_cell.discard(event.process_index)
        return set(self._left_in_cell)

    def finish(self) -> Collected:
        """Shows what is left, and returns all that was received.

        Processes that have not answered have an error that says so.
        """
        for event in self._arrived(0.0):
            self._take(event)
        self.end_waits()
        self._end_floods()
        self._left_in_cell = set(self.waiting_for)
        for index in sorted(self.waiting_for):
            silence = ProcessError(NO_ANSWER, f"It did not end {the_cell()}.", "", "")
            self._finish(index, CellReply(index, None, silence, self.seconds, 0.0, 0))
        has_more = True
        while has_more:
            for merger in self._distinct_mergers():
                self._show(merger.close(time.perf_counter()))
            has_more = self._show_held()
        self._show_live()
        if self._is_merged:
            self._shown = merged_again(self._shown)
        for text in dropped_texts(self._dropped.values()):
            self.notice(text)
        return Collected(
            self.request,
            {i: self._replies[i] for i in self.processes},
            frozenset(self.silent),
            {i: tuple(self._displays[i]) for i in self.processes},
            {
                name: {i: "".join(texts.get(i, ())) for i in self.processes}
                for name, texts in self._texts.items()
            },
            {
                name: "".join(f"{line.labelled()}\n" for line in self._shown if line.name == name)
                for name in self._texts
            },
            self.seconds,
        )
