"""``python -m benchmarks [NAME...] [--quick] [--side jaxnb|recipe]``: print a table.

A name is that of a benchmark (lifecycle, cells, arrays, agreeing) or of a group of its rows
(start, memory, …). Without a name all are run. The exit status is 1 if a target is missed.
"""

from __future__ import annotations

import argparse
import signal
import sys

from benchmarks import agreeing, arrays, cells, lifecycle
from benchmarks.measure import ROOT, Row, machine_facts, say, table, write_json

BENCHMARKS = {"lifecycle": lifecycle, "cells": cells, "arrays": arrays, "agreeing": agreeing}
NAMES = tuple(name for benchmark in BENCHMARKS.values() for name in benchmark.NAMES)
SIDES = ("recipe", "jaxnb")
RESULTS = ROOT / "benchmarks" / "results" / "bench.json"


def main() -> int:
    """Run the benchmarks that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    known = dict.fromkeys((*BENCHMARKS, *NAMES))
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(known))
    parser.add_argument("--quick", action="store_true", help="few repetitions: a smoke run")
    parser.add_argument("--side", choices=SIDES, help="measure one side only")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(known):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    # Unwinds as Ctrl-C does, so that everything that was started is ended.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sides = [arguments.side] if arguments.side else list(SIDES)
    rows: list[Row] = []
    facts = machine_facts() | {"quick": arguments.quick}
    try:
        for name, benchmark in BENCHMARKS.items():
            asked = set(arguments.names or BENCHMARKS)
            wanted = set(benchmark.NAMES) if name in asked else asked
            rows.extend(benchmark.measure(wanted, sides, arguments.quick))
    finally:  # What was measured before a failure is shown all the same.
        if rows:
            write_json(RESULTS, rows, facts)
            print(", ".join(f"{key} {value}" for key, value in facts.items()))
            print(table(rows), flush=True)
            say(f"written to {RESULTS.relative_to(ROOT)}")
    return 1 if any(row.met is False for row in rows) else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; everything that was started has been ended")
        sys.exit(130)
