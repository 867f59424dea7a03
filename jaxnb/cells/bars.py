"""Pure: progress bars of several processes as one, while they run and when they have ended."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from jaxnb.cells.merged_line import MergedLine
from jaxnb.labels import processes_label

BAR = re.compile(r"(.*?)(\d+)%\|.*?\|\s*(\d+)?")
"""What tqdm writes: a description, how far it is, a bar, and a count."""


def bars_as_one(lines: Sequence[MergedLine]) -> list[MergedLine]:
    """Returns lines with those bars as one that differ only in how far each process is.

    It is the bar of the slowest, and names that and the fastest.
    """
    bars: dict[object, list[tuple[tuple[int, int], MergedLine]]] = {}
    for i, line in enumerate(lines):
        bar = BAR.match(line.text)
        at = (int(bar[2]), int(bar[3] or 0)) if bar else (0, 0)
        bars.setdefault((line.name, bar[1].rstrip()) if bar else i, []).append((at, line))
    return [_one_bar(those) for those in bars.values()]


def _one_bar(bars: Sequence[tuple[tuple[int, int], MergedLine]]) -> MergedLine:
    (least, slowest), (most, fastest) = (f(bars, key=lambda bar: bar[0]) for f in (min, max))
    who = frozenset().union(*(line.processes for _, line in bars))
    if least == most:
        return replace(slowest, processes=who)
    told = _apart(slowest, fastest, f" at {most[0]}%")
    return replace(slowest, processes=who, text=slowest.text + told)


_ENDED = re.compile(r"(?P<start>.*?100%\|.*?\| *(?P<count>\d+)/(?P=count)) \[.*")
_SPEED = re.compile(r"(?P<number>[\d.]+)(?P<is_inverse>s/)?[^,/\]]*(?:/s)?\]$")


def ended_as_one(lines: Sequence[MergedLine]) -> list[MergedLine]:
    """Returns a cell's lines, of which bars that have ended on several processes read the same.

    The first ones of all processes with one description and count do, then the second ones. They
    read as the slowest does, with the fastest named.
    """
    seen: Counter[tuple[int, str]] = Counter()
    bars: dict[tuple[str, int], list[int]] = {}
    for place, line in enumerate(lines):
        if (bar := _ENDED.fullmatch(line.text)) is not None:
            times = {seen[p, bar["start"]] for p in line.processes}
            seen.update((p, bar["start"]) for p in line.processes)
            if len(times) == 1:
                bars.setdefault((bar["start"], times.pop()), []).append(place)
    found = list(lines)
    for places in bars.values():
        those = sorted((lines[place] for place in places), key=_speed)
        slowest, fastest = those[0], those[-1]
        told = "" if slowest.text == fastest.text else _apart(slowest, fastest)
        for place in places:
            found[place] = replace(lines[place], text=slowest.text + told)
    return found


def _apart(slowest: MergedLine, fastest: MergedLine, how: str = "") -> str:
    return (
        f" · slowest {processes_label(sorted(slowest.processes))}, "
        f"fastest {processes_label(sorted(fastest.processes))}{how}"
    )


def _speed(bar: MergedLine) -> float:
    """Returns how many steps a second a bar has made; 0 if it does not tell."""
    found = _SPEED.search(bar.text)
    number = float(found["number"]) if found is not None else 0.0
    return 1 / number if number and found is not None and found["is_inverse"] else number
