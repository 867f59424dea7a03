"""Rows about moving arrays: pull and push against ipyparallel, JAX's own ways and a memcpy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from benchmarks.children import run_reporting
from benchmarks.measure import Row, Summary, Target, say, summarize

CHILD_TIMEOUT_SECONDS = 1800.0
MIB = 1 << 20
SIZES_MIB = (1, 16, 256, 1024)
TARGET = (256, 4)  # MiB, processes
SIDES = ("jaxnb", "recipe")
ROWS, COLUMNS = ("x", None), (None, "x")
REPETITIONS = {1: 10, 16: 7, 256: 5, 1024: 2}
OTHER_REPETITIONS = 10
PEAK_REPETITIONS = 2
# What needs little: the target of a push. A pull's has the result in the notebook as its floor.
PUSH_PEAK = Target(limit=1.25)

Found = dict[str, Any]


def measure(names: set[str], sides: list[str], quick: bool, full: bool) -> Iterator[Row]:
    """The rows that ``names`` selects, of pull and push."""
    kinds: list[str] = [kind for kind in ("pull", "push") if kind in names]
    for num_processes in (2, 4, 8) if kinds else ():
        say(f"{num_processes} processes: {' and '.join(kinds)} of arrays")
        wanted = plan(num_processes, kinds, sides, quick, full)
        found: list[Found] = run_reporting(
            "benchmarks.arrays_child", [json.dumps(wanted)], CHILD_TIMEOUT_SECONDS
        )
        for kind in kinds:
            yield from rows(kind, num_processes, found)


def plan(
    num_processes: int, kinds: list[str], sides: list[str], quick: bool, full: bool
) -> dict[str, Any]:
    """What is to be moved in and out of groups of one size."""
    sizes = SIZES_MIB if full or num_processes == TARGET[1] else TARGET[:1]
    moves: list[dict[str, Any]] = []
    for mib in sizes:
        moves.append(
            {
                "mib": mib,
                "spec": ROWS,
                "kinds": kinds,
                "repetitions": min(2, REPETITIONS[mib]) if quick else REPETITIONS[mib],
                "peak_kinds": peak_kinds(mib, num_processes),
                "peak_repetitions": 1 if quick else PEAK_REPETITIONS,
            }
        )
        if (mib, num_processes) == TARGET:
            moves.append(moves[-1] | {"spec": COLUMNS, "kinds": ["pull"], "peak_kinds": []})
    return {
        "num_processes": num_processes,
        "sides": sides,
        "kinds": kinds,
        "moves": [move for move in moves if set(move["kinds"]) & set(kinds)],
        "other": 0 if num_processes != 4 else 2 if quick else OTHER_REPETITIONS,
    }


def peak_kinds(mib: int, num_processes: int) -> list[str]:
    """Which way's memory is watched: two group sizes for a push, whose target is about it."""
    if mib != TARGET[0]:
        return []
    return {4: ["pull", "push"], 8: ["push"]}.get(num_processes, [])


def rows(kind: str, num_processes: int, found: list[Found]) -> Iterator[Row]:
    """The rows of one kind from what one group size gave."""
    probe = next(item for item in found if item["work"] == f"probe {kind}")
    for item in found:
        if item["work"] in (f"{kind} rows", f"{kind} columns"):
            make = pull_rows if kind == "pull" else push_rows
            yield from make(item, num_processes)
            if item["peaks"]:
                yield peak_row(kind, item, probe, num_processes)
        elif item["work"] == f"{kind} slice":
            yield plain_row("pull 10 rows of 256 MiB", item, num_processes)
        elif item["work"] == f"{kind} tree":
            yield plain_row(f"{kind} 200 arrays of 64 KiB", item, num_processes)


def pull_rows(item: Found, num_processes: int) -> Iterator[Row]:
    """Against ipyparallel, and where the target is, against a memcpy."""
    mib = item["bytes"] // MIB
    is_target = (mib, num_processes) == TARGET and item["work"] == "pull rows"
    what = f"pull {size(mib)} over {num_processes}"
    if item["work"] == "pull columns":
        what += ", by columns"
    details = {"seconds": item["seconds"], "skipped": item["skipped"]}
    note = "; ".join([speeds(item), *item["skipped"]])
    target = Target(0.25) if is_target else Target()
    unit, ours = "s" if mib >= 256 else "ms", values(item, "jaxnb")
    peer = values(item, "recipe")
    yield Row(what, unit, ours, peer, "recipe", target, note=note, details=details)
    if is_target:
        copy, copy_read = values(item, "memcpy"), values(item, "memcpy", "with_a_pass")
        read = values(item, "jaxnb", "with_a_pass")
        note = f"with a pass over the result: {seconds(read)}, memcpy {seconds(copy_read)}"
        yield Row(what, unit, ours, copy, "memcpy", Target(2.0), note=note)


def push_rows(item: Found, num_processes: int) -> Iterator[Row]:
    """Against ``device_put``, and against the better of ipyparallel's ways."""
    mib = item["bytes"] // MIB
    is_target = (mib, num_processes) == TARGET
    what, unit = f"push {size(mib)} over {num_processes}", "s" if mib >= 256 else "ms"
    details = {"seconds": item["seconds"], "skipped": item["skipped"]}
    note = "; ".join([speeds(item), *item["skipped"]])
    ours, put = values(item, "jaxnb"), values(item, "device_put")
    recipe, recipe_name = better(item, "recipe, push", "recipe, scatter")
    if put or not recipe:
        target = Target(0.25) if is_target else Target()
        yield Row(what, unit, ours, put, "device_put", target, note=note, details=details)
        note = ""
    if recipe:
        yield Row(what, unit, ours, recipe, recipe_name, note=note, details=details)


def peak_row(kind: str, item: Found, probe: Found, num_processes: int) -> Row:
    """Memory of all processes together, as a multiple of the array."""
    peaks, peer_name = item["peaks"], "recipe" if kind == "pull" else "device_put"
    ours, peer = multiples(peaks, "jaxnb"), multiples(peaks, peer_name)
    medians = {name: multiples(peaks, name) for name in peaks if name != "jaxnb"}
    notes = [f"{name} {summary.median:.2f} ×" for name, summary in medians.items() if summary]
    if peer is None and (peer := multiples(probe["peaks"], peer_name)):
        peer_name += f" of {size(probe['bytes'] // MIB)}"
        notes += item["skipped"]
    if "jaxnb" in peaks:
        separate = max(peak["separate"] for peak in peaks["jaxnb"])
        notes.insert(0, f"jaxnb's processes' own peaks add up to {separate:.2f} ×")
    what = f"{kind} {size(item['bytes'] // MIB)} over {num_processes}"
    return Row(
        f"{what}: peak extra memory, all processes",
        "× array",
        ours,
        peer,
        peer_name,
        PUSH_PEAK if kind == "push" else Target(),
        note="; ".join(notes),
        details={"peaks": peaks, "probe": probe["peaks"]},
    )


def plain_row(what: str, item: Found, num_processes: int) -> Row:
    """Against ipyparallel, in milliseconds."""
    ours, peer = values(item, "jaxnb", unit="ms"), values(item, "recipe", unit="ms")
    details = {"seconds": item["seconds"]}
    others = {n: values(item, n, unit="ms") for n in item["seconds"] if n not in SIDES}
    note = "; ".join(f"{name} {found.median:.1f} ms" for name, found in others.items() if found)
    return Row(f"{what} over {num_processes}", "ms", ours, peer, note=note, details=details)


def size(mib: int) -> str:
    """A size for people."""
    return f"{mib // 1024} GiB" if mib >= 1024 else f"{mib} MiB"


def values(item: Found, name: str, key: str = "seconds", unit: str = "") -> Summary | None:
    """One way's times, in milliseconds if the array is small."""
    unit = unit or ("s" if item["bytes"] >= 256 * MIB else "ms")
    factor = 1e3 if unit == "ms" else 1.0
    return summarize([times[key] * factor for times in item["seconds"].get(name, [])])


def better(item: Found, *names: str) -> tuple[Summary | None, str]:
    """The way with the lowest median, and its name."""
    found = [(summary, name) for name in names if (summary := values(item, name))]
    return min(found, key=lambda pair: pair[0].median, default=(None, names[0]))


def multiples(peaks: dict[str, list[dict[str, float]]], name: str) -> Summary | None:
    """One way's peaks."""
    return summarize([peak["peak"] for peak in peaks.get(name, [])])


def speeds(item: Found) -> str:
    """GiB/s of every way."""
    gib = item["bytes"] / 2**30
    medians = {name: values(item, name, unit="s") for name in item["seconds"]}
    parts = [f"{name} {gib / found.median:.2f}" for name, found in medians.items() if found]
    return "GiB/s: " + ", ".join(parts)


def seconds(summary: Summary | None) -> str:
    """A median for people."""
    return f"{summary.median:.3f} s" if summary else "-"
