"""Evaluates an expression of jaxnb's own beside the user's cells."""

from __future__ import annotations

import linecache
from typing import Any

from jaxnb.model.cells import CellRequest


def keep_lines(file: str, code: str) -> None:
    """Lets tracebacks show the lines of code that is in no file."""
    lines = [f"{line}\n" for line in code.splitlines()]
    linecache.cache[file] = (len(code), None, lines, file)


def evaluate(shell: Any, request: CellRequest, name: str) -> None:
    """Evaluates an expression in a shell's namespace; its value goes to the display hook.

    Nothing is left in ``In``, ``Out`` and ``_``. What it raises goes where a cell's error goes.

    Args:
        shell: The shell of this process's kernel.
        request: Has the expression, and what is shown in its place.
        name: The file name of the code in tracebacks.
    """
    keep_lines(name, request.aside)
    hook = shell.displayhook
    try:
        with shell.builtin_trap:
            hook.value = eval(compile(request.code, name, "eval"), shell.user_ns)
        hook.bundle = hook.compute_format_data(hook.value)[0]
    except (Exception, SystemExit, KeyboardInterrupt):
        hook.take()
        shell.showtraceback()
