"""Rows about trouble: ends by force, recoveries, where processes are, recorded dispatches."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import lifecycle
from benchmarks.children import run_reporting
from benchmarks.measure import Row, Summary, Target, say, summarize
from benchmarks.troubles_child import PYTHON_ONLY
from jaxnb.lockstep.process_inputs import digest

CHILD_TIMEOUT_SECONDS = 900.0
STEPS = ("force", "recover", "where", "death")
NAMES = (*STEPS, "recorder", "replicas")
REPLICA_BYTES = 256 << 20
QUIET = "strict, no pitfalls"
MODES = ("off", PYTHON_ONLY, QUIET, "strict")
CALLS = 500
PEER = "recipe's stop and start"

Found = dict[str, Any]


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows that ``names`` selects: of force, recover, where, death and the rest."""
    steps: list[str] = [step for step in STEPS if step in names]
    if steps:
        # Who is stuck with the recipe stops it, starts it, and has no variables.
        stops = "recipe" in sides and bool({"force", "recover"}.intersection(steps))
        peer = again(1 if quick else 2) if stops else None
        for devices in (1, 2) if "jaxnb" in sides else ():
            yield from one_size(devices, steps, peer, quick)
    if "recorder" in names and "jaxnb" in sides:
        yield from recorder_rows(1 if quick else 5)
    if "replicas" in names and "jaxnb" in sides:
        yield replica_row(3 if quick else 15)


def again(repetitions: int) -> Summary | None:
    """Seconds to stop and to start the recipe's group of 4."""
    reports = [lifecycle.run_child("recipe", 4, ["restart"]) for _ in range(repetitions)]
    return summarize([report["restart"] for report in reports])


def one_size(devices: int, steps: list[str], peer: Summary | None, quick: bool) -> Iterator[Row]:
    """The rows of 4 processes with so many devices each."""
    say(f"4 processes × {devices}: {', '.join(steps)}")
    plan = {"devices": devices, "steps": steps, "repetitions": 2 if quick else 10}
    found = run_child(plan)
    where = f"4 × {devices}"
    if "force" in steps:
        yield from force_rows(found, where, peer)
    if "recover" in steps:
        carried = "recover, {where}, {mib:.0f} MiB of arrays carried"
        yield remade_row(found["recover"], carried, 1.5, where, peer)
    if "where" in steps:
        yield from where_rows(found, where)
    if "death" in steps:
        yield death_row(found, where)


def run_child(plan: Found) -> Found:
    """What one fresh process measured."""
    found: Found = run_reporting(
        "benchmarks.troubles_child", [json.dumps(plan)], CHILD_TIMEOUT_SECONDS
    )
    return found


def force_rows(found: Found, where: str, peer: Summary | None) -> Iterator[Row]:
    """Cells that a first Interrupt does not end, and a second one."""
    kinds = {"stuck": "a deadlock without checks", "loop": "a loop that swallows interrupts"}
    for kind, name in kinds.items():
        ends = found[kind]
        returned = summarize([each["returned"] for each in ends])
        yield Row(
            f"{name}, {where}: from Interrupt to usable",
            "s",
            summarize([each["usable"] for each in ends]),
            peer,
            PEER,
            note="interrupted again when that is offered; to the end of a cell with a collective, "
            "compiled anew, and the variables of before; the notebook's cell ends "
            f"{_median(returned)} s after the first Interrupt",
            details={"ends": ends},
        )


def remade_row(
    measured: list[Found], what: str, limit: float, where: str, peer: Summary | None
) -> Row:
    """A healthy group, made again with its arrays."""
    mib = measured[0]["bytes"] / (1 << 20)
    usable = summarize([each["usable"] for each in measured])
    return Row(
        what.format(where=where, mib=mib),
        "s",
        summarize([each["returned"] for each in measured]),
        peer,
        PEER,
        Target(limit=limit),
        note=f"to the end of a cell with a collective, compiled anew: {_median(usable)} s",
        details={"measured": measured},
    )


def where_rows(found: Found, where: str) -> Iterator[Row]:
    """Asking the sentinels, and what they use when nobody asks."""
    stuck = summarize([seconds * 1e3 for seconds in found["where stuck"]])
    yield Row(
        f"session.where(), {where}, idle",
        "ms",
        summarize([seconds * 1e3 for seconds in found["where idle"]]),
        None,
        note=f"while 3 of them wait in a collective: {_median(stuck)} ms",
        details={"stuck": stuck and stuck.as_json()},
    )
    watched = summarize(found["sentinel watched"])
    yield Row(
        f"sentinel's CPU, {where}, idle, each process",
        "% core",
        summarize(found["sentinel idle"]),
        None,
        target=Target(limit=1.0),
        note=f"while a cell sleeps, and is looked at: {_median(watched)} %",
        details={"watched": watched and watched.as_json()},
    )


def death_row(found: Found, where: str) -> Row:
    """A process that is killed while the others wait for it."""
    ended = summarize([each["ended"] for each in found["death"]])
    return Row(
        f"a process is killed, {where}: noticed",
        "s",
        summarize([each["noticed"] for each in found["death"]]),
        None,
        target=Target(limit=0.5),
        note="from SIGKILL, while the others wait for it in a collective; the notebook's cell ends "
        f"{_median(ended)} s after it",
        details={"death": found["death"]},
    )


def recorder_rows(repetitions: int) -> Iterator[Row]:
    """A call of a jitted function on a global array, by what is done about each dispatch."""
    say(f"4 processes: {CALLS} calls with check={', '.join(MODES)}")
    plan = {
        "modes": list(MODES),
        "calls": dict.fromkeys(MODES, CALLS),
        "repetitions": repetitions,
    }
    found: dict[str, list[Found]] = run_child(plan)["dispatches"]

    def values(mode: str, clock: str, factor: float) -> Summary | None:
        return summarize([each[clock] * factor for each in found[mode]])

    yield Row(
        "a dispatch, 4 × 1, check=strict: the thread that calls",
        "µs",
        values("strict", "own", 1e6),
        values(PYTHON_ONLY, "own", 1e6),
        "JAX's Python path",
        note=f"processor time. check=off, on JAX's fast path: "
        f"{_median(values('off', 'own', 1e6))} µs. Pitfalls are looked for; without that "
        f"{_median(values(QUIET, 'own', 1e6))} µs",
        details=found,
    )
    yield Row(
        "a dispatch, 4 × 1, check=strict",
        "ms",
        values("strict", "wall", 1e3),
        values("off", "wall", 1e3),
        "check=off",
        Target(limit=1.0),
        note="by the clock: the processes wait for each other",
    )


def replica_row(repetitions: int) -> Row:
    """A replicated array's digest, taken once before its first use, beside a copy of it."""
    say(f"{REPLICA_BYTES >> 20} MiB: digested and copied {repetitions} times")
    host = np.random.default_rng(0).integers(0, 1 << 62, REPLICA_BYTES // 8)
    seconds: dict[str, list[float]] = {"digest": [], "copy": []}
    for _ in range(repetitions):
        for name, call in (("digest", partial(digest, host)), ("copy", host.copy)):
            begin = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin)
    found = {name: [each * 1e3 for each in those] for name, those in seconds.items()}
    speed = REPLICA_BYTES / min(seconds["digest"]) / 1e9
    return Row(
        "digest a replica of 256 MiB",
        "ms",
        summarize(found["digest"]),
        summarize(found["copy"]),
        "fresh memcpy",
        Target(times_peer=2.0),
        note=f"{speed:.3g} GB/s at best; once for each array that no recorded dispatch has made",
        details=found,
    )


def _median(summary: Summary | None) -> str:
    """A median for people."""
    return f"{summary.median:.3g}" if summary else "-"
