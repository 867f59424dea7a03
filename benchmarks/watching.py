"""Rows about statistics: what it costs to look every second, and to look around each cell."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.children import run_reporting
from benchmarks.measure import Row, Target, say, summarize

NAMES = ("stats",)
CHILD_TIMEOUT_SECONDS = 900.0
LIVE_ARRAYS = (0, 100, 5000)
FEW = 100


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows of stats, if ``names`` has it."""
    if "stats" not in names or "jaxnb" not in sides:
        return
    say("4 processes: statistics every second, and around cells")
    plan = {"windows": 1 if quick else 3, "live_arrays": LIVE_ARRAYS}
    found = run_reporting("benchmarks.watching_child", [json.dumps(plan)], CHILD_TIMEOUT_SECONDS)
    yield from live_rows(found)
    yield from cell_rows(found)


def live_rows(found: dict[str, Any]) -> Iterator[Row]:
    """The panel of ``%spmd_stats --live``: what it adds to an idle group's processor time."""
    for who, work in (("processes", "each process"), ("notebook", "the notebook's process")):
        yield Row(
            f"statistics at 1 Hz, 4 × 1, {work}",
            "% core",
            summarize(found[f"{who} live"]),
            summarize(found[f"{who} idle"]),
            "no panel",
            Target(limit=1.0),
            note="all of its threads, with what it uses when idle; in windows by turns",
        )


def cell_rows(found: dict[str, Any]) -> Iterator[Row]:
    """What a cell's footer says of memory: a look before it, and one after."""
    for count in LIVE_ARRAYS:
        yield Row(
            f"memory before and after a cell, {count} live arrays",
            "µs",
            summarize(found["cells"][str(count)]),
            summarize(found["live_arrays"][str(count)]),
            "2 × jax.live_arrays()",
            Target(limit=100.0) if count <= FEW else Target(),
            note="processor time of the thread, each process's least of 200",
        )
