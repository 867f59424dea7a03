"""Statistics, alternating runs, the table and its JSON."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import jaxnb

T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """Repeated measurements of one thing."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    def quantile(self, fraction: float) -> float:
        """The smallest value that at least ``fraction`` of the values do not exceed."""
        ordered = sorted(self.values)
        return ordered[max(0, math.ceil(fraction * len(ordered)) - 1)]

    def as_json(self) -> dict[str, Any]:
        """Median, extremes, 90th percentile, count, and the values themselves."""
        return {
            "median": self.median,
            "min": min(self.values),
            "max": max(self.values),
            "p90": self.quantile(0.9),
            "count": len(self.values),
            "values": list(self.values),
        }


@dataclass(frozen=True)
class Target:
    """What a row has to reach.

    Attributes:
        times_peer: The median is at most this many times the peer's, from the same run.
        limit: The median is at most this, in the row's unit.
    """

    times_peer: float | None = None
    limit: float | None = None

    def met(self, ours: Summary | None, peer: Summary | None) -> bool | None:
        """Whether the target is met; None if there is none or a side is missing."""
        checks = []
        if self.times_peer is not None:
            if ours is None or peer is None:
                return None
            checks.append(ours.median <= self.times_peer * peer.median)
        if self.limit is not None:
            if ours is None:
                return None
            checks.append(ours.median <= self.limit)
        return all(checks) if checks else None

    def text(self, peer_name: str, unit: str) -> str:
        """The target for people."""
        parts = []
        if self.times_peer is not None:
            parts.append(f"≤ {self.times_peer:.3g} × {peer_name}")
        if self.limit is not None:
            parts.append(f"≤ {self.limit:g} {unit}")
        return ", ".join(parts) or "-"


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        work: What was measured.
        unit: Unit of the values.
        ours: jaxnb's values.
        peer: The peer's values from the same run.
        peer_name: Who the peer is.
        target: What ours has to reach.
        delivered: Whether the work's result was as asked for; without it no target is met.
        note: One line under the row.
        details: More, for the JSON only.
    """

    work: str
    unit: str
    ours: Summary | None
    peer: Summary | None
    peer_name: str = "recipe"
    target: Target = field(default_factory=Target)
    delivered: bool = True
    note: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        """Our median by the peer's."""
        if self.ours is None or self.peer is None or self.peer.median == 0:
            return None
        return self.ours.median / self.peer.median

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if there is none or a side is missing."""
        met = self.target.met(self.ours, self.peer)
        return met and self.delivered

    def as_json(self) -> dict[str, Any]:
        """The row as plain data."""
        return {
            "work": self.work,
            "unit": self.unit,
            "ours": self.ours and self.ours.as_json(),
            "peer": self.peer and self.peer.as_json(),
            "peer_name": self.peer_name,
            "ratio": self.ratio,
            "target": self.target.text(self.peer_name, self.unit),
            "delivered": self.delivered,
            "met": self.met,
            "note": self.note,
            "details": dict(self.details),
        }


def summarize(values: list[float] | None) -> Summary | None:
    """A summary, or None where there is nothing to summarize."""
    return Summary(tuple(values)) if values else None


def say(text: str) -> None:
    """Progress, on standard error."""
    print(text, file=sys.stderr, flush=True)


def alternate(sides: Mapping[str, Callable[[], T]], repetitions: int) -> dict[str, list[T]]:
    """Run the sides in turn, A B A B …, so that a slow spell of the machine hits both."""
    results: dict[str, list[T]] = {name: [] for name in sides}
    for _ in range(repetitions):
        for name, measure in sides.items():
            results[name].append(measure())
    return results


def machine_facts() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_1min_at_start": os.getloadavg()[0],
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "jaxnb": jaxnb.__version__,
        **{name: version(name) for name in ("jax", "jaxlib", "ipyparallel", "ipykernel")},
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def _cell(summary: Summary | None) -> str:
    if summary is None:
        return "-"
    if len(summary.values) == 1:
        return _number(summary.median)
    if len(summary.values) >= 20:
        return f"{_number(summary.median)} (p90 {_number(summary.quantile(0.9))})"
    low, high = min(summary.values), max(summary.values)
    return f"{_number(summary.median)} ({_number(low)}–{_number(high)})"


def table(rows: list[Row]) -> str:
    """All rows as aligned text: median (min–max), or median (p90) of many values."""
    lines = [("work", "unit", "jaxnb", "peer", "ratio", "target", "met")]
    for row in rows:
        met = {True: "yes", False: "NO", None: "-"}[row.met]
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        peer = "-" if row.peer is None else f"{row.peer_name} {_cell(row.peer)}"
        target = row.target.text(row.peer_name, row.unit)
        lines.append((row.work, row.unit, _cell(row.ours), peer, ratio, target, met))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = []
    for i, line in enumerate(lines):
        padded = (word.ljust(width) for word, width in zip(line, widths, strict=True))
        text.append("  ".join(padded).rstrip())
        if i == 0:
            text.append("  ".join("-" * width for width in widths))
        elif rows[i - 1].note:
            text.append(f"    {rows[i - 1].note}")
    return "\n".join(text)


def write_json(path: Path, rows: list[Row], facts: Mapping[str, Any]) -> None:
    """Write rows and machine facts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = {"machine": dict(facts), "rows": [row.as_json() for row in rows]}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
