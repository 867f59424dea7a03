"""One life of a group, timed from inside a fresh Python process.

``python -m benchmarks.child REPORT SIDE N STEP...`` starts a group of N processes with one of
the two sides, goes through the steps, and writes what it measured to REPORT as JSON. The clock
starts before the side's package is imported, and nothing that it needs is imported before.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_BEFORE_MEMORY_SECONDS = 2.0
IDLE_WINDOW_SECONDS = 10.0
GONE_TIMEOUT_SECONDS = 60.0

PSUM_CELL = """
mesh = jax.make_mesh((jax.device_count(),), ("i",))
total = jax.jit(jax.shard_map(
    lambda: jax.lax.psum(jax.lax.axis_index("i"), "i"), mesh=mesh, in_specs=(), out_specs=P()))
float(total())
"""


class Side(Protocol):
    """A group of processes, however it is made."""

    def engine_pids(self) -> list[int]:
        """Ids of the JAX processes."""

    def check(self) -> None:
        """Compute one more ``psum`` over all processes and compare it with what it must be."""

    def restart(self) -> None:
        """Replace all processes; returns after a checked ``psum`` over the new ones."""

    def stop(self) -> None:
        """End the group; returns when the side says that it is done."""


class RecipeSide:
    """The group that :mod:`benchmarks.recipe` makes."""

    def __init__(self, num_processes: int) -> None:
        from benchmarks import recipe

        self._recipe = recipe
        self._num_processes = num_processes
        self._cluster, self._client = recipe.start(num_processes)

    def engine_pids(self) -> list[int]:
        """Ids of the engines."""
        pids: list[int] = self._client[:].apply_sync(os.getpid)
        return pids

    def check(self) -> None:
        """Run the recipe's own ``psum`` once more."""
        self._recipe.check(self._client)

    def restart(self) -> None:
        """Stop and start: ipyparallel restarts engines in no other way."""
        self.stop()
        self._cluster, self._client = self._recipe.start(self._num_processes)

    def stop(self) -> None:
        """Stop engines and controller."""
        self._recipe.stop(self._cluster, self._client)


class JaxnbSide:
    """The group that ``jaxnb.start`` makes."""

    def __init__(self, num_processes: int) -> None:
        import jaxnb

        self._session = jaxnb.start(num_processes=num_processes, platform="cpu")

    def engine_pids(self) -> list[int]:
        """Ids of the processes."""
        return [process.pid for process in self._session.processes]

    def check(self) -> None:
        """Run a cell with a ``psum``."""
        result = self._session.run(PSUM_CELL)
        expected = float(sum(range(len(self._session.processes))))
        if result.value != expected:
            raise RuntimeError(f"the psum cell gave {result.value!r} and not {expected}")

    def restart(self) -> None:
        """Restart all processes."""
        self._session.restart()

    def stop(self) -> None:
        """Close the session."""
        self._session.close()


SIDES: dict[str, Callable[[int], Side]] = {"recipe": RecipeSide, "jaxnb": JaxnbSide}


def timed(action: Callable[[], object]) -> float:
    """Seconds that the action takes."""
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def memory(side: Side) -> dict[str, Any]:
    """PSS of every engine and helper after two idle seconds."""
    from benchmarks import processes

    engines = set(side.engine_pids())
    time.sleep(IDLE_BEFORE_MEMORY_SECONDS)  # What is measured is the idle state.
    sizes: dict[bool, list[tuple[str, int]]] = {True: [], False: []}
    for process in processes.group():
        pss = processes.pss_bytes(process.pid)
        sizes[process.pid in engines].append((processes.short_name(process), pss))
    if len(sizes[True]) != len(engines):
        raise RuntimeError(f"found {len(sizes[True])} of the {len(engines)} engines")
    return {
        "engine_bytes": [size for _, size in sizes[True]],
        "helpers": sorted(sizes[False], key=lambda item: -item[1]),
    }


def idle() -> dict[str, Any]:
    """CPU time that the idle group uses in a window, and this process in the same window."""
    import psutil

    from benchmarks import processes

    members, me = processes.group(), [psutil.Process()]
    before, before_me = processes.cpu_seconds(members), processes.cpu_seconds(me)
    time.sleep(IDLE_WINDOW_SECONDS)  # The window that is measured.
    return {
        "group_cpu_seconds": processes.cpu_seconds(members) - before,
        "notebook_cpu_seconds": processes.cpu_seconds(me) - before_me,
        "window_seconds": IDLE_WINDOW_SECONDS,
    }


def stop(side: Side) -> dict[str, Any]:
    """Seconds until the stop returns, and until no process of the group is alive."""
    from benchmarks import processes

    members = processes.group()
    deaths = processes.Deaths(members)
    begin = time.perf_counter()
    side.stop()
    returned = time.perf_counter() - begin
    deaths.wait(GONE_TIMEOUT_SECONDS)
    gone = time.perf_counter() - begin
    if left := processes.group():
        raise processes.Leftover(f"started while stopping: {[p.pid for p in left]}")
    return {"returned_seconds": returned, "gone_seconds": gone, "processes": len(members)}


def main() -> None:
    """Go through the steps that the command line names; a stop comes last in any case."""
    report_path, side_name, count, *steps = sys.argv[1:]
    report: dict[str, Any] = {}
    begin = time.perf_counter()
    side = SIDES[side_name](int(count))
    report["start"] = time.perf_counter() - begin
    try:
        side.check()
        for step in steps:
            if step == "restart":
                report["restart"] = timed(side.restart)
                side.check()
            elif step == "memory":
                report["memory"] = memory(side)
            elif step == "idle":
                report["idle"] = idle()
            else:
                raise SystemExit(f"unknown step {step!r}: not restart, memory or idle")
    except BaseException:
        side.stop()
        raise
    report["stop"] = stop(side)
    with open(report_path, "w", encoding="utf-8") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
