"""Rows about ``jaxnb run``: a short script from start to end, against what people write today."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.measure import Row, Target, alternate, say, summarize

NAMES = ("launch",)
PROCESSES = 4
SCRIPT = """\
import sys, jax, numpy as np
jax.config.update("jax_platforms", "cpu")
if len(sys.argv) > 1:
    jax.distributed.initialize(f"127.0.0.1:{sys.argv[3]}", int(sys.argv[1]), int(sys.argv[2]))
mesh = jax.make_mesh((jax.device_count(),), ("all",))
ones = np.ones(jax.device_count(), np.float32)
sharding = jax.NamedSharding(mesh, jax.P("all"))
x = jax.make_array_from_callback(ones.shape, sharding, lambda index: ones[index])
assert float(jax.jit(lambda x: x.sum(), out_shardings=jax.NamedSharding(mesh, jax.P()))(x)) == len(
    ones
)
"""
"""A group of one joins nobody; others are told who they are, as in JAX's guide."""


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows that ``names`` selects."""
    if "launch" not in names:
        return
    say(f"a script on {PROCESSES} processes, from start to end")
    with tempfile.TemporaryDirectory(prefix="jaxnb-bench-") as folder:
        path = Path(folder, "toy.py")
        path.write_text(SCRIPT)
        ways = {"one": lambda: one(path)}
        ways |= {"jaxnb": lambda: with_jaxnb(path)} if "jaxnb" in sides else {}
        ways |= {"recipe": lambda: with_a_loop(path)} if "recipe" in sides else {}
        for way in ways.values():
            way()  # warms the page cache
        found = alternate(ways, 1 if quick else 5)
    ours, loop = summarize(found.get("jaxnb", [])), summarize(found.get("recipe", []))
    work = f"run a script on {PROCESSES}, start to end"
    yield Row(work, "s", ours, loop, "shell loop", Target(1.0))
    yield Row(work, "s", ours, summarize(found["one"]), "one process", Target(1.3))


def one(path: Path) -> float:
    """Seconds for one process that joins nobody."""
    begin = time.perf_counter()
    subprocess.run([sys.executable, path], check=True)
    return time.perf_counter() - begin


def with_jaxnb(path: Path) -> float:
    """Seconds for ``jaxnb run``."""
    begin = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "jaxnb", "run", path, "-n", str(PROCESSES), "--platform", "cpu"],
        check=True,
    )
    return time.perf_counter() - begin


def with_a_loop(path: Path) -> float:
    """Seconds for as many processes as a loop of the shell starts."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    begin = time.perf_counter()
    started = [
        subprocess.Popen([sys.executable, path, str(PROCESSES), str(i), str(port)])
        for i in range(PROCESSES)
    ]
    for each in started:
        if each.wait():
            raise RuntimeError(f"the loop's process ended with {each.returncode}")
    return time.perf_counter() - begin
