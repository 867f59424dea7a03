"""Rows about lockstep: a loop of dispatches in agreement, beside one that nothing checks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jaxnb
from benchmarks.measure import Row, say

NAMES = ("agreeing",)
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
    say(f"loops of {SUMS} sharded sums")
    for devices, most in ((2, 1.15), (1, 1.5)):
        yield loop_row(devices, most, 2 if quick else 7)


def loop_row(devices: int, most: float, repetitions: int) -> Row:
    """A loop of small sums in lockstep, by turns with one that nothing checks."""
    found: dict[str, list[float]] = {"strict": [], "off": []}
    with jaxnb.start(4, devices_per_process=devices, platform="cpu") as session:
        session.run(SETUP)
        for turn in range(repetitions + 1):
            for mode, those in found.items():
                settings: Any = {"check": mode}
                session.run("sums(20)", **settings)
                each = session.run(LOOP, **settings).per_process.values()
                if turn:  # the first compiles
                    those.append(1e3 * max(process.value for process in each))
    work = f"a sharded sum in a loop of {SUMS}, 4 × {devices}, check=strict"
    return Row(work, "ms", found["strict"], found["off"], "check=off", most)
