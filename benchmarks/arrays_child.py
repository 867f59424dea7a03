"""Arrays moved in and out of groups that one fresh Python process started.

``python -m benchmarks.arrays_child REPORT PLAN`` starts the sides' groups beside each other,
moves what PLAN (JSON) lists in all ways, in turn, and writes what it measured to REPORT.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.measure import say
from benchmarks.movers import Array, Memcpy, Mover, Way, Work, host_tree
from benchmarks.movers_jaxnb import Jaxnb
from benchmarks.movers_recipe import Recipe
from benchmarks.peak import available_bytes, peak_during

MIB = 1 << 20
# What a way needs is measured with this much and scaled up, before it is let loose on more.
PROBE = Work((16 * 256, 1024))
# Of what is available. A way takes a part; others use the machine too.
MOST_OF_AVAILABLE = 0.7
SHARE_SECONDS = 5.0
LEAST_REPETITIONS = 2

Found = dict[str, Any]

MOVERS: dict[str, Callable[[int], Mover]] = {"recipe": Recipe, "jaxnb": Jaxnb}


def timed(way: Way) -> dict[str, float]:
    """Seconds of one move, and of one pass over what arrived, if it did in this process."""
    way.drop()
    begin = time.perf_counter()
    result = way.move()
    seconds = {"seconds": time.perf_counter() - begin}
    if hasattr(result, "max"):
        result.max()
        seconds["with_a_pass"] = time.perf_counter() - begin
    way.check(result)
    del result
    way.drop()
    return seconds


def in_turn(ways: dict[str, Way], repetitions: int) -> dict[str, list[dict[str, float]]]:
    """Times of all ways, A B C A B C …; a slow one drops out once it has had its share."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in ways}
    for _ in range(repetitions):
        for name, way in ways.items():
            spent = sum(times["seconds"] for times in found[name])
            if len(found[name]) < LEAST_REPETITIONS or spent < SHARE_SECONDS:
                found[name].append(timed(way))
    return found


def peaks(way: Way, pids: list[int], num_bytes: int, repetitions: int) -> list[dict[str, float]]:
    """Peaks of a way, sizes as multiples of what it moves."""
    found = []
    for _ in range(repetitions):
        way.drop()
        result, peak = peak_during(way.move, [*pids, os.getpid()])
        way.check(result)
        del result
        way.drop()
        found.append(
            {
                "peak": peak.peak_bytes / num_bytes,
                "left": peak.left_bytes / num_bytes,
                "left_pss": peak.left_pss_bytes / num_bytes,
                "separate": peak.separate_bytes / num_bytes,
                "samples": peak.samples,
                "longest_gap_seconds": peak.longest_gap_seconds,
            }
        )
    return found


class Bench:
    """Groups of one size, beside each other."""

    def __init__(self, movers: dict[str, Mover]) -> None:
        self._movers = movers
        self._multiples: dict[str, float] = {}

    def ways(self, kind: str, work: Work, host: Array) -> dict[str, tuple[Way, list[int]]]:
        """Name to way and the processes that it uses, the notebook's left out."""
        found = {}
        for mover in self._movers.values():
            mover.prepare(work)
            make = mover.pulls if kind == "pull" else mover.pushes
            found.update({name: (way, mover.pids) for name, way in make(work, host).items()})
        if kind == "pull":
            found.update({name: (way, []) for name, way in Memcpy().pulls(work, host).items()})
        return found

    def probe(self, kind: str) -> Found:
        """Measure what every peer needs, with a small array."""
        found = {}
        for name, (way, pids) in self.ways(kind, PROBE, PROBE.host()).items():
            if name not in ("jaxnb", "memcpy"):
                found[name] = peaks(way, pids, PROBE.num_bytes, 2)
                self._multiples[name] = max(peak["peak"] for peak in found[name])
        return {"work": f"probe {kind}", "bytes": PROBE.num_bytes, "peaks": found}

    def reason_to_skip(self, name: str, way: Way, work: Work) -> str:
        """Why a way is not tried on this machine now; empty if it is."""
        multiple = max(way.copies, self._multiples.get(name, 0.0))
        need, free = multiple * work.num_bytes, available_bytes()
        if need <= MOST_OF_AVAILABLE * free:
            return ""
        return (
            f"{name} not run: it needs about {multiple:.0f} × the array, {need / 2**30:.0f} GiB; "
            f"{free / 2**30:.0f} GiB are free, of which the benchmark takes {MOST_OF_AVAILABLE:.0%}"
        )

    def move(self, kind: str, work: Work, repetitions: int, peak_repetitions: int) -> Found:
        """One array in all ways."""
        skipped, found_peaks = [], {}
        ways = self.ways(kind, work, work.host())
        for name in list(ways):
            if reason := self.reason_to_skip(name, ways[name][0], work):
                skipped.append(reason)
                del ways[name]
        for name, (way, pids) in ways.items():
            # First of all, while nobody keeps memory for the next time.
            if peak_repetitions and name != "memcpy":
                found_peaks[name] = peaks(way, pids, work.num_bytes, peak_repetitions)
            else:
                timed(way)  # Warm: compiled, connected, memory touched.
        seconds = in_turn({name: way for name, (way, _) in ways.items()}, repetitions)
        return {
            "work": f"{kind} {'columns' if work.spec[0] is None else 'rows'}",
            "bytes": work.num_bytes,
            "seconds": seconds,
            "peaks": found_peaks,
            "skipped": skipped,
        }

    def other(self, kind: str, repetitions: int) -> Iterator[Found]:
        """A few rows of an array, and a dictionary of small ones."""
        work, tree = Work((256 * 256, 1024)), host_tree()
        host = work.host()
        many: dict[str, Way] = {}
        few: dict[str, Way] = {}
        for mover in self._movers.values():
            if kind == "pull":
                mover.prepare(work)
                few.update(mover.slice_pulls(host))
            many.update(mover.tree_pulls(tree) if kind == "pull" else mover.tree_pushes(tree))
        for name, ways in (("slice", few), ("tree", many)):
            in_turn(ways, 1)
            if ways:
                yield {"work": f"{kind} {name}", "seconds": in_turn(ways, repetitions)}


def run(plan: dict[str, Any], bench: Bench) -> Iterator[Found]:
    """All that the plan lists."""
    for kind in plan["kinds"]:
        yield bench.probe(kind)
        for entry in plan["moves"]:
            if kind not in entry["kinds"]:
                continue
            work = Work((entry["mib"] * 256, 1024), tuple(entry["spec"]))
            peaks_wanted = entry["peak_repetitions"] if kind in entry["peak_kinds"] else 0
            yield bench.move(kind, work, entry["repetitions"], peaks_wanted)
        if plan["other"]:
            yield from bench.other(kind, plan["other"])


def main() -> None:
    """Follow the plan; the groups are stopped in any case."""
    report_path, plan = Path(sys.argv[1]), json.loads(sys.argv[2])
    found = []
    with contextlib.ExitStack() as stack:
        movers: dict[str, Mover] = {}
        for side in plan["sides"]:
            movers[side] = MOVERS[side](plan["num_processes"])
            stack.callback(movers[side].stop)
        for measured in run(plan, Bench(movers)):
            found.append(measured)
            say(f"{measured['work']} {measured.get('bytes', 0) // MIB} MiB")
    report_path.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
