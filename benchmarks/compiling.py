"""Rows about compiling: a program of a second, once per group, and from another day."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import jaxnb
from benchmarks.measure import Row, Target, say, summarize

NAMES = ("compile",)

STEPS = 16
"""Matrix products of the program: so many take one process about a second to compile."""

PROGRAM = f"""
import time
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((64, 64), NamedSharding(mesh, P("d")),
                                 lambda index: np.ones((64, 64), np.float32)[index])
def program(a):
    for k in range({STEPS}):
        a = jnp.tanh(a @ a.T) + jnp.sin(a) * k
    return a.sum()
began = time.perf_counter()
jax.block_until_ready(jax.jit(program)(x))
time.perf_counter() - began
"""


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows of compile, if ``names`` has it."""
    if "compile" not in names or "jaxnb" not in sides:
        return
    say(f"the first call of a program of {STEPS} matrix products")
    repetitions = 2 if quick else 7
    for count, most in ((4, 1.3), (8, 1.6)):
        yield from rows(count, most, repetitions)


def rows(count: int, most: float, repetitions: int) -> Iterator[Row]:
    """That of a group: nothing kept, kept from another group, and each by itself; by turns."""
    found: dict[str, list[float]] = {"one": [], "off": [], "cold": [], "warm": []}
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            found["one"].append(first_call(1, 8, "off"))
            found["off"].append(first_call(count, 8 // count, "off"))
            found["cold"].append(first_call(count, 8 // count, folder))
            found["warm"].append(first_call(count, 8 // count, folder))
    one = summarize(found["one"])
    of = f"compiling a program, {count} processes"
    for what, name, target in (
        ("off", "each by itself", Target()),
        ("cold", "once", Target(times_peer=most)),
        ("warm", "from another group", Target(times_peer=0.1)),
    ):
        yield Row(
            f"{of}: {name}",
            "s",
            summarize(found[what]),
            one,
            "one process of as many devices",
            target,
            note="from the call to its result, on the slowest process",
        )


def first_call(count: int, devices: int, folder: str) -> float:
    """Returns the seconds of the first call in a fresh group, the slowest process's."""
    settings: dict[str, Any] = {"devices_per_process": devices, "platform": "cpu"}
    with jaxnb.start(count, compile_cache=folder, check="off", **settings) as session:
        return max(float(each.value) for each in session.run(PROGRAM).per_process.values())
