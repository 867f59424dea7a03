"""Rows about a group's life: start, restart, stop, memory, idle CPU, many processes."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from benchmarks.children import run_reporting
from benchmarks.measure import Row, Summary, Target, alternate, say, summarize

CHILD_TIMEOUT_SECONDS = 120.0
MANY = 32
BARE_IMPORT = "import jax, jax.numpy, ipyparallel.engine.app, ipykernel.ipkernel"

Report = dict[str, Any]
Reports = dict[str, list[Report]]


def run_child(side: str, num_processes: int, steps: list[str]) -> Report:
    """Run one life of a group in a fresh process; whatever it leaves is ended.

    Raises:
        ChildFailed: It failed, or did not end in time.
    """
    arguments = [side, str(num_processes), *steps]
    report: Report = run_reporting("benchmarks.child", arguments, CHILD_TIMEOUT_SECONDS)
    say(f"  {side} × {num_processes}: {_brief(report)}")
    return report


def _brief(report: Report) -> str:
    parts = [f"start {report['start']:.2f} s"]
    if "restart" in report:
        parts.append(f"restart {report['restart']:.2f} s")
    if "memory" in report:
        sizes = report["memory"]["engine_bytes"]
        parts.append(f"{sum(sizes) / len(sizes) / 1e6:.0f} MB each")
    if "idle" in report:
        parts.append(f"idle {report['idle']['group_cpu_seconds']:.2f} s of CPU")
    parts.append(f"stop {report['stop']['gone_seconds']:.2f} s")
    return ", ".join(parts)


def bare_import() -> float:
    """Seconds for one Python process to import what an engine imports."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", BARE_IMPORT], check=True, timeout=CHILD_TIMEOUT_SECONDS)
    return time.perf_counter() - begin


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows that ``names`` selects, of start, restart, stop, memory, idle and many."""
    if names & {"start", "memory", "idle"}:
        yield from eight(names, sides, repetitions=1 if quick else 5)
    if names & {"restart", "stop"}:
        yield from four(names, sides, repetitions=1 if quick else 3)
    if "many" in names and "jaxnb" in sides:
        yield many(repetitions=1 if quick else 3)


def eight(names: set[str], sides: list[str], repetitions: int) -> list[Row]:
    """Start of 8 processes, their memory, and their CPU use when idle."""
    say("8 processes: " + ", ".join(sorted(names & {"start", "memory", "idle"})))
    bare_import()  # Warms the page cache for both sides.
    steps: list[str] = [step for step in ("memory", "idle") if step in names]
    imports: list[float] = []
    reports: Reports = {side: [] for side in sides}
    for repetition in range(repetitions):
        # Idle windows are long and vary little: two repetitions are enough for them.
        now = steps if repetition < 2 else []
        imports.append(bare_import())
        for side in sides:
            reports[side].append(run_child(side, 8, now))
    rows = start_rows(reports, imports) if "start" in names else []
    if "memory" in names:
        rows.append(memory_row(reports))
    if "idle" in names:
        rows.append(idle_row(reports))
    return rows


def start_rows(reports: Reports, imports: list[float]) -> list[Row]:
    """Start against the recipe, and against the imports that one process needs."""
    ours = _pick(reports, "jaxnb", lambda r: r["start"])
    peer = _pick(reports, "recipe", lambda r: r["start"])
    note = "from before the package's import to a checked psum over all processes"
    bare = Summary(tuple(imports))
    return [
        Row("start 8 to first psum", "s", ours, peer, target=Target(0.2), note=note),
        Row("start 8 to first psum", "s", ours, bare, "bare import", Target(3.0)),
    ]


def memory_row(reports: Reports) -> Row:
    """PSS per idle process, with the helpers in the note."""

    def mean(report: Report) -> float:
        sizes = report["memory"]["engine_bytes"]
        return float(sum(sizes) / len(sizes) / 1e6)

    def helpers(side: str) -> str:
        found = [r["memory"]["helpers"] for r in reports.get(side, []) if "memory" in r]
        if not found:
            return ""
        total = sum(size for _, size in found[0]) / 1e6
        return f"{side}: {len(found[0])} helpers, {total:.0f} MB in all"

    details = {
        side: [r["memory"] for r in side_reports if "memory" in r]
        for side, side_reports in reports.items()
    }
    return Row(
        "memory per idle process at 8 (PSS)",
        "MB",
        _pick(reports, "jaxnb", mean, "memory"),
        _pick(reports, "recipe", mean, "memory"),
        target=Target(limit=70.0),
        note="; ".join(filter(None, map(helpers, ("jaxnb", "recipe")))),
        details=details,
    )


def idle_row(reports: Reports) -> Row:
    """CPU use of the idle group, in percent of one core."""

    def percent(report: Report) -> float:
        idle = report["idle"]
        return float(100 * idle["group_cpu_seconds"] / idle["window_seconds"])

    return Row(
        "CPU of an idle group of 8, all processes",
        "% core",
        _pick(reports, "jaxnb", percent, "idle"),
        _pick(reports, "recipe", percent, "idle"),
        note="helpers included, over 10 s; the notebook's own process is in the JSON",
        details={side: [r["idle"] for r in rs if "idle" in r] for side, rs in reports.items()},
    )


def four(names: set[str], sides: list[str], repetitions: int) -> list[Row]:
    """Restart and stop of 4 processes."""
    say("4 processes: " + ", ".join(sorted(names & {"restart", "stop"})))
    steps = ["restart"] if "restart" in names else []
    reports = alternate({side: partial(run_child, side, 4, steps) for side in sides}, repetitions)
    rows = []
    if "restart" in names:
        rows.append(
            Row(
                "restart 4",
                "s",
                _pick(reports, "jaxnb", lambda r: r["restart"]),
                _pick(reports, "recipe", lambda r: r["restart"]),
                target=Target(limit=1.0),
                note="recipe: stop and start, to a checked psum",
            )
        )
    if "stop" in names:
        rows.append(
            Row(
                "stop 4, none left",
                "s",
                _pick(reports, "jaxnb", lambda r: r["stop"]["gone_seconds"]),
                _pick(reports, "recipe", lambda r: r["stop"]["gone_seconds"]),
                target=Target(limit=0.5),
                details={side: [r["stop"] for r in rs] for side, rs in reports.items()},
            )
        )
    return rows


def many(repetitions: int) -> Row:
    """Start of 32 processes; nobody to compare with."""
    say(f"{MANY} processes: start")
    reports = alternate({"jaxnb": partial(run_child, "jaxnb", MANY, [])}, repetitions)
    ours = _pick(reports, "jaxnb", lambda r: r["start"])
    return Row(f"start {MANY} to first psum", "s", ours, None, target=Target(limit=8.0))


def _pick(
    reports: Reports, side: str, get: Callable[[Report], float], step: str = "start"
) -> Summary | None:
    """One figure of a side's reports, of those that have the step."""
    return summarize([get(r) for r in reports.get(side, []) if step in r])
