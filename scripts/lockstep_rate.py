"""Measures how surely, and how soon, processes in lockstep end a cell in which they diverge.

``soak.py --lockstep GROUPS`` starts fresh groups, half of them beside busy loops. In each, once for
every case, processes do something that is not the same on all: one raises in a loop, skips a call,
computes another program, or sleeps and is interrupted. Every process has to end with an error,
within ``LIMIT_SECONDS`` of the cause and by itself; then the same group computes with the variables
of before. Threads that dispatch in other orders on each process have to compute what is right.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import jaxnb
from jaxnb.cells.result import CellResult
from jaxnb.session import Session

LIMIT_SECONDS = 1.0
"""From the cause to the last process's error."""

BUSY_LOOPS = 2

GIVE_UP_SECONDS = 30.0
"""A cell that has not ended by then is ended by its time-out, and counted as one that hung."""

SHAPES = ((4, 2), (4, 1))

SETUP = """
import threading, time
from jax._src import distributed
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def make(value, size=2 * n):
    host = np.full(size, value, np.float32)
    return jax.make_array_from_callback(
        host.shape, NamedSharding(mesh, P("d")), lambda index: host[index])
x, longer = make(1), make(1, 4 * n)
step, other, total = jax.jit(lambda a: a + 1), jax.jit(lambda a: a + 2), jax.jit(jnp.sum)
odd = process_index == num_processes // 2
for each in (x, longer): float(total(step(each))), float(total(other(each)))
cause = came = 0.0
"""

CASES = {
    "a typo": "for i in range(20):\n    if odd and i == 7:\n        tiem.sleep(1)\n    y = step(y)",
    "an uneven loop": "for i in range(10 + odd):\n    y = step(y)\ncame = time.monotonic()",
    "a skipped call": "for i in range(10):\n    if not (odd and i == 5): y = step(y)",
    "another program": "for i in range(10):\n    y = other(y) if odd and i == 5 else step(y)",
    "other shapes": "for i in range(10):\n    z = step(longer if odd and i == 5 else x)",
    "another input": "z = step(x)\nfor i in range(10):\n    y = step(z if odd and i == 5 else x)",
    "another constant": "z = jax.jit(lambda a: a * (3 + odd))(x)",
    "a cond on a host value": (
        "z = jax.jit(lambda a: jax.lax.cond(bool(odd), lambda b: b + 1, lambda b: b - 1, a))(x)"
    ),
    "a missing barrier": (
        "if not odd: distributed.global_state.client.wait_at_barrier('here', 60_000)\n"
        "float(total(x))"
    ),
    "another order": "float(total(x)), step(y)\nif odd: step(y)\nfloat(total(x)); step(y)",
}
"""What goes wrong: the cell's code, in which ``odd`` is one process."""

AROUND = """
y, cause, came = x, 0.0, 0.0
try:
{}
except BaseException:
    came = time.monotonic()
    raise
"""

TRAINING = """
y, i = x, 0
while True:
    y, i = step(y), i + 1
    if process_index == i % num_processes: np.ones(20000).sum()
"""


CHECKPOINT = """
y, i, saved = x, 0, None
try:
    while True: y, i = step(y), i + 1
except KeyboardInterrupt:
    saved = float(total(y))
    raise
"""

INTERRUPTED = {
    "an interrupted loop": (TRAINING, "i == float(total(y)) / (2 * n) - 1"),
    "one that sleeps": ("if odd: time.sleep(1000)\nfloat(total(x))", "True"),
    "a checkpoint in the handler": (CHECKPOINT, "saved == 2 * n * (i + 1)"),
}
"""Cells that are interrupted, and what has to be true afterwards."""

LOADERS = """
sums = [jax.jit(lambda a, k=k: (a * k).sum()) for k in range(1, 5)]
loaded = {}
def load(k): loaded[k] = float(sums[k](x))
order = range(4) if odd else range(3, -1, -1)
threads = [threading.Thread(target=load, args=(k,)) for k in order]
for each in threads: each.start()
y = x
for _ in range(20): y = step(y)
for each in threads: each.join()
loaded == {k: 2.0 * n * (k + 1) for k in range(4)} and float(total(y)) == 42.0 * n
"""
"""Threads that dispatch in other orders on each process, beside the main one: nothing is wrong."""


def parted(session: Session, code: str) -> tuple[str, float]:
    """Runs a case; returns what was wrong with how it ended, and from first to last error."""
    cell = AROUND.format(textwrap.indent(code, "    "))
    result: CellResult = session.run(cell, timeout=GIVE_UP_SECONDS, raise_on_error=False)
    came = session.run("came").value
    times = [each for each in (came.values() if isinstance(came, dict) else [came]) if each]
    seconds = max(times) - min(times)
    if not result.errors:
        return "no process has an error", seconds
    if not any(e.type_name in ("DivergenceError", "NameError") for e in result.errors.values()):
        return f"other errors: {result!r}", seconds
    return ("" if seconds < LIMIT_SECONDS else f"took {seconds:.2f} s"), seconds


def interrupted(session: Session, code: str) -> tuple[str, float]:
    """Interrupts a cell; returns what was wrong with how it ended, and how long that took."""
    found: list[CellResult] = []
    thread = threading.Thread(target=lambda: found.append(session.run(code, raise_on_error=False)))
    thread.start()
    time.sleep(0.5)
    began = time.monotonic()
    session.interrupt()
    thread.join(GIVE_UP_SECONDS)
    seconds = time.monotonic() - began
    if not found:
        return "did not end", seconds
    kinds = {e.type_name for e in found[0].errors.values()}
    is_all = len(found[0].errors) == session.num_processes and kinds == {"KeyboardInterrupt"}
    return ("" if is_all else f"errors: {found[0].errors}"), seconds


def tried(session: Session, name: str) -> tuple[str, float]:
    """Plays one case in a group, and looks at what is left of it."""
    if name in CASES:
        fault, seconds = parted(session, CASES[name])
    elif name in INTERRUPTED:
        code, check = INTERRUPTED[name]
        fault, seconds = interrupted(session, code)
        if session.run(check).value is not True:
            fault = fault or f"not so: {check}"
    else:
        began = time.monotonic()
        result = session.run(LOADERS, timeout=GIVE_UP_SECONDS, raise_on_error=False)
        seconds = time.monotonic() - began
        fault = "" if result.value is True else f"{result.value}, {result.errors}"
    if session.run("float(total(step(x)))").value != 4.0 * session.run("n").value:
        fault = fault or "computes something else afterwards"
    return fault, seconds


def measure(groups: int) -> int:
    """Runs so many groups; prints how often each case went well, and returns the exit status."""
    warnings.simplefilter("ignore")
    names = [*CASES, *INTERRUPTED, "loader threads"]
    found: dict[tuple[str, int], list[tuple[str, float]]] = {
        (name, load): [] for load in (0, BUSY_LOOPS) for name in names
    }
    for k in range(groups):
        processes, devices = SHAPES[k // 2 % len(SHAPES)]
        load = BUSY_LOOPS if k % 2 else 0
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
        try:
            with jaxnb.start(processes, devices_per_process=devices, platform="cpu") as session:
                pids = [each.pid for each in session.processes]
                session.run(SETUP)
                for name in names:
                    found[name, load].append(tried(session, name))
                assert [each.pid for each in session.processes] == pids
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
    for (name, load), tries in found.items():
        faults, seconds = [fault for fault, _ in tries if fault], [each for _, each in tries]
        if tries:
            good = f"{len(tries) - len(faults)} of {len(tries)}"
            times = f"median {statistics.median(seconds):.3f} s, at most {max(seconds):.3f} s"
            print(f"{name}, beside {load} busy loops: {good}; {times}", *faults[:5], sep="\n    ")
    return int(any(fault for tries in found.values() for fault, _ in tries))
