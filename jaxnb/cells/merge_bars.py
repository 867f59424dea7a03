"""Pure: the progress bars of N processes as one, while they run and when they have ended."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from jaxnb.cells.merge_output import MergedLine, StreamMerger
from jaxnb.labels import processes_label

MOST_HELD = 16
"""So many bars wait for other processes to end them, too; with more the first ones come out."""

MOST_CHARS = 1000
"""Longer lines are no bars."""

_BAR = re.compile(r"(.*?)(\d+)%\|.*?\|\s*(\d+)?")
"""What tqdm writes: a description, how far it is, a bar, and a count."""

_TIMES = re.compile(r"\[[\d:]+<[\d:?]+, *[\d.?]+[^],]*")
"""A bar's time, the time left and the rate."""

_TIMES_AT_END = re.compile(rf"{_TIMES.pattern}(, [^]]*)?\]$")


class BarMerger(StreamMerger):
    """Merges streams, with the last lines of a progress bar as one, if only times and rates differ.

    It is the line of the process that ended its bar last. It comes when no other process is at that
    bar, or before the next line, on that stream, of a process that has ended it.
    """

    def __init__(self, processes: Iterable[int]) -> None:
        self._processes = frozenset(processes)
        self._ended: list[tuple[tuple[str, ...], MergedLine]] = []  # each with what it is a bar of
        super().__init__(self._processes)

    def drain(self, now: float, about: float = inf) -> list[MergedLine]:
        """Returns, and forgets, the lines that can be decided at ``now``."""
        return self._with_bars(super().drain(now, about))

    def close(self, now: float) -> list[MergedLine]:
        """Finishes every process and returns all that is left."""
        return self._with_bars(super().close(now))

    def live(self) -> list[MergedLine]:
        """Returns the lines still being written, and bars that others are still at."""
        return [*super().live(), *(line for _, line in self._ended)]

    def _with_bars(self, lines: list[MergedLine]) -> list[MergedLine]:
        if not self._ended and not any("%|" in line.text for line in lines):
            return lines
        found: list[MergedLine] = []
        for line in lines:
            bar = _bar_of(line)
            if bar and _TIMES_AT_END.search(line.text):
                self._end(bar, line)
                found += self._take(self._ended[:-MOST_HELD])
            else:
                before = [e for e in self._ended if e[1].name == line.name and _meet(e[1], line)]
                found += [*self._take(before), line]
        rows = [(_bar_of(row), row) for row in super().live()] if self._ended else []
        return found + self._take([e for e in self._ended if not self._is_awaited(*e, rows)])

    def _end(self, bar: tuple[str, ...], line: MergedLine) -> None:
        for i, (other, each) in enumerate(self._ended):
            if other == bar and not _meet(each, line):
                self._ended[i] = bar, replace(line, processes=each.processes | line.processes)
                return
        self._ended.append((bar, line))

    def _take(self, ended: list[tuple[tuple[str, ...], MergedLine]]) -> list[MergedLine]:
        if ended:
            self._ended = [each for each in self._ended if each not in ended]
        return [line for _, line in ended]

    def _is_awaited(
        self,
        bar: tuple[str, ...],
        line: MergedLine,
        rows: Sequence[tuple[tuple[str, ...], MergedLine]],
    ) -> bool:
        """Whether another process is at a bar, or has written lines that are not out yet.

        Args:
            bar: The bar.
            line: Its last line.
            rows: The lines that are still being written, and what they are bars of.
        """
        if any(self.is_waiting(p) for p in self._processes - line.processes):
            return True
        return any(other[:2] == bar[:2] and not _meet(row, line) for other, row in rows)


def is_bar(line: MergedLine) -> bool:
    """Whether a line is a progress bar."""
    text = line.text
    return "%|" in text and len(text) <= MOST_CHARS and _BAR.match(text) is not None


def _meet(one: MergedLine, other: MergedLine) -> bool:
    return not one.processes.isdisjoint(other.processes)


def _bar_of(line: MergedLine) -> tuple[str, ...]:
    """Returns a bar's stream, its description, how far it is, and what it says but for times.

    Returns nothing for another line.
    """
    bar = _BAR.match(line.text) if is_bar(line) else None
    if bar is None:
        return ()
    return line.name, bar[1].rstrip(), bar[2], bar[3] or "", _TIMES.sub("", line.text)


def bars_as_one(lines: Sequence[MergedLine]) -> list[MergedLine]:
    """Returns lines with those bars as one that differ only in how far each process is.

    It is the bar of the slowest, and names that and the fastest.
    """
    bars: dict[object, list[tuple[tuple[int, int], MergedLine]]] = {}
    for i, line in enumerate(lines):
        bar = _bar_of(line)
        at = (int(bar[2]), int(bar[3] or 0)) if bar else (0, 0)
        bars.setdefault(bar[:2] or i, []).append((at, line))
    return [_one_bar(those) for those in bars.values()]


def _one_bar(bars: Sequence[tuple[tuple[int, int], MergedLine]]) -> MergedLine:
    (least, slowest), (most, fastest) = (f(bars, key=lambda bar: bar[0]) for f in (min, max))
    who = frozenset().union(*(line.processes for _, line in bars))
    if least == most or _meet(slowest, fastest):  # one and the next of a process
        return replace(slowest, processes=who)
    told = (
        f" · slowest {processes_label(sorted(slowest.processes))}, "
        f"fastest {processes_label(sorted(fastest.processes))} at {most[0]}%"
    )
    return replace(slowest, processes=who, text=slowest.text + told)
