"""Measures how surely, and how fast, a cell with a typo in a loop ends; fails on any that does not.

Starts fresh groups. On each one process raises NameError in a loop of dispatches, while the others
have queued collectives that never come. The cell has to end by itself within ``LIMIT_SECONDS`` of
the error, with every variable kept, and the group has to be usable afterwards. The variants are the
group's shape, whether the cell is its first (then connections are still being made), what the
processes wait for (sums and a gathering, small and large), and whether busy loops run beside.

Prints a line for each group and, at the end, how many ended, with times. Other programs on the
machine make the times longer: say so beside the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import multiprocessing
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jaxnb
from jaxnb.errors import JaxnbError
from jaxnb.session import Session
from jaxnb.sinks import NoSink

LIMIT_SECONDS = 5.0
"""From the error to the end of the cell, the reconnection of the group included."""

BUSY_LOOPS = 2
"""How many run beside half of the groups, unless told otherwise."""

GIVE_UP_SECONDS = 25.0
"""A cell that has not ended by then is ended by its time-out, and counted as one that hung."""

SHAPES = ((4, 2), (2, 4))
KINDS = {
    "scalar": (64, 'P("d", None)', "P(None, None)"),
    "gathered": (64, 'P("d", None)', 'P("d", None)'),
    "matrix": (64, 'P(None, "d")', 'P("d", None)'),
    "large": (1024, 'P(None, "d")', 'P("d", None)'),
}
"""What a matmul and a sum do over devices: rows, and the shardings of the two factors. They sum a
scalar, gather a factor first, or sum a matrix; a large one (4 MiB) fills the sockets' buffers, so
that senders wait too."""

SETUP = """
import time
n = jax.device_count()
size = {size}
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def spread(shape, spec):
    return jax.make_array_from_callback(
        shape, NamedSharding(mesh, spec), lambda index: np.ones(shape, np.float32)[index])
x, w1 = spread((size, 4 * n), {x}), spread((4 * n, size), {w})
mine = jnp.full(3, process_index)
def f(x, w):
    return (x @ w).sum()
"""

WARM_UP = "float(jax.jit(f)(x, w1))"

TYPO = """
for i in range(20):
    if process_index == {who}:
        raised_at = time.monotonic(); tiem.sleep(.05)
    loss = jax.jit(f)(x, w1)
float(loss)
"""

CHECK = """
assert mine.tolist() == [process_index] * 3
assert all(np.asarray(s.data).min() == 1 == np.asarray(s.data).max()
           for a in (x, w1) for s in a.addressable_shards)
assert set(mesh.devices.flat) == set(jax.devices())
float(jax.jit(f)(x, w1))
"""


@dataclass(frozen=True)
class Variant:
    """One kind of group.

    Attributes:
        shape: Processes and devices of each.
        is_first: The cell is the group's first.
        kind: A key of ``KINDS``.
    """

    shape: tuple[int, int]
    is_first: bool
    kind: str

    @property
    def label(self) -> str:
        """``"4 x 2, first cell, large"``."""
        n, devices = self.shape
        return f"{n} x {devices}, {'first' if self.is_first else 'later'} cell, {self.kind}"


VARIANTS = [
    Variant(shape, is_first, kind)
    for is_first, kind, shape in itertools.product((False, True), KINDS, SHAPES)
]


@dataclass(frozen=True)
class Outcome:
    """What became of one group.

    Attributes:
        label: Its variant.
        busy: How many busy loops ran beside it.
        seconds: From the error to the end of the cell; None if that is not known.
        replaced: The processes that were replaced.
        problem: What went wrong; empty if nothing did.
    """

    label: str
    busy: int
    seconds: float | None
    replaced: tuple[int, ...]
    problem: str


class Said(NoSink):
    """Keeps jaxnb's own sentences."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        """Keeps one."""
        self.notices.append(text)


def try_typo(session: Session, variant: Variant, who: int) -> tuple[float | None, str]:
    """Runs the cell with the typo on a fresh group.

    Returns:
        How long it took from the error, if it is known, and what went wrong.
    """
    size, x, w = KINDS[variant.kind]
    setup = SETUP.format(size=size, x=x, w=w)
    if not variant.is_first:
        session.run(setup)
        session.run(WARM_UP)
        setup = ""
    said, began = Said(), time.monotonic()
    result = error = None
    try:
        result = session.run(
            setup + TYPO.format(who=who), sink=said, timeout=GIVE_UP_SECONDS, raise_on_error=False
        )
    except JaxnbError as raised:
        error = raised
    ended = time.monotonic()
    seconds = ended - began
    try:
        seconds = ended - session.run("raised_at", ranks=[who], timeout=20).value
        found = session.run(CHECK, timeout=60).value
    except JaxnbError as raised:
        return seconds, f"{error or ''} then: {raised} | {said.notices}"
    if error is not None or result is None:
        return seconds, f"{type(error).__name__}: {error} | {said.notices}"
    kinds = {i: each.type_name for i, each in result.errors.items()}
    n = session.num_processes
    if kinds != dict.fromkeys(range(n), "LeftBehindError") | {who: "NameError"}:
        return seconds, f"raised {kinds} | {said.notices}"
    devices = variant.shape[0] * variant.shape[1]
    if found != size * size * 4.0 * devices:
        return seconds, f"the sum was {found}"
    return seconds, "" if seconds <= LIMIT_SECONDS else f"took {seconds:.1f} s | {said.notices}"


def try_group(variant: Variant, busy: int, who: int) -> Outcome:
    """Starts a group and runs the cell on it."""
    n, devices = variant.shape
    problem, seconds, replaced = "", None, ()
    settings: dict[str, Any] = {"devices_per_process": devices, "platform": "cpu"}
    with jaxnb.start(n, **settings) as session:
        before = [process.pid for process in session.processes]
        try:
            seconds, problem = try_typo(session, variant, who % n)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        now = [process.pid for process in session.processes]
        replaced = tuple(i for i in range(n) if before[i] != now[i])
    return Outcome(variant.label, busy, seconds, replaced, problem)


def _spin() -> None:
    owner = os.getppid()
    while os.getppid() == owner:
        sum(range(100_000))


@contextlib.contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Runs so many processes that only compute, beside the block."""
    context = multiprocessing.get_context("spawn")
    loops = [context.Process(target=_spin, daemon=True) for _ in range(count)]
    for loop in loops:
        loop.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.join()


def summary(outcomes: list[Outcome]) -> str:
    """Returns how many ended, and how fast, by what ran beside."""
    lines = []
    for busy in sorted({each.busy for each in outcomes}):
        these = [each for each in outcomes if each.busy == busy]
        good = [each for each in these if not each.problem]
        times = sorted(each.seconds for each in these if each.seconds is not None)
        line = f"{len(good)} of {len(these)} groups ended well beside {busy} busy loops"
        if times:
            line += f"; median {statistics.median(times):.2f} s, slowest {times[-1]:.2f} s"
        replaced = sum(bool(each.replaced) for each in these)
        lines.append(f"{line}; in {replaced} a process was replaced")
    return "\n".join(lines)


def measure(groups: int, busy: int, kinds: list[str]) -> Iterator[Outcome]:
    """Tries groups, of all variants in turn, half of them beside busy loops, if there are any."""
    variants = [each for each in VARIANTS if each.kind in kinds]
    for i in range(groups):
        beside = busy if i >= groups // 2 else 0
        with busy_loops(beside):
            yield try_group(variants[i % len(variants)], beside, who=2 + i // len(variants))


def main() -> int:
    """Measures; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument(
        "--busy", type=int, default=BUSY_LOOPS, help="busy loops beside the second half"
    )
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--json", type=Path, default=None, help="where to write what was found")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    outcomes = []
    for outcome in measure(arguments.groups, arguments.busy, arguments.kinds):
        outcomes.append(outcome)
        took = "" if outcome.seconds is None else f"{outcome.seconds:.2f} s"
        load = os.getloadavg()[0]
        print(
            f"{len(outcomes):4} {outcome.label:28} beside {outcome.busy}, load {load:4.1f}: {took} "
            f"{outcome.problem and 'FAILED: ' + outcome.problem}"
            f"{' replaced ' + str(outcome.replaced) if outcome.replaced else ''}",
            flush=True,
        )
        if arguments.json is not None:
            arguments.json.write_text(json.dumps([asdict(each) for each in outcomes]))
    print(summary(outcomes))
    return int(any(each.problem for each in outcomes))


if __name__ == "__main__":
    sys.exit(main())
