"""``python -m benchmarks [NAME...] [--quick|--full] [--side jaxnb|recipe]``: print a table.

Names: start, memory, idle, restart, stop, cells, lines, many, pull, push, force, recover,
where, death, recorder, replicas, stats, agreeing, compile, launch, tab. Without a name all are run.
The exit status is 1 if a target is missed, 0 otherwise.
"""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType
from typing import Any, NoReturn

from benchmarks import (
    agreeing,
    arrays,
    cells,
    compiling,
    completing,
    launching,
    lifecycle,
    troubles,
    watching,
)
from benchmarks.measure import Row, machine_facts, say, table, write_json
from benchmarks.processes import ROOT

LIVES = ("start", "memory", "idle", "restart", "stop")
NAMES = (
    *LIVES,
    "cells",
    "lines",
    "many",
    "pull",
    "push",
    *troubles.NAMES,
    *watching.NAMES,
    *agreeing.NAMES,
    *compiling.NAMES,
    *launching.NAMES,
    *completing.NAMES,
)
SIDES = ("recipe", "jaxnb")
RESULTS = ROOT / "benchmarks" / "results" / "bench.json"


def _terminated(signum: int, frame: FrameType | None) -> NoReturn:
    """Unwind as Ctrl-C does, so that everything that was started is ended."""
    raise SystemExit(128 + signum)


def main() -> int:
    """Run the benchmarks that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="few repetitions: a smoke run")
    parser.add_argument(
        "--full", action="store_true", help="arrays of every size with every number of processes"
    )
    parser.add_argument("--side", choices=SIDES, help="measure one side only")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(NAMES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}")
    signal.signal(signal.SIGTERM, _terminated)

    names = set(arguments.names) or set(NAMES)
    sides = [arguments.side] if arguments.side else list(SIDES)
    rows: list[Row] = []
    facts = machine_facts()
    try:
        rows.extend(lifecycle.measure(names, sides, arguments.quick))
        rows.extend(cells.measure(names, sides, arguments.quick))
        rows.extend(arrays.measure(names, sides, arguments.quick, arguments.full))
        rows.extend(troubles.measure(names, sides, arguments.quick))
        rows.extend(watching.measure(names, sides, arguments.quick))
        rows.extend(agreeing.measure(names, sides, arguments.quick))
        rows.extend(compiling.measure(names, sides, arguments.quick))
        rows.extend(launching.measure(names, sides, arguments.quick))
        rows.extend(completing.measure(names, sides, arguments.quick))
    finally:  # What was measured before a failure is shown all the same.
        report(rows, facts | {"quick": arguments.quick})
    return 1 if any(row.met is False for row in rows) else 0


def report(rows: list[Row], facts: dict[str, Any]) -> None:
    """Print the table and write the JSON."""
    if not rows:
        return
    write_json(RESULTS, rows, facts)
    kept = ("cores", "processor", "python", "jax", "ipyparallel", "jaxnb")
    print(", ".join(f"{key} {facts[key]}" for key in kept))
    print(table(rows), flush=True)
    say(f"written to {RESULTS.relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("interrupted; everything that was started has been ended")
        sys.exit(130)
