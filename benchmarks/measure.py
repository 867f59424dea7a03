"""Rows of the table, runs by turns, and fresh Python processes that measure something."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.processes import TOKEN_VARIABLE, end_all, marked

T = TypeVar("T")

ROOT = Path(__file__).resolve().parents[1]
CHILD_TIMEOUT_SECONDS = 1800.0


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        work: What was measured.
        unit: Unit of the values.
        ours: jaxnb's values.
        peer: The peer's values from the same run.
        peer_name: Who the peer is.
        most: Our median is to be at most this many times the peer's.
        limit: Our median is to be at most this, in the row's unit.
        is_whole: Whether the work's result was as asked for; without it no target is met.
        note: One line under the row.
    """

    work: str
    unit: str
    ours: list[float]
    peer: list[float]
    peer_name: str = "recipe"
    most: float | None = None
    limit: float | None = None
    is_whole: bool = True
    note: str = ""

    @property
    def ratio(self) -> float | None:
        """Our median by the peer's."""
        if not self.ours or not self.peer:
            return None
        return statistics.median(self.ours) / statistics.median(self.peer)

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None if there is none or a side is missing."""
        met = [self.ratio <= self.most] if self.most is not None and self.ratio is not None else []
        if self.limit is not None and self.ours:
            met.append(statistics.median(self.ours) <= self.limit)
        return self.is_whole and all(met) if met else None

    @property
    def target(self) -> str:
        """The target for people."""
        parts = [f"≤ {self.most:.3g} × {self.peer_name}"] if self.most is not None else []
        parts += [f"≤ {self.limit:g} {self.unit}"] if self.limit is not None else []
        return ", ".join(parts) or "-"


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


@contextlib.contextmanager
def own_processes() -> Iterator[dict[str, str]]:
    """Give an environment for child processes; whoever carries it is ended at the exit.

    The environment has a token of its own and a fresh ``IPYTHONDIR``, so that nothing is
    read from or left in the user's profile.
    """
    token = uuid.uuid4().hex
    home = tempfile.mkdtemp(prefix="jaxnb-bench-")
    python_path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    try:
        own = {TOKEN_VARIABLE: token, "IPYTHONDIR": home, "PYTHONPATH": python_path}
        yield os.environ | own
    finally:
        for _ in range(5):  # What is ended may have been about to start another process.
            if not (left := marked(token)):
                break
            end_all(left)
        shutil.rmtree(home, ignore_errors=True)


def run_reporting(module: str, *arguments: str) -> Any:
    """Run ``python -m MODULE REPORT ARGUMENTS...``; return what it wrote to REPORT as JSON.

    Whatever the process leaves running is ended.

    Raises:
        RuntimeError: It failed, or did not end in time; the message ends with what it printed.
    """
    with tempfile.TemporaryDirectory(prefix="jaxnb-bench-") as folder, own_processes() as env:
        report_path, log_path = Path(folder, "report.json"), Path(folder, "log")
        with log_path.open("w") as log:
            try:
                subprocess.run(
                    [sys.executable, "-m", module, str(report_path), *arguments],
                    cwd=ROOT,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    timeout=CHILD_TIMEOUT_SECONDS,
                    check=True,
                )
            except subprocess.SubprocessError as error:
                tail = "\n".join(log_path.read_text(errors="replace").splitlines()[-25:])
                raise RuntimeError(f"{error}\n{tail}") from None
        return json.loads(report_path.read_text())


def machine_facts() -> dict[str, Any]:
    """What the figures depend on."""
    names = ("jaxnb", "jax", "jaxlib", "ipyparallel", "ipykernel")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load_1min_at_start": os.getloadavg()[0],
        "python": platform.python_version(),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        **{name: version(name) for name in names},
    }


def _number(value: float) -> str:
    """Three significant digits, without an exponent."""
    decimals = max(0, 2 - math.floor(math.log10(abs(value)))) if value else 0
    return f"{value:.{decimals}f}"


def _cell(values: list[float]) -> str:
    """The median, with the extremes of few values and the 90th percentile of many."""
    if not values:
        return "-"
    middle, ordered = _number(statistics.median(values)), sorted(values)
    if len(values) >= 20:
        return f"{middle} (p90 {_number(ordered[math.ceil(0.9 * len(values)) - 1])})"
    return f"{middle} ({_number(ordered[0])}–{_number(ordered[-1])})" if len(values) > 1 else middle


def table(rows: list[Row]) -> str:
    """All rows as aligned text."""
    lines = [("work", "unit", "jaxnb", "peer", "ratio", "target", "met")]
    for row in rows:
        met = {True: "yes", False: "NO", None: "-"}[row.met]
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        peer = f"{row.peer_name} {_cell(row.peer)}" if row.peer else "-"
        lines.append((row.work, row.unit, _cell(row.ours), peer, ratio, row.target, met))
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    text = []
    for line, note in zip(lines, ["-" * sum(widths), *(row.note for row in rows)], strict=True):
        padded = (word.ljust(width) for word, width in zip(line, widths, strict=True))
        text += ["  ".join(padded).rstrip(), *([f"    {note}"] if note else [])]
    return "\n".join(text)


def write_json(path: Path, rows: list[Row], facts: Mapping[str, Any]) -> None:
    """Write rows and machine facts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    told = [asdict(row) | {"ratio": row.ratio, "met": row.met} for row in rows]
    data = {"machine": dict(facts), "rows": told}
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
