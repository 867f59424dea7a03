"""How long Tab takes in a cell of the processes: ``python scripts/typing_rate.py [TIMES]``.

Through IPython's completer, as a notebook kernel asks it: while the processes are idle, while their
main threads compute in Python, while these are in C++, and while process 0 is stopped. What is not
answered within 0.1 s is offered from what was told before, and counts with the time waited.
"""

from __future__ import annotations

import os
import signal
import statistics
import sys
import time
from typing import Any

from IPython.core.completer import provisionalcompleter
from IPython.core.interactiveshell import InteractiveShell

CODES = ("%%spmd\njnp.a", "%%spmd\nx.", "%%spmd\nstate['", "%%spmd\nj")
PYTHON = "%%spmd --async\nwhile True: sum(range(1000))"
CPP = "%%spmd --async\nm = jnp.ones((2500, 2500))\nwhile True: (m @ m).block_until_ready()"


def main() -> None:
    """Measures, and prints a row for each."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    shell: Any = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "jaxnb")
    shell.run_line_magic("spmd_start", "-n 4 --platform cpu")
    session = shell.user_ns["spmd"]
    session.run("x = jnp.arange(8.0)\nstate = {'w': x, 'step': 7}")
    rows = [("first", measured(shell, 1)), ("idle", measured(shell, times))]
    for name, code in (("in Python", PYTHON), ("in C++", CPP)):
        shell.run_cell(code)
        rows.append((name, measured(shell, times)))
        shell.run_line_magic("spmd_interrupt", "")
        session.run("None")
    pid = session.processes[0].pid
    os.kill(pid, signal.SIGSTOP)
    rows.append(("stopped", measured(shell, min(times, 20))))
    os.kill(pid, signal.SIGCONT)
    shell.run_line_magic("spmd_stop", "")
    print(f"{'process 0':12} {'median':>8} {'p95':>8} {'most':>8}   offered nothing")
    for name, (seconds, missed) in rows:
        seconds.sort()
        p95 = seconds[int(0.95 * (len(seconds) - 1))]
        each = (statistics.median(seconds), p95, seconds[-1])
        print(f"{name:12} {' '.join(f'{1e3 * s:6.1f}ms' for s in each)}   {missed}")


def measured(shell: Any, times: int) -> tuple[list[float], int]:
    """Returns how long completions took, and how many offered nothing."""
    seconds, missed = [], 0
    for n in range(times):
        code = CODES[n % len(CODES)]
        started = time.perf_counter()
        with provisionalcompleter():
            found = list(shell.Completer.completions(code, len(code)))
        seconds.append(time.perf_counter() - started)
        missed += not found
    return seconds, missed


if __name__ == "__main__":
    main()
