"""One cell on its way through the group: its output as it comes, its result at the end."""

from __future__ import annotations

import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from jaxnb.display.labels import Outputs
from jaxnb.display.merge import MergedLine, StreamMerger
from jaxnb.model import (
    CellReply,
    CellRequest,
    ProcessError,
    RequestFailed,
    RichOutput,
    StreamChunk,
    ValueInfo,
)
from jaxnb.result import CellResult, ProcessResult
from jaxnb.transport.client import ClearOutput, Display, Event, Exchange, Reply

HELD_SECONDS = 0.5
"""How long rich output waits at most for lines that its process wrote before it."""

TICK_SECONDS = 0.05
"""How often output that waits for its twins is looked at again."""


class OutputSink(Protocol):
    """Where a running cell's output goes, as it comes."""

    def lines(self, lines: list[MergedLine]) -> None:
        """Takes lines that are final."""

    def live(self, lines: list[MergedLine]) -> None:
        """Takes the lines that are being rewritten now, all of them; they are not final."""

    def notice(self, text: str) -> None:
        """Takes a sentence of jaxnb's own about the running cell."""

    def display(self, process_index: int, output: RichOutput) -> None:
        """Takes a rich output of a process."""

    def clear(self, process_index: int, wait: bool) -> None:
        """Takes a process's wish to clear its output so far; with ``wait``, at its next."""


class NoSink:
    """Drops everything: the result holds it all the same. A base for sinks that take a part."""

    def lines(self, lines: list[MergedLine]) -> None:
        """Does nothing."""

    def live(self, lines: list[MergedLine]) -> None:
        """Does nothing."""

    def notice(self, text: str) -> None:
        """Does nothing."""

    def display(self, process_index: int, output: RichOutput) -> None:
        """Does nothing."""

    def clear(self, process_index: int, wait: bool) -> None:
        """Does nothing."""


class RunningCell:
    """Collects what the processes of one cell send.

    Args:
        request: The cell.
        exchange: Its exchange.
        processes: The indices of the processes it runs on.
        num_processes: Size of the group.
        sink: Where its output goes.
        fetch: Brings a large value from a process: process index and digest to value.
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
        fetch: Callable[[int, bytes], ValueInfo],
        interrupted: threading.Event,
        outputs: Outputs = "merged",
    ) -> None:
        self.request = request
        self.exchange = exchange
        self.waiting_for = set(processes)
        self._processes = tuple(processes)
        self._num_processes = num_processes
        self._sink = sink
        self._fetch = fetch
        self.interrupted = interrupted
        self._mergers = _mergers(self._processes, outputs)
        self._texts: Mapping[str, dict[int, list[str]]] = {
            "stdout": defaultdict(list),
            "stderr": defaultdict(list),
        }
        self._merged: dict[str, list[str]] = {"stdout": [], "stderr": []}
        self._displays: dict[int, list[RichOutput]] = defaultdict(list)
        self._replies: dict[int, CellReply] = {}
        self._live: list[MergedLine] = []
        self._held: deque[tuple[float, Display | ClearOutput]] = deque()
        self._started = time.perf_counter()
        if hasattr(sink, "first"):
            sink.first = min(self._processes)
        self.sink_error: Exception | None = None
        self.abandoned: Exception | None = None

    @property
    def seconds(self) -> float:
        """Time since the cell was sent."""
        return time.perf_counter() - self._started

    def abandon(self, reason: Exception) -> None:
        """Makes the one who waits for this cell stop, and raise ``reason``."""
        self.abandoned = reason
        self.exchange.wake()

    def step(self, timeout_seconds: float = TICK_SECONDS) -> None:
        """Takes what has come, waiting for at most ``timeout_seconds`` if nothing has."""
        event = self.exchange.get(timeout_seconds)
        # What has come in the meantime is taken together: merging by line is for people, and
        # doing it for each message would cost more than the messages.
        if event is not None:
            self._take(event)
            for more in self.exchange.drain():
                self._take(more)
        now = time.perf_counter()
        for merger in self._distinct_mergers():
            self._show(merger.drain(now))
        self._show_held(now - HELD_SECONDS)
        self._show_live()

    def _take(self, event: Event) -> None:
        match event:
            case StreamChunk(index) | Display(index) if index not in self._processes:
                pass  # output of an earlier cell's thread, on a process that this cell leaves out
            case StreamChunk(index, name, text):
                self._texts[name][index].append(text)
                if index in self._mergers:
                    self._mergers[index].feed(index, name, text, time.perf_counter())
            case Display(index, output):
                self._displays[index].append(output)
                self._held.append((time.perf_counter(), event))
            case ClearOutput():
                self._held.append((time.perf_counter(), event))
            case Reply(index, answer):
                self._finish(index, answer)

    def _finish(self, index: int, answer: object) -> None:
        if index not in self.waiting_for:
            return
        self.waiting_for.discard(index)
        if index in self._mergers:
            self._mergers[index].finish(index)
        self._replies[index] = _as_reply(index, answer, self.seconds)

    def _show_held(self, since: float) -> None:
        """Shows rich output once the lines that its process wrote before it are out."""
        while self._held:
            arrived, event = self._held[0]
            merger = self._mergers.get(event.process_index)
            if arrived > since and merger is not None and merger.is_waiting(event.process_index):
                return
            self._held.popleft()
            match event:
                case Display(index, output):
                    self._to_sink(lambda sink, i=index, o=output: sink.display(i, o))  # type: ignore[misc]
                case ClearOutput(index, wait):
                    self._to_sink(lambda sink, i=index, w=wait: sink.clear(i, w))  # type: ignore[misc]

    def _distinct_mergers(self) -> list[StreamMerger]:
        return list(dict.fromkeys(self._mergers.values()))

    def _show(self, lines: list[MergedLine]) -> None:
        if not lines:
            return
        for line in lines:
            self._merged[line.name].append(line.labelled())
        self._to_sink(lambda sink: sink.lines(lines))

    def _show_live(self) -> None:
        live = [line for merger in self._distinct_mergers() for line in merger.live()]
        if live != self._live:
            self._live = live
            self._to_sink(lambda sink: sink.live(live))

    def notice(self, text: str) -> None:
        """Shows a sentence of jaxnb's own beside the output."""
        self._to_sink(lambda sink: sink.notice(text))

    def _to_sink(self, show: Callable[[OutputSink], None]) -> None:
        """Shows something; a sink that fails must not leave processes unattended in a cell."""
        try:
            show(self._sink)
        except Exception as error:
            self.sink_error = error
            self._sink = NoSink()

    def finish(self) -> CellResult:
        """Shows what is left and returns the result of all that was received.

        Processes that have not answered have an error that says so.
        """
        for event in self.exchange.drain():
            self._take(event)
        for index in sorted(self.waiting_for):
            silence = ProcessError(
                "NoAnswer", f"process {index} has not answered; it may still be running", "", ""
            )
            self._finish(index, CellReply(index, None, silence, self.seconds, 0.0, 0))
        for merger in self._distinct_mergers():
            self._show(merger.close(time.perf_counter()))
        self._show_held(math.inf)
        self._show_live()
        return CellResult(
            cell=self.request.cell,
            code=self.request.code,
            per_process={i: self._process_result(i) for i in self._processes},
            num_processes=self._num_processes,
            seconds=self.seconds,
            stdout="".join(line + "\n" for line in self._merged["stdout"]),
            stderr="".join(line + "\n" for line in self._merged["stderr"]),
        )

    def _process_result(self, index: int) -> ProcessResult:
        reply = self._replies[index]
        return ProcessResult(
            process_index=index,
            value_info=reply.value,
            stdout="".join(self._texts["stdout"][index]),
            stderr="".join(self._texts["stderr"][index]),
            displays=tuple(self._displays[index]),
            error=reply.error,
            seconds=reply.seconds,
            compile_seconds=reply.compile_seconds,
            compiles=reply.compiles,
            fetch=lambda: self._fetch(index, reply.value.digest if reply.value else b""),
        )


def _mergers(processes: tuple[int, ...], outputs: Outputs) -> dict[int, StreamMerger]:
    """Returns who merges what, by process index."""
    if outputs == "merged":
        return dict.fromkeys(processes, StreamMerger(processes))
    shown = processes if outputs == "all" else processes[:1]
    return {index: StreamMerger([index]) for index in shown}


def _as_reply(index: int, answer: object, seconds: float) -> CellReply:
    match answer:
        case CellReply():
            return answer
        case RequestFailed(error=error):
            return CellReply(index, None, error, seconds, 0.0, 0)
        case BaseException():
            error = ProcessError(type(answer).__name__, str(answer), str(answer), str(answer))
            return CellReply(index, None, error, seconds, 0.0, 0)
    raise TypeError(f"unexpected answer {answer!r}")
