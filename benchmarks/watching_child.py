"""Statistics, timed from inside a fresh Python process.

``python -m benchmarks.watching_child REPORT PLAN`` starts a group, looks at it as PLAN (JSON)
says, and writes what that cost to REPORT.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jaxnb
from jaxnb.magics.looking import LivePanel
from jaxnb.session import Session

WINDOW_SECONDS = 20.0

CELLS = """
import gc, time
from jaxnb.profile.process_cell_memory import MemoryOfCells
memory = MemoryOfCells()
def around():
    memory.begin(None)
    memory.over(None)
    memory.told(None)
def twice():
    jax.live_arrays()
    jax.live_arrays()
def least(call):
    found = []
    for _ in range(200):
        begin = time.thread_time_ns()
        call()
        found.append(time.thread_time_ns() - begin)
    return min(found) / 1e3
def cost(count):
    kept = [jax.device_put(np.ones(8, np.float32)) for _ in range(count)]
    around()
    found = least(around), least(twice)
    del kept
    gc.collect()
    return found
"""


def cpu_seconds(pid: int) -> float:
    """Processor time of a process's threads so far; finer than ``/proc/PID/stat`` tells."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def window(pids: Iterable[int]) -> list[float]:
    """Percent of a core that each process uses in a window."""
    pids = list(pids)
    before, begin = [cpu_seconds(pid) for pid in pids], time.perf_counter()
    time.sleep(WINDOW_SECONDS)  # The window that is measured.
    seconds = time.perf_counter() - begin
    return [100 * (cpu_seconds(pid) - b) / seconds for pid, b in zip(pids, before, strict=True)]


def windows(session: Session, count: int) -> dict[str, list[float]]:
    """An idle group, without and with a panel, in turn."""
    found: dict[str, list[float]] = {}
    engines = [process.pid for process in session.processes]
    for _ in range(count):
        for kind in ("idle", "live"):
            panel = LivePanel(session, lambda card: None) if kind == "live" else None
            notebook, *processes = window([os.getpid(), *engines])
            if panel is not None:
                panel.stop("")
            found.setdefault(f"notebook {kind}", []).append(notebook)
            found.setdefault(f"processes {kind}", []).extend(processes)
    return found


def run(plan: dict[str, Any]) -> dict[str, Any]:
    """All that the plan lists."""
    with jaxnb.start(num_processes=4, platform="cpu") as session:
        found: dict[str, Any] = windows(session, plan["windows"])
        session.run(CELLS)
        found |= {"cells": {}, "live_arrays": {}}
        for count in plan["live_arrays"]:
            costs = [r.value for r in session.run(f"cost({count})").per_process.values()]
            found["cells"][count], found["live_arrays"][count] = zip(*costs, strict=True)
    return found


def main() -> None:
    """Follow the plan."""
    report_path, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    report_path.write_text(json.dumps(run(plan)))


if __name__ == "__main__":
    main()
