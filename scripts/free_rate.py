"""Measures how surely, and how fast, a cell with a typo in a loop ends; fails on any that does not.

Starts fresh groups. On each one process raises NameError in a loop of dispatches, while the others
have queued collectives that never come. The cell has to end by itself within ``LIMIT_SECONDS`` of
the error, or from when the last of the others has compiled and dispatched what it waits for, with
every variable kept, and the group has to be usable afterwards. The variants are the
group's shape, whether the cell is its first (then connections are still being made), what the
processes wait for (sums and a gathering, small and large), and whether busy loops run beside.

Prints a line for each group and, at the end, how many ended, with times. Other programs on the
machine make the times longer: say so beside the figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from busy import busy_loops

import jaxnb
from jaxnb.errors import JaxnbError
from jaxnb.session import Session
from jaxnb.sinks import NoSink

LIMIT_SECONDS = 5.0
"""From the error, or from when the last of the others has come to its wait, to the end of the cell,
the reconnection of the group included."""

BUSY_LOOPS = 2
"""How many run beside half of the groups, unless told otherwise."""

GIVE_UP_SECONDS = 25.0
"""A cell that has not ended by then is ended by its time-out, and counted as one that hung."""

SHAPES = ((4, 2), (2, 4))

TYPO = """
came_at = 0.0
for i in range({steps}):
    if process_index == {{who}}:
        raised_at = time.monotonic(); tiem.sleep(.05)
    {step}
came_at = time.monotonic()
float(loss)
"""


@dataclass(frozen=True)
class Kind:
    """What the processes compute when one of them raises.

    Attributes:
        setup: Makes the variables.
        warm_up: A cell that computes the same, without the typo.
        typo: The cell with the typo; ``{who}`` is the process that raises.
        check: Shows that all variables are as they were.
    """

    setup: str
    warm_up: str
    typo: str
    check: str


def matmul(size: int, x: str, w: str) -> Kind:
    """Returns the computation of a matmul and a sum, queued in a loop.

    Args:
        size: Rows of the first factor.
        x: The sharding of the first factor.
        w: Of the second.
    """
    return Kind(
        setup=f"""
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
""",
        warm_up="float(jax.jit(f)(x, w1))",
        typo=TYPO.format(steps=20, step="loss = jax.jit(f)(x, w1)"),
        check="""
assert mine.tolist() == [process_index] * 3
assert all(np.asarray(s.data).min() == 1 == np.asarray(s.data).max()
           for a in (x, w1) for s in a.addressable_shards)
assert set(mesh.devices.flat) == set(jax.devices())
assert float(jax.jit(f)(x, w1)) == 4 * n * size ** 2
""",
    )


def model(steps: int) -> Kind:
    """Returns the training of a bfloat16 MLP, data-parallel: many sums of gradients in a step.

    Args:
        steps: How many are queued.
    """
    return Kind(
        setup="""
import time
mesh = jax.make_mesh((jax.device_count(),), ("data",))
sizes, each = (64, 256, 256, 8), NamedSharding(mesh, P())
def init(key):
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        {"w": jax.random.normal(k, (i, o), jnp.bfloat16) * (2 / i) ** 0.5,
         "b": jnp.zeros(o, jnp.bfloat16)}
        for k, i, o in zip(keys, sizes[:-1], sizes[1:])]
def loss_of(params, x, y):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    out = x @ params[-1]["w"] + params[-1]["b"]
    return jnp.mean((out.astype(jnp.float32) - y) ** 2)
@jax.jit
def step(params, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    return jax.tree.map(lambda p, g: (p - 0.05 * g).astype(p.dtype), params, grads), loss
params = jax.jit(init, out_shardings=each)(jax.random.key(0))
rng = np.random.default_rng(0)
X = rng.normal(size=(512, 64)).astype(np.float32)
Y = (X @ rng.normal(size=(64, 8)) / 8).astype(np.float32)
x = jax.device_put(X.astype(jnp.bfloat16), NamedSharding(mesh, P("data")))
y = jax.device_put(Y, NamedSharding(mesh, P("data")))
mine = jnp.full(3, process_index)
""",
        warm_up="params, loss = step(params, x, y); float(loss)",
        typo=TYPO.format(steps=steps, step="new, loss = step(params, x, y)"),
        check="""
assert mine.tolist() == [process_index] * 3
assert all((np.asarray(s.data) == X.astype(jnp.bfloat16)[s.index]).all()
           for s in x.addressable_shards)
new, loss = step(params, x, y)
assert np.isfinite(float(loss))
""",
    )


KINDS = {
    "scalar": matmul(64, 'P("d", None)', "P(None, None)"),
    "gathered": matmul(64, 'P("d", None)', 'P("d", None)'),
    "matrix": matmul(64, 'P(None, "d")', 'P("d", None)'),
    "large": matmul(1024, 'P(None, "d")', 'P("d", None)'),
    "model": model(1),
    "model, queued": model(20),
}
"""They sum a scalar, gather a factor first, or sum a matrix; a large one (4 MiB) fills the sockets'
buffers, so that senders wait too. In a step of a model several collectives are under way at once,
so that some fail while messages for others are still coming."""


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
class Took:
    """How long a cell took to end.

    Attributes:
        seconds: As ``LIMIT_SECONDS`` counts.
        since_error: From the error.
    """

    seconds: float
    since_error: float


@dataclass(frozen=True)
class Outcome:
    """What became of one group.

    Attributes:
        label: Its variant.
        busy: How many busy loops ran beside it.
        took: How long it took; None if that is not known.
        replaced: The processes that were replaced.
        problem: What went wrong; empty if nothing did.
    """

    label: str
    busy: int
    took: Took | None
    replaced: tuple[int, ...]
    problem: str


class Said(NoSink):
    """Keeps jaxnb's own sentences."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        """Keeps one."""
        self.notices.append(text)


def try_typo(session: Session, variant: Variant, who: int) -> tuple[Took, str]:
    """Runs the cell with the typo on a fresh group.

    Returns:
        How long it took, and what went wrong.
    """
    kind = KINDS[variant.kind]
    setup = kind.setup
    if not variant.is_first:
        session.run(setup)
        session.run(kind.warm_up)
        setup = ""
    said, began = Said(), time.monotonic()
    result = error = None
    try:
        result = session.run(
            setup + kind.typo.format(who=who),
            sink=said,
            timeout=GIVE_UP_SECONDS,
            raise_on_error=False,
        )
    except JaxnbError as raised:
        error = raised
    ended = time.monotonic()
    took = Took(ended - began, ended - began)
    try:
        raised_at = session.run("raised_at", ranks=[who], timeout=20).value
        came_at = [
            session.run("came_at", ranks=[i], timeout=20).value
            for i in range(session.num_processes)
            if i != who
        ]
        took = Took(ended - max(raised_at, *came_at), ended - raised_at)
        session.run(kind.check, timeout=60)
    except JaxnbError as raised:
        return took, f"{error or ''} then: {raised} | {said.notices}"
    if error is not None or result is None:
        return took, f"{type(error).__name__}: {error} | {said.notices}"
    kinds = {i: each.type_name for i, each in result.errors.items()}
    n = session.num_processes
    if kinds != dict.fromkeys(range(n), "LeftBehindError") | {who: "NameError"}:
        return took, f"raised {kinds} | {said.notices}"
    is_late = took.seconds > LIMIT_SECONDS
    return took, f"took {took.seconds:.1f} s | {said.notices}" if is_late else ""


def try_group(variant: Variant, busy: int, who: int) -> Outcome:
    """Starts a group and runs the cell on it."""
    n, devices = variant.shape
    problem, took, replaced = "", None, ()
    settings: dict[str, Any] = {"devices_per_process": devices, "platform": "cpu"}
    with jaxnb.start(n, **settings) as session:
        before = [process.pid for process in session.processes]
        try:
            took, problem = try_typo(session, variant, who % n)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        now = [process.pid for process in session.processes]
        replaced = tuple(i for i in range(n) if before[i] != now[i])
    return Outcome(variant.label, busy, took, replaced, problem)


def summary(outcomes: list[Outcome]) -> str:
    """Returns how many ended, and how fast, by what ran beside."""
    lines = []
    for busy in sorted({each.busy for each in outcomes}):
        these = [each for each in outcomes if each.busy == busy]
        good = [each for each in these if not each.problem]
        times = sorted(each.took.seconds for each in these if each.took is not None)
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
        took = "" if outcome.took is None else f"{outcome.took.seconds:.2f} s"
        if outcome.took is not None and outcome.took.since_error > outcome.took.seconds + 0.1:
            took += f" ({outcome.took.since_error:.2f} s from the error)"
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
