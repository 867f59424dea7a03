# mypy: disable-error-code="no-untyped-call"
"""Rows about moving arrays: pull and push against ipyparallel, ``device_put`` and a memcpy.

``python -m benchmarks.arrays REPORT PROCESSES KINDS SIDES`` starts the sides' groups beside each
other, moves arrays in all ways, in turn, and writes the seconds to REPORT.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import ipyparallel as ipp
import numpy as np

import jaxnb
from benchmarks import recipe
from benchmarks.measure import Row, run_reporting, say

NAMES = ("pull", "push", "small")

MIB = 1 << 20
TARGET = (256, 4)  # MiB, processes
REPETITIONS = {1: 10, 16: 7, 256: 5}
OTHER_REPETITIONS = 10
SHARE_SECONDS = 5.0
LEAST_REPETITIONS = 2
LEAVES, LEAF_ROWS = 200, 16
SMALL_BLOCKS, SMALL_TIMES = 5, 20

# Runs in every process of either group. Element i of every array is i.
PROCESS_CODE = """
import jax, numpy as np
mesh = jax.make_mesh((jax.device_count(),), ("x",), axis_types=(jax.sharding.AxisType.Auto,))
rows = jax.NamedSharding(mesh, jax.P("x", None))

def counted(index):
    return np.arange(index[0].start * 1024, index[0].stop * 1024, dtype=np.int32).reshape(-1, 1024)

def make(height):
    return spread(height, counted)

def spread(height, get):
    def of(index):
        first, last, _ = index[0].indices(height)
        return get((slice(first, last),))
    return jax.block_until_ready(jax.make_array_from_callback((height, 1024), rows, of))

def mine(array):
    return np.asarray(array.addressable_data(0))

def holds(array):
    return array.sharding.is_equivalent_to(rows, 2) and all(
        np.array_equal(s.data, counted((slice(*s.index[0].indices(array.shape[0])[:2]),)))
        for s in array.addressable_shards)
"""

Ways = dict[str, Callable[[], Any]]


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows that ``names`` selects."""
    kinds = [kind for kind in NAMES if kind in names]
    for count in ((4,) if kinds == ["small"] else (2, 4, 8)) if kinds else ():
        say(f"{count} processes: {' and '.join(kinds)} of arrays")
        wanted = (str(count), " ".join(kinds), " ".join(sides), "quick" * quick)
        for found in run_reporting("benchmarks.arrays", *wanted):
            yield from rows(count, **found)


def rows(
    count: int, kind: str, what: str, mib: int, seconds: dict[str, list[float]], **more: Any
) -> Iterator[Row]:
    """The rows of one work: against the recipe, and against JAX's own or a copy."""
    if kind == "small":
        of = {name: [1e3 * each for each in those] for name, those in seconds.items()}
        cpu = ", ".join(f"{name} {1e3 * each:.2f} ms" for name, each in more["processor"].items())
        yield Row(f"{what}, of {count}", "ms", of.get("jaxnb", []), of.get("recipe", []),
                  most=1.0, note=f"processor time of the notebook: {cpu}")  # fmt: skip
        return
    factor, unit = (1.0, "s") if (mib >= 256 and what == "array") else (1e3, "ms")
    found = {name: [factor * each for each in those] for name, those in seconds.items()}
    name = f"{mib} MiB" if what == "array" else f"{LEAVES} arrays of 64 KiB"
    work, ours = f"{kind} {name} over {count}", found.get("jaxnb", [])
    speeds = {name: mib / 1024 / median(those) for name, those in seconds.items() if those}
    note = "GiB/s: " + ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
    is_target = what == "array" and (mib, count) == TARGET
    is_pull = kind == "pull"
    most = 1.0 if is_pull and mib <= 1 else 0.25 if is_target and is_pull else None
    yield Row(work, unit, ours, found.get("recipe", []), "recipe",
              most, note=note * (what == "array"))  # fmt: skip
    if is_target and is_pull:
        yield Row(work, unit, ours, found["memcpy"], "memcpy", 2.0)
    if what == "array" and not is_pull:
        yield Row(work, unit, ours, found.get("device_put", []), "device_put",
                  0.25 if is_target else None)  # fmt: skip


# ---------------------------------------------------------------------- the sides' ways


class Jaxnb:
    """The group that ``jaxnb.start`` makes."""

    def __init__(self, count: int) -> None:
        self._session: Any = jaxnb.start(count, platform="cpu")
        self.stop = self._session.close

    def run(self, code: str) -> None:
        """Runs a cell."""
        self._session.run(code)

    def drop(self) -> None:
        """Frees what a push has left."""
        self.run("y = None")

    def ways(self, kind: str, what: str, host: Any) -> Ways:
        """Name to way; ``x`` is pulled, and ``y`` pushed."""
        session = self._session
        if kind == "push":
            return {"jaxnb": lambda: session.push(y=host, spec=("x", None), mesh="mesh")}
        if what == "tree":
            pulled = lambda: session.pull("x", lazy=False).items()  # noqa: E731
            return {"jaxnb": lambda: {name: np.asarray(leaf) for name, leaf in pulled()}}
        return {"jaxnb": lambda: np.asarray(session.pull("x"))}

    def small(self, few: Any) -> Ways:
        """Work to way, of what is small."""
        session = self._session
        return {
            "pull 8 floats": lambda: np.asarray(session.pull("few")),
            "pull 10 rows of 256 MiB": lambda: np.asarray(session.pull("big[:10]")),
            "pull a leaf of 64 KiB": lambda: np.asarray(session.pull("tree['leaf']")),
            "push 8 floats": lambda: session.push(y=few),
        }


class Recipe:
    """The group that :mod:`benchmarks.recipe` makes, with what one would write for it."""

    def __init__(self, count: int) -> None:
        self._cluster, self._client = recipe.start(count)
        self._view = self._client[:]

    def stop(self) -> None:
        """Stops engines and controller."""
        recipe.stop(self._cluster, self._client)

    def run(self, code: str) -> None:
        """Runs code, as ``%%px`` does."""
        self._view.execute(code, block=True)

    def drop(self) -> None:
        """Frees what was moved: the client and the hub keep every array otherwise."""
        self.run("y = w = None")
        self._client.purge_everything()

    def ways(self, kind: str, what: str, host: Any) -> Ways:
        """Name to way."""
        view = self._view
        if kind == "pull":
            self.run("local = {n: mine(v) for n, v in x.items()} if type(x) is dict else mine(x)")
            pull = lambda: view.pull("local", block=True)  # noqa: E731
            if what == "array":
                return {"recipe": lambda: np.concatenate(pull())}

            def joined() -> dict[str, Any]:
                parts = pull()
                return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

            return {"recipe": joined}
        make = "y = spread(w.shape[0], lambda i: w[i])"
        if what == "tree":
            make = "y = {n: spread(v.shape[0], lambda i: v[i]) for n, v in w.items()}"

        def push() -> None:
            view.push({"w": host}, block=True)
            self.run(make)

        put = "y = jax.block_until_ready(jax.device_put(host, rows))"
        if what == "tree" or len(self._view) > 4:  # of 8, device_put takes 36 GiB for 256 MiB
            return {"recipe": push}
        self.run(f"host = counted((slice(0, {len(host)}),))")
        return {"recipe": push, "device_put": lambda: self.run(put)}

    def small(self, few: Any) -> Ways:
        """Work to way, of what is small; the first engine has the rows."""
        view, first = self._view, self._client[0]
        self.run("few, leaf, whole = mine(few), mine(tree['leaf']), mine(big)")
        self.run("def first_rows(): return whole[:10]")
        joined = lambda name: np.concatenate(view.pull(name, block=True))  # noqa: E731
        return {
            "pull 8 floats": lambda: joined("few"),
            "pull 10 rows of 256 MiB": lambda: first.apply_sync(ipp.Reference("first_rows")),
            "pull a leaf of 64 KiB": lambda: joined("leaf"),
            "push 8 floats": lambda: view.push({"y": few}, block=True),
        }


def moved(side: Any, kind: str, what: str, host: Any, move: Callable[[], Any]) -> float:
    """Seconds of one move, which has to have brought what was sent.

    Raises:
        RuntimeError: Something else arrived.
    """
    begin = time.perf_counter()
    result = move()
    seconds = time.perf_counter() - begin
    if kind == "push":
        each = "all(map(holds, y.values()))" if what == "tree" else "holds(y)"
        side.run(f"assert {each}")
    elif what == "tree":
        if not all(np.array_equal(result[name], leaf) for name, leaf in host.items()):
            raise RuntimeError("the tree that arrived is not the one that was sent")
    elif not np.array_equal(result, host):
        raise RuntimeError(f"{result!r} arrived in the place of {host!r}")
    del result
    if side is not None:
        side.drop()
    return seconds


def in_turn(sides: list[Any], kind: str, what: str, mib: int, repetitions: int) -> dict[str, Any]:
    """All ways of one work, A B C A B C …; a slow one drops out once it has had its share."""
    height = LEAF_ROWS if what == "tree" else mib * 256
    host: Any = np.arange(height * 1024, dtype=np.int32).reshape(-1, 1024)
    made = f"make({height})"
    if what == "tree":
        host = {f"leaf{i:03}": host.copy() for i in range(LEAVES)}
        made = f"{{f'leaf{{i:03}}': make({height}) for i in range({LEAVES})}}"
    ways: dict[str, tuple[Any, Callable[[], Any]]] = {}
    for side in sides:
        side.run(f"x = host = local = None\nx = {made}")
        ways |= {name: (side, move) for name, move in side.ways(kind, what, host).items()}
    if (kind, what) == ("pull", "array"):
        ways["memcpy"] = (None, host.copy)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(repetitions + 1):
        for name, (side, move) in ways.items():
            if len(found[name]) < LEAST_REPETITIONS or sum(found[name]) < SHARE_SECONDS:
                seconds = moved(side, kind, what, host, move)
                if turn:  # the first one compiles, connects, touches memory
                    found[name].append(seconds)
    return {"kind": kind, "what": what, "mib": mib, "seconds": found}


def small(sides: list[Any], blocks: int) -> Iterator[dict[str, Any]]:
    """Small pulls and pushes, in blocks that alternate; the median of each block."""
    ways: dict[str, Ways] = {}
    for side in sides:
        side.run("big, tree = make(65536), {'leaf': make(16)}")
        side.run("few = jax.device_put(np.arange(8.0), jax.NamedSharding(mesh, jax.P('x')))")
        for what, move in side.small(np.arange(8.0)).items():
            ways.setdefault(what, {})[type(side).__name__.lower()] = move
    for what, of_sides in ways.items():
        seconds: dict[str, list[float]] = {name: [] for name in of_sides}
        processor: dict[str, list[float]] = {name: [] for name in of_sides}
        for turn in range(blocks + 1):
            for name, move in of_sides.items():
                times, before = [], time.process_time()
                for _ in range(SMALL_TIMES):
                    begin = time.perf_counter()
                    move()
                    times.append(time.perf_counter() - begin)
                if turn:  # the first ones connect, and touch memory
                    seconds[name].append(median(times))
                    processor[name].append((time.process_time() - before) / SMALL_TIMES)
        used = {name: median(those) for name, those in processor.items()}
        yield {"kind": "small", "what": what, "mib": 0, "seconds": seconds, "processor": used}


def main() -> None:
    """Moves what the command line says; the groups are stopped in any case."""
    report, count, kinds, names, quick = sys.argv[1:]
    found = []
    with contextlib.ExitStack() as stack:
        sides: list[Any] = []
        for name in names.split():
            sides.append({"jaxnb": Jaxnb, "recipe": Recipe}[name](int(count)))
            stack.callback(sides[-1].stop)
            sides[-1].run(PROCESS_CODE)
        works = [("array", mib) for mib in ((1, 16, 256) if count == "4" else (256,))]
        if "small" in kinds.split() and count == "4":
            found += small(sides, 1 if quick else SMALL_BLOCKS)
            say("small pulls and pushes")
        for kind in (each for each in kinds.split() if each != "small"):
            for what, mib in works + [("tree", 0)] * (count == "4"):
                times = REPETITIONS[mib] if what == "array" else OTHER_REPETITIONS
                found.append(in_turn(sides, kind, what, mib, 2 if quick else times))
                say(f"{kind} {what} {mib} MiB")
    Path(report).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
