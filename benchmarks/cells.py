"""Rows about cells, as a front end sees them: empty cells, printed lines, and Tab."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import psutil
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import KernelManager

from benchmarks.measure import ROOT, Row, alternate, own_processes, say

NAMES = ("cells", "lines", "tab")

CELL_TIMEOUT_SECONDS = 120.0
WARM_UP_CELLS, CELLS_PER_BLOCK = 5, 20
LINES = 20_000
MANY = 32
ANSI_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

START = {
    "recipe": "from benchmarks import recipe\ncluster, client = recipe.start({n})",
    "jaxnb": "%load_ext jaxnb\n%spmd_start -n {n} --platform cpu",
}
STOP = {"recipe": "recipe.stop(cluster, client)", "jaxnb": "%spmd_stop"}
EMPTY = {"recipe": "%%px\npass", "jaxnb": "%%spmd\npass", "plain": "pass"}
PRINT = {
    "recipe": f'%%px\nfor i in range({LINES}):\n    print("step", i)',
    "jaxnb": f'%%spmd --out r\nfor i in range({LINES}):\n    print("step", i)',
}
# Counts what the result holds; the last expression is what the driver reads.
COUNT = """
import json
own = [p.stdout.count("step ") for p in r.per_process.values()]
json.dumps([sum(l.startswith("[0-7] step ") for l in r.stdout.splitlines()), own])
"""
NAMES_OF_TAB = "import jax.numpy as jnp\nx = jnp.arange(8.0)\nstate = {'w': x, 'step': 7}"
TABS = ("jnp.a", "x.", "state['", "j")


class Notebook:
    """A kernel with its front end's side of the conversation.

    Args:
        client: Its connection.
        pid: Of the kernel's process.
    """

    def __init__(self, client: BlockingKernelClient, pid: int) -> None:
        self._client, self._process = client, psutil.Process(pid)

    def processor_seconds(self) -> float:
        """What the kernel and all that it has started have used of the processor."""
        those = [self._process, *self._process.children(recursive=True)]
        return sum(sum(each.cpu_times()[:2]) for each in those)

    def run(self, code: str) -> tuple[float, str]:
        """Run a cell; return the seconds until all was here, and the text of its output.

        Raises:
            RuntimeError: The cell raised.
        """
        shown = []
        begin = time.perf_counter()
        request = self._client.execute(code, store_history=True, allow_stdin=False)
        kind, content = "", {}
        while (kind, content.get("execution_state")) != ("status", "idle"):
            kind, content = self._next(self._client.get_iopub_msg, request)
            shown.append(content.get("text", content.get("data", {}).get("text/plain", "")))
        _, reply = self._next(self._client.get_shell_msg, request)
        seconds = time.perf_counter() - begin
        if reply["status"] != "ok":
            raise RuntimeError(ANSI_COLOUR.sub("", "\n".join([code, *reply["traceback"]])))
        return seconds, "".join(shown)

    def tab(self, before: str) -> float:
        """Seconds of one Tab after each of :data:`TABS`, the slowest's."""
        slowest = 0.0
        for text in TABS:
            begin = time.perf_counter()
            request = self._client.complete(before + text)
            _, reply = self._next(self._client.get_shell_msg, request)
            slowest = max(slowest, time.perf_counter() - begin)
            if not reply["matches"]:
                raise RuntimeError(f"Tab offered nothing after {before + text!r}")
        return slowest

    @staticmethod
    def _next(get: Any, request: str) -> tuple[str, dict[str, Any]]:
        while True:
            message = get(timeout=CELL_TIMEOUT_SECONDS)
            if message["parent_header"].get("msg_id") == request:
                return message["header"]["msg_type"], message["content"]


@contextlib.contextmanager
def notebook(env: dict[str, str]) -> Iterator[Notebook]:
    """A started kernel in the repository's root; shut down at the exit."""
    manager = KernelManager(kernel_name="python3")
    manager.start_kernel(env=env, cwd=str(ROOT), stderr=subprocess.DEVNULL)
    client: BlockingKernelClient = manager.client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=CELL_TIMEOUT_SECONDS)
        yield Notebook(client, manager.provisioner.process.pid)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        manager.cleanup_resources()


@contextlib.contextmanager
def groups(sides: list[str], num_processes: int) -> Iterator[dict[str, Notebook]]:
    """A notebook per side with a group running in it, and one named "plain" without."""
    with contextlib.ExitStack() as stack:
        env = stack.enter_context(own_processes())
        notebooks = {name: stack.enter_context(notebook(env)) for name in [*sides, "plain"]}
        for side in sides:
            seconds, _ = notebooks[side].run(START[side].format(n=num_processes))
            say(f"  {side} × {num_processes} started in a notebook: {seconds:.2f} s")
        yield notebooks
        for side in sides:
            notebooks[side].run(STOP[side])


def empty_cells(
    notebooks: dict[str, Notebook], blocks: int
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Milliseconds of empty cells, and their processor time; in blocks that alternate."""
    processor = dict.fromkeys(notebooks, 0.0)

    def block(name: str, count: int = CELLS_PER_BLOCK) -> list[float]:
        before = notebooks[name].processor_seconds()
        found = [notebooks[name].run(EMPTY[name])[0] * 1e3 for _ in range(count)]
        processor[name] += notebooks[name].processor_seconds() - before
        return found

    for name in notebooks:
        block(name, WARM_UP_CELLS)
    processor = dict.fromkeys(notebooks, 0.0)
    parts = alternate({name: partial(block, name) for name in notebooks}, blocks)
    found = {name: list(chain.from_iterable(each)) for name, each in parts.items()}
    return found, {name: 1e3 * processor[name] / len(each) for name, each in found.items()}


def lines_row(notebooks: dict[str, Notebook], sides: list[str], repetitions: int) -> Row:
    """Lines printed by each of 8 processes; none may be lost, and equal ones come out as one."""
    say(f"  {LINES} lines from each of 8")
    arrived: dict[str, int] = {}

    def once(side: str) -> float:
        seconds, text = notebooks[side].run(PRINT[side])
        arrived[side] = text.count("step ")
        if side == "jaxnb":
            arrived[side], own = json.loads(notebooks[side].run(COUNT)[1].strip("'\""))
            if own != [LINES] * 8:
                raise RuntimeError(f"lines were lost before the result: {own}")
        return seconds

    found = alternate({side: partial(once, side) for side in sides}, repetitions)
    return Row(
        f"{LINES} printed lines from each of 8",
        "s",
        found.get("jaxnb", []),
        found.get("recipe", []),
        "%%px",
        most=1.0,
        is_whole=arrived.get("jaxnb", LINES) == LINES,
        note=f"jaxnb's lines from all 8, and the recipe's displayed lines: {arrived}",
    )


def tab_rows(repetitions: int) -> Iterator[Row]:
    """Tab in a cell of the processes, beside Tab in the notebook's own cells."""
    busy = "%%spmd --async\nwhile True: sum(range(1000))"
    with groups(["jaxnb"], 4) as notebooks:
        ours = notebooks["jaxnb"]
        for each in (NAMES_OF_TAB, f"%%spmd\n{NAMES_OF_TAB}"):
            ours.run(each)
        for when, code in (("idle", "%%spmd\npass"), ("in Python", busy)):
            ours.run(code)
            ways = {"ours": lambda: ours.tab("%%spmd\n"), "here": lambda: ours.tab("")}
            found = {way: [s * 1e3 for s in those] for way, those in
                     alternate(ways, repetitions).items()}  # fmt: skip
            work = f"Tab in a cell of 4 processes, {when}"
            yield Row(work, "ms", found["ours"], found["here"], "Tab in the notebook", limit=150.0)
        ours.run("%spmd_interrupt")


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows that ``names`` selects."""
    for size in (2, 4, 8) if "cells" in names else (8,) if "lines" in names else ():
        say(f"{size} processes: cells in a notebook")
        with groups(sides, size) as notebooks:
            if "cells" in names:
                found, processor = empty_cells(notebooks, 1 if quick else 5)
                used = ", ".join(f"{name} {each:.1f} ms" for name, each in processor.items())
                note = f"a plain notebook cell in the same run: {median(found['plain']):.2f} ms; "
                note += f"processor time of kernel and processes: {used}"
                ours, peer = found.get("jaxnb", []), found.get("recipe", [])
                few = size, median(ours or [0.0])
                work = f"empty cell, {size} processes, displayed"
                yield Row(work, "ms", ours, peer, "%%px", 1.0, note=note)
            if "lines" in names and size == 8:
                yield lines_row(notebooks, sides, 1 if quick else 5)
    if "cells" in names and "jaxnb" in sides:
        say(f"{MANY} processes: cells in a notebook")
        with groups(["jaxnb"], MANY) as notebooks:
            found, _ = empty_cells(notebooks, 1 if quick else 5)
        each = [milliseconds / MANY for milliseconds in found["jaxnb"]]
        yield Row(f"empty cell, {MANY} processes, per process", "ms", each, [], limit=2.0)
        each = [(milliseconds - few[1]) / (MANY - few[0]) for milliseconds in found["jaxnb"]]
        yield Row(f"empty cell, each process from {few[0]} to {MANY}", "ms", each, [], limit=3.0)
    if "tab" in names and "jaxnb" in sides:
        say("Tab in cells of the processes, and in the notebook's")
        yield from tab_rows(5 if quick else 25)
