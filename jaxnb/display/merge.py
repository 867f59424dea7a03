"""Pure: the text streams of N processes to one stream of labelled lines.

Time is passed in; nothing here sleeps, reads a clock or prints.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

from jaxnb.display._align import Alignment, Item, LineQueue, common_prefix
from jaxnb.display._limit import LineLimiter
from jaxnb.display._lines import LineAssembler
from jaxnb.display._merged import MergedLine
from jaxnb.model import StreamName

__all__ = ["LineLimiter", "MergedLine", "StreamMerger"]
IN_STEP_SECONDS = 0.5
"""A process that wrote something so recently is on its way, and will say the line soon."""

IN_STEP_GRACE_SECONDS = 3.0
"""How long a line waits for such a process: with more processes than cores, one that prints as
fast as the others is up to a few time slices behind."""

FLOOD_LINES = 500
"""With more lines waiting than anyone can read, merging them is worth a longer wait."""

_NAMES: tuple[StreamName, ...] = ("stdout", "stderr")


@dataclass(slots=True)
class _Process:
    queue: LineQueue
    fed: float = -inf
    streams: dict[StreamName, LineAssembler] = field(
        default_factory=lambda: {name: LineAssembler() for name in _NAMES}
    )

    def add(self, name: StreamName, lines: list[str], now: float) -> None:
        items: list[Item] = [*lines] if name == "stdout" else [(name, line) for line in lines]
        self.queue.extend(items, now)


class StreamMerger:
    """Merges what N processes write into lines that say who wrote them.

    The same line from several processes comes out once, with all of them; lines that differ
    come out each. A process's own lines never change their order, none is lost and none
    comes twice. A line that all unfinished processes have reached comes out at once;
    otherwise it waits for the others, at most ``grace_seconds``, or
    :data:`IN_STEP_GRACE_SECONDS` while those others are writing too.

    A twin that arrives after its line came out is simply a line of its own. Processes whose
    lines are more than :data:`~jaxnb.display._align.LOOK_AHEAD` apart are not lined up.
    """

    def __init__(
        self, processes: Iterable[int], *, grace_seconds: float = 0.25, label_width: int = 0
    ) -> None:
        """Prepares to merge.

        Args:
            processes: Their process indices.
            grace_seconds: How long a line waits for the other processes.
            label_width: Labels are padded to this many columns.
        """
        self._grace_seconds = grace_seconds
        self._label_width = label_width
        self._processes = {p: _Process(LineQueue(p)) for p in sorted(set(processes))}
        self._last = -inf
        self._first = inf

    def feed(self, process_index: int, name: StreamName, text: str, now: float) -> None:
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
        lines = process.streams[name].feed(text, lambda: process.queue.take_back(name))
        if lines:
            process.add(name, lines, now)

    def drain(self, now: float) -> list[MergedLine]:
        """Returns, and forgets, the lines that can be decided at ``now``."""
        patient = self._is_flood() or self._someone_is_on_the_way(now)
        return self._drain(now - (IN_STEP_GRACE_SECONDS if patient else self._grace_seconds))

    def _someone_is_on_the_way(self, now: float) -> bool:
        late = [p for p in self._processes.values() if not p.queue and not p.queue.finished]
        # One that has written nothing yet is as far as the first who has.
        return any(now - max(p.fed, self._first) < IN_STEP_SECONDS for p in late)

    def _is_flood(self) -> bool:
        return any(len(p.queue) > FLOOD_LINES for p in self._processes.values())

    def finish(self, process_index: int) -> None:
        """Says that this process writes nothing more: what it left open counts as lines."""
        process = self._processes[process_index]
        for name in _NAMES:
            process.add(name, process.streams[name].finish(), self._last)
        process.queue.finished = True

    def close(self, now: float) -> list[MergedLine]:
        """Finishes every process and returns all that is left."""
        self._last = now
        for process_index in self._processes:
            self.finish(process_index)
        return self._drain(inf)

    def live(self) -> list[MergedLine]:
        """Returns the lines still being written: progress bars, and lines without an end.

        They are not forgotten: each comes out of :meth:`drain` when it is complete.
        """
        lines: list[MergedLine] = []
        for name in _NAMES:
            rows = {p: process.streams[name].open_rows() for p, process in self._processes.items()}
            for k in range(max(map(len, rows.values()), default=0)):
                said_by: dict[str, list[int]] = {}
                for p, texts in rows.items():
                    if k < len(texts):
                        said_by.setdefault(texts[k], []).append(p)
                lines += [self._line(name, frozenset(p), text) for text, p in said_by.items()]
        return lines

    def _line(self, name: StreamName, processes: frozenset[int], text: str) -> MergedLine:
        return MergedLine(name, processes, text, self._label_width)

    def _drain(self, cutoff: float) -> list[MergedLine]:
        out: list[MergedLine] = []
        while True:
            queues = [p.queue for p in self._processes.values() if p.queue or not p.queue.finished]
            ready = [queue for queue in queues if queue]
            if not ready:
                return out
            if len(ready) == len(queues):
                if agreed := common_prefix(queues):
                    self._show_agreed(queues, agreed, out)
                    continue
            elif not any(queue.expired(cutoff) for queue in ready):
                # Someone may still say any of these lines.
                return out
            if not self._align(queues, cutoff, out):
                return out

    def _show_agreed(self, queues: list[LineQueue], count: int, out: list[MergedLine]) -> None:
        everyone = frozenset(queue.process_index for queue in queues)
        for item in queues[0].peek(0, count):
            if isinstance(item, str):
                out.append(MergedLine("stdout", everyone, item, self._label_width))
            else:
                out.append(MergedLine(item[0], everyone, item[1], self._label_width))
        for queue in queues:
            queue.pop(count)

    def _align(self, queues: list[LineQueue], cutoff: float, out: list[MergedLine]) -> bool:
        sets: dict[tuple[int, ...], frozenset[int]] = {}
        width = self._label_width

        def emit(positions: tuple[int, ...], item: Item) -> None:
            processes = sets.get(positions)
            if processes is None:
                processes = frozenset(queues[i].process_index for i in positions)
                sets[positions] = processes
            if isinstance(item, str):
                out.append(MergedLine("stdout", processes, item, width))
            else:
                out.append(MergedLine(item[0], processes, item[1], width))

        return Alignment(queues, cutoff, emit).run()
