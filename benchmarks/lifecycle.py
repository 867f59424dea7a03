"""Rows about a group's life: start, memory, idle CPU, restart, stop, recovery, ``jaxnb run``."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.measure import Row, alternate, run_reporting, say

NAMES = ("start", "memory", "idle", "restart", "stop", "many", "recover", "run")

FEW, MANY = 8, 32
BARE_IMPORT = "import jax, jax.numpy, ipyparallel.engine.app, ipykernel.ipkernel"

SCRIPT = """\
import sys, jax, numpy as np
jax.config.update("jax_platforms", "cpu")
if len(sys.argv) > 1:
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[3]}", int(sys.argv[1]), int(sys.argv[2]))
mesh = jax.make_mesh((jax.device_count(),), ("all",))
ones = np.ones(jax.device_count(), np.float32)
sharding = jax.NamedSharding(mesh, jax.P("all"))
x = jax.make_array_from_callback(ones.shape, sharding, lambda index: ones[index])
total = jax.jit(lambda x: x.sum(), out_shardings=jax.NamedSharding(mesh, jax.P()))
assert float(total(x)) == len(ones)
"""
"""A group of one joins nobody; others are told who they are, as in JAX's guide."""

Reports = dict[str, list[Any]]


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows that ``names`` selects."""
    if names & {"start", "memory", "idle"}:
        yield from eight(names, sides, 1 if quick else 5)
    if names & {"restart", "stop"}:
        say("4 processes: restart, stop")
        ways = {side: partial(life, side, "4", "restart") for side in sides}
        reports = alternate(ways, 1 if quick else 3)
        ours, peer = picked(reports, "restart")
        note = "recipe: stop and start, to a checked psum"
        yield Row("restart 4", "s", ours, peer, limit=1.0, note=note)
        yield Row("stop 4, none left", "s", *picked(reports, "stop"), limit=0.5)
    if "many" in names and "jaxnb" in sides:
        say(f"{FEW} and {MANY} processes: start")
        sizes = {str(n): partial(life, "jaxnb", str(n)) for n in (FEW, MANY)}
        few, many = (
            [r["start"] for r in those] for those in alternate(sizes, 1 if quick else 3).values()
        )
        yield Row(f"start {MANY} to first psum", "s", many, [], limit=4.0)
        each = [1e3 * (m - f) / (MANY - FEW) for f, m in zip(few, many, strict=True)]
        yield Row(f"start, each process from {FEW} to {MANY}", "ms", each, [], limit=150.0)
    for size in ("4x1", "4x2") if "recover" in names else ():
        yield recover_row(size, sides, 1 if quick else 2)
    if "run" in names:
        yield from run_rows(sides, 1 if quick else 5)


def life(side: str, size: str, *steps: str) -> dict[str, Any]:
    """What a fresh process reports of a group's life."""
    report: dict[str, Any] = run_reporting("benchmarks.child", side, size, *steps)
    say(f"  {side} × {size}: start {report['start']:.2f} s, stop {report['stop']:.2f} s")
    return report


def picked(reports: Reports, step: str) -> tuple[list[float], list[float]]:
    """One figure of jaxnb's reports and of the recipe's."""
    ours, peer = ([r[step] for r in reports.get(side, [])] for side in ("jaxnb", "recipe"))
    return ours, peer


def eight(names: set[str], sides: list[str], repetitions: int) -> Iterator[Row]:
    """Start of 8 processes, their memory, and their CPU use when idle."""
    say("8 processes: start, memory, idle")

    def bare_import() -> float:
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", BARE_IMPORT], check=True)
        return time.perf_counter() - begin

    bare_import()  # Warms the page cache for both sides.
    steps = [step for step in ("memory", "idle") if step in names]
    ways: dict[str, Any] = {side: partial(life, side, "8", *steps) for side in sides}
    reports = alternate(ways | {"import": bare_import}, repetitions)
    if "start" in names:
        ours, peer = picked(reports, "start")
        note = "from before the package's import to a checked psum over all processes"
        yield Row("start 8 to first psum", "s", ours, peer, most=0.2, note=note)
        yield Row("start 8 to first psum", "s", ours, reports["import"], "bare import", 3.0)
    if "memory" in names:
        found = dict(zip(("jaxnb", "recipe"), picked(reports, "memory"), strict=True))
        each = {side: [mean(m["engines"]) / 1e6 for m in those] for side, those in found.items()}
        note = "; ".join(
            f"{side}: {len(those[0]['helpers'])} helpers, {sum(those[0]['helpers']) / 1e6:.0f} MB"
            for side, those in found.items()
            if those
        )
        work = "memory per idle process at 8 (PSS)"
        yield Row(work, "MB", each["jaxnb"], each["recipe"], limit=70.0, note=note)
    if "idle" in names:
        note = "helpers included, over 10 s; without the notebook's own process"
        work = "CPU of an idle group of 8, all processes"
        yield Row(work, "% core", *picked(reports, "idle"), note=note)


def recover_row(size: str, sides: list[str], repetitions: int) -> Row:
    """A healthy group, formed again with its arrays; the recipe stops and starts without them."""
    say(f"{size} processes: recover")
    ways = {
        "recipe": partial(life, "recipe", "4", "restart"),
        "jaxnb": partial(life, "jaxnb", size, "recover"),
    }
    reports = alternate({side: ways[side] for side in sides}, repetitions)
    ours = [seconds for report in reports.get("jaxnb", []) for seconds in report["recover"]]
    peer = [report["restart"] for report in reports.get("recipe", [])]
    work = f"recover, {size.replace('x', ' × ')}, 64 MiB of arrays carried"
    return Row(work, "s", ours, peer, "recipe's stop and start", limit=1.5)


def run_rows(sides: list[str], repetitions: int) -> Iterator[Row]:
    """A short script from start to end, against what people write today."""
    say("a script on 4 processes, from start to end")

    def seconds(*commands: list[Any]) -> float:
        begin = time.perf_counter()
        started = [subprocess.Popen([sys.executable, *command]) for command in commands]
        if sum(each.wait() != 0 for each in started):
            raise RuntimeError(f"a process of {commands} failed")
        return time.perf_counter() - begin

    def in_a_loop(path: Path) -> float:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        return seconds(*([path, "4", str(i), str(port)] for i in range(4)))

    with tempfile.TemporaryDirectory(prefix="jaxnb-bench-") as folder:
        path = Path(folder, "toy.py")
        path.write_text(SCRIPT)
        command = ["-m", "jaxnb", "run", path, "-n", "4", "--platform", "cpu"]
        ways = {"one": lambda: seconds([path])}
        ways |= {"jaxnb": lambda: seconds(command)} if "jaxnb" in sides else {}
        ways |= {"recipe": lambda: in_a_loop(path)} if "recipe" in sides else {}
        alternate(ways, 1)  # warms the page cache
        found = alternate(ways, repetitions)
    ours, work = found.get("jaxnb", []), "run a script on 4, start to end"
    yield Row(work, "s", ours, found.get("recipe", []), "shell loop", 1.0)
    yield Row(work, "s", ours, found["one"], "one process", 1.3)
