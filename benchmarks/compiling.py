"""Rows about compiling: a program of a second, once per group, and from another day."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any

import jaxnb
from benchmarks.measure import Row, Target, say, summarize

NAMES = ("compile",)

STEPS = 36
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
lowered = jax.jit(program).lower(x)
between = time.perf_counter()
lowered.compile()
between - began, time.perf_counter() - between
"""


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows of compile, if ``names`` has it."""
    if "compile" not in names or "jaxnb" not in sides:
        return
    say(f"tracing and compiling a program of {STEPS} matrix products")
    repetitions = 2 if quick else 7
    for count, most in ((4, 1.3), (8, 1.6)):
        yield from rows(count, most, repetitions)


def rows(count: int, most: float, repetitions: int) -> Iterator[Row]:
    """That of a group: nothing kept, kept from another group, and each by itself; by turns."""
    found: dict[str, list[tuple[float, float]]] = {"one": [], "off": [], "cold": [], "warm": []}
    for _ in range(repetitions):
        with tempfile.TemporaryDirectory() as folder:
            found["one"].append(seconds(1, 8, "off"))
            found["off"].append(seconds(count, 8 // count, "off"))
            found["cold"].append(seconds(count, 8 // count, folder))
            found["warm"].append(seconds(count, 8 // count, folder))
    for what, name, target in (
        ("off", "each by itself", Target()),
        ("cold", "once", Target(times_peer=most)),
        ("warm", "from another group", Target()),
    ):
        yield row(f"tracing and compiling, {count} processes: {name}", sum, found, what, target)
    loading = Target(times_peer=0.1)
    for what, name, target in (("cold", "once", Target()), ("warm", "from another group", loading)):
        yield row(f"compiling, {count} processes: {name}", itemgetter(1), found, what, target)


def row(
    name: str,
    of: Callable[[tuple[float, float]], float],
    found: dict[str, list[tuple[float, float]]],
    what: str,
    target: Target,
) -> Row:
    """One row.

    Args:
        name: What it is called.
        of: What of the seconds counts.
        found: The seconds of each way, of each repetition.
        what: Which way.
        target: Of it.
    """
    return Row(
        name,
        "s",
        summarize([of(each) for each in found[what]]),
        summarize([of(each) for each in found["one"]]),
        "one process of as many devices",
        target,
        note="on the slowest process",
    )


def seconds(count: int, devices: int, folder: str) -> tuple[float, float]:
    """Returns how long tracing and compiling took in a fresh group, on its slowest process."""
    settings: dict[str, Any] = {"devices_per_process": devices, "platform": "cpu"}
    with jaxnb.start(count, compile_cache=folder, check="off", **settings) as session:
        found = session.run(PROGRAM).per_process.values()
        return max((each.value for each in found), key=sum)
