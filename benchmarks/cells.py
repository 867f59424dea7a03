"""Rows about cells, as a front end sees them: empty cells and printed lines."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

from benchmarks.kernels import Cell, Notebook, notebook
from benchmarks.measure import Row, Summary, Target, alternate, say, summarize
from benchmarks.processes import own_processes

WARM_UP_CELLS = 5
BLOCKS = 4
CELLS_PER_BLOCK = 20
LINES = 20_000
MANY = 32

START = {
    "recipe": "from benchmarks import recipe\ncluster, client = recipe.start({n})",
    "jaxnb": "%load_ext jaxnb\n%spmd_start -n {n} --platform cpu",
}
STOP = {"recipe": "recipe.stop(cluster, client)", "jaxnb": "%spmd_stop"}
EMPTY = {"recipe": "%%px\npass", "jaxnb": "%%spmd\npass", "plain": "pass"}
PRINT = {
    "recipe": '%%px\nfor i in range({lines}):\n    print("step", i)',
    "jaxnb": '%%spmd --out r\nfor i in range({lines}):\n    print("step", i)',
}
# Counts what the result holds; the last expression is what the driver reads.
COUNT = """
import json
lines = r.stdout.splitlines()
own = [p.stdout.count("step ") for p in r.per_process.values()]
json.dumps(dict(lines=len(lines), merged=sum(l.startswith("[0-7] step ") for l in lines), own=own))
"""


@contextlib.contextmanager
def groups(sides: list[str], num_processes: int) -> Iterator[dict[str, Notebook]]:
    """A notebook per side with a group running in it, and one named "plain" without."""
    with contextlib.ExitStack() as stack:
        env = stack.enter_context(own_processes())
        notebooks = {name: stack.enter_context(notebook(env)) for name in [*sides, "plain"]}
        for side in sides:
            cell = notebooks[side].run(START[side].format(n=num_processes))
            say(f"  {side} × {num_processes} started in a notebook: {cell.seconds:.2f} s")
        yield notebooks
        for side in sides:
            notebooks[side].run(STOP[side])


def empty_cells(notebooks: dict[str, Notebook], blocks: int) -> dict[str, Summary]:
    """Milliseconds of empty cells, in blocks that alternate between the notebooks."""

    def block(name: str, count: int = CELLS_PER_BLOCK) -> list[float]:
        return [notebooks[name].run(EMPTY[name]).seconds * 1e3 for _ in range(count)]

    for name in notebooks:
        block(name, WARM_UP_CELLS)
    parts = alternate({name: partial(block, name) for name in notebooks}, blocks)
    return {name: Summary(tuple(chain.from_iterable(found))) for name, found in parts.items()}


def empty_row(num_processes: int, found: dict[str, Summary]) -> Row:
    """The row of empty cells at one size."""
    plain = found["plain"]
    return Row(
        f"empty cell, {num_processes} processes, displayed",
        "ms",
        found.get("jaxnb"),
        found.get("recipe"),
        "%%px",
        Target(1.0),
        note=f"a plain notebook cell in the same run: {plain.median:.2f} ms",
        details={"plain": plain.as_json()},
    )


def lines_row(notebooks: dict[str, Notebook], repetitions: int, lines: int) -> Row:
    """Lines printed by each of 8 processes; checks that none was lost."""
    say(f"  {lines} lines from each of 8")
    sides = [side for side in ("jaxnb", "recipe") if side in notebooks]
    details: dict[str, Any] = {}

    def once(side: str) -> float:
        cell = notebooks[side].run(PRINT[side].format(lines=lines))
        details[side] = {"messages": len(cell.outputs), "bytes": cell.output_bytes}
        count = _check_ours if side == "jaxnb" else _check_recipe
        details[side] |= count(notebooks[side], cell, lines)
        return cell.seconds

    found = alternate({side: partial(once, side) for side in sides}, repetitions)
    merged = details.get("jaxnb", {}).get("merged", lines)
    return Row(
        f"{lines} printed lines from each of 8",
        "s",
        summarize(found.get("jaxnb")),
        summarize(found.get("recipe")),
        "%%px",
        Target(1.5),
        # Equal lines of all 8 have to come out as one.
        delivered=merged == lines,
        note="; ".join(f"{side}: {_arrived(details[side])}" for side in sides),
        details=details,
    )


def _check_ours(notebook: Notebook, cell: Cell, lines: int) -> dict[str, Any]:
    """Count what ``result.stdout`` and the processes' own records hold.

    Raises:
        RuntimeError: A process's record lacks lines.
    """
    counted: dict[str, Any] = json.loads(notebook.run(COUNT).text.strip("'\""))
    if counted.pop("own") != [lines] * 8:
        raise RuntimeError(f"lines were lost between the processes and the result: {counted}")
    return {**counted, "displayed": cell.text.count("step ")}


def _check_recipe(notebook: Notebook, cell: Cell, lines: int) -> dict[str, Any]:
    """Count the lines that ``%%px`` displayed; a loss is a finding, not an error."""
    return {"lines": cell.text.count("step "), "expected": 8 * lines}


def _arrived(details: dict[str, Any]) -> str:
    if "merged" in details:
        return f"{details['lines']} lines in the result, {details['merged']} of them from all 8"
    return f"{details['lines']} of {details['expected']} lines displayed"


def many_row(blocks: int) -> Row:
    """Empty cells on 32 processes; nobody to compare with."""
    with groups(["jaxnb"], MANY) as notebooks:
        found = empty_cells(notebooks, blocks)["jaxnb"]
    per_process = Summary(tuple(value / MANY for value in found.values))
    work = f"empty cell, {MANY} processes, per process"
    return Row(work, "ms", per_process, None, target=Target(limit=3.0))


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows that ``names`` selects, of cells, lines and many."""
    blocks = 1 if quick else BLOCKS
    sizes = [2, 4, 8] if "cells" in names else [8] if "lines" in names else []
    for size in sizes:
        say(f"{size} processes: cells in a notebook")
        with groups(sides, size) as notebooks:
            if "cells" in names:
                yield empty_row(size, empty_cells(notebooks, blocks))
            if "lines" in names and size == 8:
                yield lines_row(notebooks, 1 if quick else 5, LINES)
    if "many" in names and "jaxnb" in sides:
        say(f"{MANY} processes: cells in a notebook")
        yield many_row(blocks)
