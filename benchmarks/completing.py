"""Rows about Tab in a cell of the processes: how long IPython's completer takes to answer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.measure import Row, Target, alternate, say, summarize

NAMES = ("tab",)
MOST_SECONDS = 0.15
CODES = ("jnp.a", "x.", "state['", "j")
PYTHON = "%%spmd --async\nwhile True: sum(range(1000))"
CPP = "%%spmd --async\nm = jnp.ones((2500, 2500))\nwhile True: (m @ m).block_until_ready()"


def measure(names: set[str], sides: list[str], quick: bool) -> Iterator[Row]:
    """The rows of Tab, if ``names`` has it; its peer is Tab in the notebook's own cells."""
    if "tab" not in names or "jaxnb" not in sides:
        return
    say("Tab in cells of the processes, and in the notebook's")
    from IPython.core.interactiveshell import InteractiveShell

    times = 5 if quick else 25
    shell: Any = InteractiveShell.instance()
    names_here = "import jax.numpy as jnp\nx = jnp.arange(8.0)\nstate = {'w': x, 'step': 7}"
    shell.run_cell(names_here)
    shell.run_line_magic("load_ext", "jaxnb")
    shell.run_line_magic("spmd_start", "-n 4 --platform cpu")
    try:
        shell.user_ns["spmd"].run(names_here)
        whens: dict[str, Any] = {
            "idle": idle,
            "in Python": lambda: busy(shell, PYTHON),
            "in C++": lambda: busy(shell, CPP),
            "stopped": lambda: stopped(shell.user_ns["spmd"].processes[0].pid),
        }
        for when, made in whens.items():
            with made():
                yield row(shell, when, times)
    finally:
        shell.run_line_magic("spmd_stop", "")


def row(shell: Any, when: str, times: int) -> Row:
    """Tab while process 0 is doing something; what was told before is offered if it cannot."""
    missed = [0]
    ways: dict[str, Callable[[], list[float]]] = {
        "ours": lambda: completed(shell, "%%spmd\n", missed),
        "here": lambda: completed(shell, "", [0]),
    }
    found = alternate(ways, times)
    ours = [1e3 * seconds for each in found["ours"] for seconds in each]
    here = [1e3 * seconds for each in found["here"] for seconds in each]
    return Row(
        f"Tab in a cell of 4 processes, process 0 {when}",
        "ms",
        summarize(ours),
        summarize(here),
        "Tab in the notebook",
        Target(limit=1e3 * MOST_SECONDS),
        delivered=not missed[0],
        note=f"the slowest took {max(ours):.0f} ms; {missed[0]} of {len(ours)} offered nothing",
    )


def completed(shell: Any, before: str, missed: list[int]) -> list[float]:
    """Returns how long each of some completions took; counts those that offered nothing."""
    from IPython.core.completer import provisionalcompleter

    seconds = []
    for text in CODES:
        code = before + text
        started = time.perf_counter()
        with provisionalcompleter():
            found = list(shell.Completer.completions(code, len(code)))
        seconds.append(time.perf_counter() - started)
        missed[0] += not found
    return seconds


@contextmanager
def idle() -> Iterator[None]:
    """The processes do nothing."""
    yield


@contextmanager
def busy(shell: Any, code: str) -> Iterator[None]:
    """The processes run a background cell."""
    shell.run_cell(code)
    yield
    shell.run_line_magic("spmd_interrupt", "")
    shell.user_ns["spmd"].run("None")


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """A process is stopped."""
    os.kill(pid, signal.SIGSTOP)
    yield
    os.kill(pid, signal.SIGCONT)
