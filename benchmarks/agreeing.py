"""Rows about lockstep: what it costs to agree on a dispatch, and a loop of dispatches."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxnb
from benchmarks.measure import Row, Target, say, summarize

NAMES = ("agreeing",)
COUNTS = (2, 4, 8)
ROUNDS = 3000
SUMS = 600

SETUP = """
import time
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((64 * n,), NamedSharding(mesh, P("d")),
                                 lambda index: np.ones(64 * n, np.float32)[index])
total = jax.jit(jnp.sum)
def sums(count):
    for _ in range(count):
        y = total(x)
    y.block_until_ready()
"""
LOOP = f"began = time.perf_counter(); sums({SUMS}); (time.perf_counter() - began) / {SUMS}"


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows of agreeing, if ``names`` has it."""
    if "agreeing" not in names or "jaxnb" not in sides:
        return
    say(f"agreeing on a dispatch, and loops of {SUMS} sharded sums")
    repetitions = 2 if quick else 7
    for count in COUNTS:
        yield wait_row(count, repetitions)
    for devices, most in ((2, 1.15), (1, 1.5)):
        yield loop_row(devices, most, repetitions)


def wait_row(count: int, repetitions: int) -> Row:
    """The wait for an answer, by turns with an echo."""
    waits, echoes = [], []
    for _ in range(repetitions):
        echoes.append(1e6 * float(_output("echo", ROUNDS)))
        waits.append(1e6 * one_wait(count))
    return Row(
        f"agreeing on a dispatch, {count} processes: the wait",
        "µs",
        summarize(waits),
        summarize(echoes),
        "an echo between two processes",
        Target(),
        note="over the same kind of socket, in turn; nothing is computed",
    )


def one_wait(count: int) -> float:
    """Returns the seconds of a round, the slowest process's."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "conductor")
        conductor = _start("conductor", path, count, stdin=subprocess.PIPE)
        assert conductor.stdout is not None
        conductor.stdout.readline()
        processes = [_start("process", path, count, i, ROUNDS) for i in range(count)]
        found = [float(each.communicate()[0]) for each in processes]
        conductor.communicate()
    return max(found)


def loop_row(devices: int, most: float, repetitions: int) -> Row:
    """A loop of small sums in lockstep, by turns with one that nothing checks."""
    seconds: dict[str, list[float]] = {"strict": [], "off": []}
    with jaxnb.start(4, devices_per_process=devices, platform="cpu") as session:
        session.run(SETUP)
        for turn in range(repetitions + 1):
            for mode, those in seconds.items():
                settings: Any = {"check": mode}
                session.run("sums(20)", **settings)
                found = session.run(LOOP, **settings)
                if turn:  # the first compiles
                    those.append(1e3 * max(each.value for each in found.per_process.values()))
    return Row(
        f"a sharded sum in a loop of {SUMS}, 4 × {devices}, check=strict",
        "ms",
        summarize(seconds["strict"]),
        summarize(seconds["off"]),
        "check=off",
        Target(times_peer=most),
        details=seconds,
    )


def _start(*arguments: object, stdin: int | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "benchmarks.agreeing_child", *map(str, arguments)]
    return subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE, text=True)


def _output(*arguments: object) -> str:
    return _start(*arguments).communicate()[0]
