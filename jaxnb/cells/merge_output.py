"""Pure: the text streams of N processes to one stream of labelled lines.

Time is passed in; nothing here sleeps, reads a clock or prints.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import get_args

from jaxnb.display.lines import Alignment, LineAssembler, LineQueue, common_prefix, together
from jaxnb.labels import format_count, plural, processes_label, ranks_label
from jaxnb.model.cells import StreamName

MOST_CHARS = 1000
"""Longer lines are no bars."""

_BAR = re.compile(r"(.*?)(\d+)%\|.*?\|\s*(\d+)?")
"""What tqdm writes: a description, how far it is, a bar, and a count."""


def is_bar(line: MergedLine) -> bool:
    """Whether a line is a progress bar."""
    return _bar_of(line) is not None


def _bar_of(line: MergedLine) -> re.Match[str] | None:
    """Returns a bar's description, percentage and count; None for another line."""
    text = line.text
    return _BAR.match(text) if "%|" in text and len(text) <= MOST_CHARS else None


def bars_as_one(lines: Sequence[MergedLine]) -> list[MergedLine]:
    """Returns lines with those bars as one that differ only in how far each process is.

    It is the bar of the slowest, and names that and the fastest.
    """
    bars: dict[object, list[tuple[tuple[int, int], MergedLine]]] = {}
    for i, line in enumerate(lines):
        bar = _bar_of(line)
        at = (int(bar[2]), int(bar[3] or 0)) if bar else (0, 0)
        key = (line.name, bar[1].rstrip()) if bar else i
        bars.setdefault(key, []).append((at, line))
    return [_one_bar(those) for those in bars.values()]


def _one_bar(bars: Sequence[tuple[tuple[int, int], MergedLine]]) -> MergedLine:
    (least, slowest), (most, fastest) = (f(bars, key=lambda bar: bar[0]) for f in (min, max))
    who = frozenset().union(*(line.processes for _, line in bars))
    # One and the next of a process are not compared.
    if least == most or not slowest.processes.isdisjoint(fastest.processes):
        return replace(slowest, processes=who)
    told = (
        f" · slowest {processes_label(sorted(slowest.processes))}, "
        f"fastest {processes_label(sorted(fastest.processes))} at {most[0]}%"
    )
    return replace(slowest, processes=who, text=slowest.text + told)


@dataclass(frozen=True, slots=True)
class MergedLine:
    """One line, with who wrote it.

    Attributes:
        name: The stream.
        processes: Who wrote it; empty for a notice of jaxnb's own.
        text: The line without its newline; colours are still in it.
        label_width: Columns that the label is padded to.
    """

    name: StreamName
    processes: frozenset[int]
    text: str
    label_width: int = field(default=0, compare=False, repr=False)

    @property
    def label(self) -> str:
        """``"[0-3]"``, padded; empty for a notice."""
        if not self.processes:
            return ""
        return f"[{ranks_label(self.processes)}]".ljust(self.label_width)

    def labelled(self) -> str:
        """Returns ``"[0-3] step 10 loss 0.31"``."""
        return f"{self.label} {self.text}" if self.processes else self.text


LINES_SHOWN = 1_000
"""So many lines of a cell are shown as they come, and so many of the last ones at its end."""


class LineLimiter:
    """Passes the first lines through, then keeps only the last ones for the end.

    What is not shown is counted, and said: when the first lines are used up, and at the end.
    """

    def __init__(
        self,
        head: int = LINES_SHOWN,
        tail: int = LINES_SHOWN,
        max_chars: int = 10_000,
        holder: str = "result",
    ) -> None:
        """Prepares to pass lines.

        Args:
            head: How many lines to pass; with none, nothing is said before the end.
            tail: How many of the last lines to keep for the end.
            max_chars: Longer lines are cut.
            holder: The name of the result that has all lines, for the notice.
        """
        self._holder = holder
        self._left = head
        self._announce = head > 0
        self._max_chars = max_chars
        self._tail: deque[MergedLine] = deque(maxlen=tail)
        self._dropped = Counter[StreamName]()

    @property
    def dropped(self) -> int:
        """How many lines are not shown so far."""
        return self._dropped.total()

    def feed(self, lines: Iterable[MergedLine]) -> list[MergedLine]:
        """Takes merged lines and returns those to show now."""
        shown: list[MergedLine] = []
        for line in lines:
            if self._left > 0:
                self._left -= 1
                shown.append(self.cut(line))
                continue
            if self._announce:
                self._announce = False
                shown.append(self._announcement(line.name))
            if len(self._tail) == self._tail.maxlen:
                self._dropped[self._tail[0].name if self._tail else line.name] += 1
            self._tail.append(line)
        return shown

    def _announcement(self, name: StreamName) -> MergedLine:
        kept = self._tail.maxlen
        what = f"; the last {format_count(kept)} are shown at the end" if kept else ", not shown"
        # Whether the result will hold all of them is known at the end only.
        text = f"… more lines follow{what}"
        return MergedLine(name, frozenset(), text)

    def kept(self) -> list[MergedLine]:
        """Returns the notice of what is not shown, if any, and the lines kept for the end."""
        shown = [self.cut(line) for line in self._tail]
        if self.dropped:
            where = " and ".join(
                f"`{self._holder}.{name}`" for name in sorted(self._dropped, reverse=True)
            )
            verb = "hold" if len(self._dropped) > 1 else "holds"
            notice = f"… {plural(self.dropped, 'line')} not shown, {where} {verb} them"
            name: StreamName = "stdout" if "stdout" in self._dropped else "stderr"
            shown.insert(0, MergedLine(name, frozenset(), notice))
        return shown

    def finish(self) -> list[MergedLine]:
        """Returns what :meth:`kept` does, and forgets it."""
        shown = self.kept()
        self._tail.clear()
        self._dropped.clear()
        return shown

    def cut(self, line: MergedLine) -> MergedLine:
        """Returns the line, its end replaced by a count of characters if it is too long."""
        excess = len(line.text) - self._max_chars
        if excess <= 0:
            return line
        # Reset colours: the sequence that would have done so may be in what is cut off.
        reset = "\x1b[0m" if "\x1b[" in line.text else ""
        kept = line.text[: self._max_chars]
        return replace(line, text=f"{kept}{reset}… {format_count(excess)} characters not shown")


IN_STEP_SECONDS = 0.5
"""A process that wrote something so recently is on its way, and will say the line soon."""

IN_STEP_GRACE_SECONDS = 3.0
"""How long a line waits for such a process: with more processes than cores, one that prints as
fast as the others is up to a few time slices behind."""

ROW_SECONDS = 0.1
"""How long to hold lines that differ on all processes: the next piece of text may bring the same
line from another process."""

FLOOD_LINES = 500
"""With more lines waiting than anyone can read, merging them is worth a longer wait."""

MOST_AGAIN = 10_000
"""More lines are not merged once more when the cell has ended: that would take a second or two."""


@dataclass(slots=True)
class _Process:
    queue: LineQueue
    lines: LineAssembler = field(default_factory=LineAssembler)
    fed: float = -inf


class StreamMerger:
    """Merges what N processes write to one stream into lines that say who wrote them.

    The same line from several processes comes out once, with all of them; lines that differ
    come out each, in the order of the processes. The lines of a process never change their order,
    none is lost and none comes twice. A line that all unfinished processes have reached comes out
    at once; otherwise it waits for the others, at most ``grace_seconds``, or
    :data:`IN_STEP_GRACE_SECONDS` while those others are writing too.

    A twin that arrives after its line came out is a line of its own, until :func:`merged_again`.
    Processes whose lines are more than :data:`~jaxnb.display.lines.LOOK_AHEAD` apart are not lined
    up.

    Args:
        name: The stream.
        processes: Their process indices.
        grace_seconds: How long a line waits for the other processes.
    """

    def __init__(
        self, name: StreamName, processes: Iterable[int], *, grace_seconds: float = 0.25
    ) -> None:
        self._name = name
        self._grace_seconds = grace_seconds
        self._processes = {p: _Process(LineQueue(p)) for p in sorted(set(processes))}
        self._last = -inf
        self._first = inf

    def feed(self, process_index: int, text: str, now: float) -> None:
        """Takes a chunk of text that arrived at ``now``, cut anywhere.

        Raises:
            KeyError: The process is not one of those being merged.
        """
        process = self._processes[process_index]
        process.queue.finished = False
        self._last = now
        if text:
            process.fed = now
            self._first = min(self._first, now)
        lines = process.lines.feed(text, process.queue.take_back)
        if lines:
            process.queue.extend(together(lines), now)

    def drain(self, now: float, about: float = inf) -> list[MergedLine]:
        """Returns, and forgets, the lines that can be decided at ``now``.

        Args:
            now: The time.
            about: Return as soon as there are so many; a few more may come.
        """
        is_flood = any(len(p.queue) > FLOOD_LINES for p in self._processes.values())
        is_patient = is_flood or self._someone_is_on_the_way(now)
        grace = IN_STEP_GRACE_SECONDS if is_patient else self._grace_seconds
        return self._drain(now - grace, now - ROW_SECONDS, about)

    def is_waiting(self, process_index: int) -> bool:
        """Whether complete lines of this process have not come out yet."""
        return bool(self._processes[process_index].queue)

    def _someone_is_on_the_way(self, now: float) -> bool:
        late = [p for p in self._processes.values() if not p.queue and not p.queue.finished]
        # One that has written nothing yet is as far as the first who has.
        return any(now - max(p.fed, self._first) < IN_STEP_SECONDS for p in late)

    def end_line(self, process_index: int) -> None:
        """Ends the line that this process is writing, as if it had written its newline."""
        process = self._processes[process_index]
        process.queue.extend(together(process.lines.finish()), self._last)

    def finish(self, process_index: int) -> None:
        """Says that this process writes nothing more: what it left open counts as lines."""
        self.end_line(process_index)
        self._processes[process_index].queue.finished = True

    def close(self, now: float) -> list[MergedLine]:
        """Finishes every process and returns all that is left."""
        self._last = now
        for process_index in self._processes:
            self.finish(process_index)
        return self._drain(inf, inf, inf)

    def live(self) -> list[MergedLine]:
        """Returns the lines still being written: progress bars, and lines without an end.

        They are not forgotten: each comes out of :meth:`drain` when it is complete.
        """
        rows = {p: process.lines.open_rows() for p, process in self._processes.items()}
        lines = []
        for k in range(max(map(len, rows.values()), default=0)):
            said_by: dict[str, list[int]] = {}
            for p, texts in rows.items():
                if k < len(texts):
                    said_by.setdefault(texts[k], []).append(p)
            lines += [MergedLine(self._name, frozenset(p), text) for text, p in said_by.items()]
        return lines

    def _lines(self, processes: frozenset[int], text: str) -> list[MergedLine]:
        return [MergedLine(self._name, processes, each) for each in text.split("\n")]

    def _drain(self, cutoff: float, row_cutoff: float, about: float) -> list[MergedLine]:
        out: list[MergedLine] = []
        while len(out) < about:
            queues = [p.queue for p in self._processes.values() if p.queue or not p.queue.finished]
            ready = [queue for queue in queues if queue]
            if not ready:
                return out
            if len(ready) == len(queues):
                if agreed := common_prefix(queues):
                    self._show_agreed(queues, int(min(agreed, about)), out)
                    continue
            elif not any(queue.expired(cutoff) for queue in ready):
                # Someone may still say any of these lines.
                return out
            if not self._align(queues, (cutoff, row_cutoff), out):
                return out
        return out

    def _show_agreed(self, queues: list[LineQueue], count: int, out: list[MergedLine]) -> None:
        everyone = frozenset(queue.process_index for queue in queues)
        for text in queues[0].peek(0, count):
            out += self._lines(everyone, text)
        for queue in queues:
            queue.pop(count)

    def _align(
        self, queues: list[LineQueue], cutoffs: tuple[float, float], out: list[MergedLine]
    ) -> bool:
        sets: dict[tuple[int, ...], frozenset[int]] = {}

        def emit(positions: tuple[int, ...], text: str) -> None:
            processes = sets.get(positions)
            if processes is None:
                processes = frozenset(queues[i].process_index for i in positions)
                sets[positions] = processes
            out.extend(self._lines(processes, text))

        return Alignment(queues, *cutoffs, emit).run()


def stream_mergers(processes: Iterable[int]) -> dict[StreamName, StreamMerger]:
    """Returns what merges standard output, and standard error, of processes.

    They are merged apart: a process's kernel sends each by itself, in pieces whose order does not
    tell which line was written first.
    """
    return {name: StreamMerger(name, processes) for name in get_args(StreamName)}


def merged_again(lines: list[MergedLine]) -> list[MergedLine]:
    """Returns a cell's lines, merged once more when all have come, each stream by itself.

    Equal lines that came further apart than lines wait for each other are one then. Within one
    stream of a process lines keep their order.
    """
    everyone = {process for line in lines for process in line.processes}
    of_some = [(each.name, each.text) for each in lines if len(each.processes) < len(everyone)]
    if len({*of_some}) == len(of_some) or len(lines) > MOST_AGAIN:
        return lines
    mergers = stream_mergers(everyone)
    for line in lines:
        for process in line.processes:
            mergers[line.name].feed(process, f"{line.text}\n", 0.0)
    again = [line for merger in mergers.values() for line in merger.close(0.0)]
    return min(lines, again, key=len)
