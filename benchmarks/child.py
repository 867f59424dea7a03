"""One life of a group, timed from inside a fresh Python process.

``python -m benchmarks.child REPORT SIDE N[xDEVICES] STEP...`` starts a group with one of the two
sides, goes through the steps, and writes what it measured to REPORT as JSON. The clock starts
before the side's package is imported, and nothing that it needs is imported before.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

IDLE_BEFORE_MEMORY_SECONDS = 2.0
IDLE_WINDOW_SECONDS = 10.0
GONE_TIMEOUT_SECONDS = 60.0
RECOVERIES = 5

PSUM_CELL = """
mesh = jax.make_mesh((jax.device_count(),), ("i",))
total = jax.jit(jax.shard_map(
    lambda: jax.lax.psum(jax.lax.axis_index("i"), "i"), mesh=mesh, in_specs=(), out_specs=P()))
float(total())
"""

ARRAYS = """
n = jax.device_count()
mesh = jax.make_mesh((n,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
whole = np.arange(4 << 20, dtype=np.float32)
arrays = [jax.make_array_from_callback(
    whole.shape, NamedSharding(mesh, P("data")), lambda index: whole[index]) for _ in range(4)]
del whole
largest = jax.jit(jnp.max)
float(largest(arrays[0]))
"""
"""64 MiB, sharded over all processes."""

CHECK_ARRAYS = """
assert float(largest(arrays[0])) == (4 << 20) - 1
for a in arrays:
    for shard in a.addressable_shards:
        first, last, _ = shard.index[0].indices(a.size)
        assert (np.asarray(shard.data) == np.arange(first, last, dtype=np.float32)).all()
del a, shard
"""


class RecipeSide:
    """The group that :mod:`benchmarks.recipe` makes."""

    def __init__(self, num_processes: int, devices: int) -> None:
        from benchmarks import recipe

        self._recipe, self._num_processes = recipe, num_processes
        self._cluster, self._client = recipe.start(num_processes)

    def engine_pids(self) -> list[int]:
        """Ids of the JAX processes."""
        pids: list[int] = self._client[:].apply_sync(os.getpid)
        return pids

    def check(self) -> None:
        """Compute one more ``psum`` over all processes and compare it with what it must be."""
        self._recipe.check(self._client)

    def restart(self) -> None:
        """Stop and start: ipyparallel restarts engines in no other way."""
        self.stop()
        self._cluster, self._client = self._recipe.start(self._num_processes)

    def stop(self) -> None:
        """End the group; returns when the side says that it is done."""
        self._recipe.stop(self._cluster, self._client)


class JaxnbSide:
    """The group that ``jaxnb.start`` makes."""

    def __init__(self, num_processes: int, devices: int) -> None:
        import jaxnb

        several: Any = {"devices_per_process": devices} if devices > 1 else {}
        self.session = jaxnb.start(num_processes=num_processes, platform="cpu", **several)

    def engine_pids(self) -> list[int]:
        """Ids of the processes."""
        return [process.pid for process in self.session.processes]

    def check(self) -> None:
        """Run a cell with a ``psum``."""
        result = self.session.run(PSUM_CELL)
        expected = float(sum(range(sum(len(p.devices) for p in self.session.processes))))
        if result.value != expected:
            raise RuntimeError(f"the psum cell gave {result.value!r} and not {expected}")

    def restart(self) -> None:
        """Restart all processes."""
        self.session.restart()

    def stop(self) -> None:
        """Close the session."""
        self.session.close()

    def recover(self) -> list[float]:
        """Seconds of each of some recoveries of a healthy group with arrays."""
        self.session.run(ARRAYS)
        seconds = []
        for _ in range(RECOVERIES):
            begin = time.perf_counter()
            recovered = self.session.recover()
            seconds.append(time.perf_counter() - begin)
            if recovered.lost:
                raise RuntimeError(f"not kept: {recovered.lost}")
            self.session.run(CHECK_ARRAYS)
        return seconds


def memory(side: Any) -> dict[str, Any]:
    """PSS of every engine and helper after two idle seconds."""
    from benchmarks import processes

    engines = set(side.engine_pids())
    time.sleep(IDLE_BEFORE_MEMORY_SECONDS)  # What is measured is the idle state.
    sizes = {process.pid: processes.pss_bytes(process.pid) for process in processes.group()}
    if not engines <= set(sizes):
        raise RuntimeError(f"found {sorted(sizes)}, and not all of the engines {engines}")
    helpers = [size for pid, size in sizes.items() if pid not in engines]
    return {"engines": [sizes[pid] for pid in engines], "helpers": helpers}


def idle() -> float:
    """Percent of a core that the idle group uses in a window."""
    from benchmarks import processes

    members = processes.group()
    before = processes.cpu_seconds(members)
    time.sleep(IDLE_WINDOW_SECONDS)  # The window that is measured.
    return 100 * (processes.cpu_seconds(members) - before) / IDLE_WINDOW_SECONDS


def stop(side: Any) -> float:
    """Seconds until no process of the group is alive."""
    from benchmarks import processes

    fds = processes.watch(processes.group())
    begin = time.perf_counter()
    side.stop()
    processes.wait(fds, GONE_TIMEOUT_SECONDS)
    gone = time.perf_counter() - begin
    if left := processes.group():
        raise RuntimeError(f"left, or started while stopping: {[p.pid for p in left]}")
    return gone


def main() -> None:
    """Go through the steps that the command line names; a stop comes last in any case."""
    report_path, side_name, size, *steps = sys.argv[1:]
    count, _, devices = size.partition("x")
    begin = time.perf_counter()
    side: Any = (RecipeSide if side_name == "recipe" else JaxnbSide)(int(count), int(devices or 1))
    report: dict[str, Any] = {"start": time.perf_counter() - begin}
    try:
        side.check()
        for step in steps:
            if step == "restart":
                begin = time.perf_counter()
                side.restart()
                report["restart"] = time.perf_counter() - begin
                side.check()
            elif step == "memory":
                report[step] = memory(side)
            else:
                report[step] = idle() if step == "idle" else side.recover()
    except BaseException:
        side.stop()
        raise
    report["stop"] = stop(side)
    with open(report_path, "w", encoding="utf-8") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
