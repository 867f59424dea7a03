"""Pure: the progress bars of N processes as one while they run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from jaxnb.cells.merge_output import MergedLine
from jaxnb.labels import processes_label

MOST_CHARS = 1000
"""Longer lines are no bars."""

_BAR = re.compile(r"(.*?)(\d+)%\|.*?\|\s*(\d+)?")
"""What tqdm writes: a description, how far it is, a bar, and a count."""


def is_bar(line: MergedLine) -> bool:
    """Whether a line is a progress bar."""
    text = line.text
    return "%|" in text and len(text) <= MOST_CHARS and _BAR.match(text) is not None


def _meet(one: MergedLine, other: MergedLine) -> bool:
    return not one.processes.isdisjoint(other.processes)


def _bar_of(line: MergedLine) -> tuple[str, ...]:
    """Returns a bar's stream, its description, and how far it is; nothing for another line."""
    bar = _BAR.match(line.text) if is_bar(line) else None
    if bar is None:
        return ()
    return line.name, bar[1].rstrip(), bar[2], bar[3] or ""


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
