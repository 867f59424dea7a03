"""Pure: what it means where a process is."""

from __future__ import annotations

from jaxnb.model.group import StackEntry, Whereabouts

_COMPILES = ("backend_compile", "compile_or_get_cached", "_compile_and_write_cache")

_WAITS_IN_PYTHON = (
    "/jaxnb/wire/process_together.py",
    "/jaxnb/lockstep/process_line.py",
    "/jaxnb/compat/jax_waits.py",
)

_JAX_CODE = ("/jax/_src/", "/jax/experimental/", "/jaxnb/compat/")


def waits_in_jax(where: Whereabouts) -> bool:
    """Whether a process's main thread waits in JAX's C++ code, as far as can be told.

    It sleeps in a futex, and the innermost Python call is one of JAX, or the cell itself: a
    compiled function, or a method of an array, is called from the cell's line without a Python
    call in between. A lock of the user's that is taken in the cell's own line, or C code of theirs
    that waits, looks the same.
    """
    if not where.stack or where.sleeps_in != "futex":
        return False
    innermost = where.stack[-1]
    return innermost.cell is not None or is_of_jax(innermost)


def waits_in_python(where: Whereabouts) -> bool:
    """Whether a process's main thread waits in jaxnb's own code, where an interrupt reaches it.

    For what others are about to do, in a comparison for their word, for a program that another
    compiles, or for an array of which jaxnb reads the elements.
    """
    if where.compiling is not None and where.compiling.holder is not None:
        return True
    return any(file in entry.file for entry in where.stack for file in _WAITS_IN_PYTHON)


def waits_by_thread(where: Whereabouts) -> bool:
    """Whether a process's main thread waits for something, and another one for other processes."""
    return where.asks_by_thread and where.sleeps_in == "futex" and not waits_in_python(where)


def is_compiling(where: Whereabouts) -> bool:
    """Whether a process's main thread compiles a computation."""
    return any(entry.function.endswith(_COMPILES) for entry in where.stack)


def waits_for_own_thread(where: Whereabouts) -> bool:
    """Whether a main thread waits for another thread of its process, which dispatches first."""
    return any(each.file.endswith("/jaxnb/lockstep/process_line.py") for each in where.stack)


def asks_user(where: Whereabouts) -> str:
    """Returns what a process's main thread waits for, if it is an answer of the user's."""
    files = [entry.file for entry in where.stack]
    if not any(file.endswith("/jaxnb/debugging/process_questions.py") for file in files):
        return ""
    at_breakpoint = any(file.endswith("/cmd.py") for file in files)
    return "at a breakpoint" if at_breakpoint else "waiting for an answer to its input()"


def waits_for_others(where: Whereabouts) -> bool:
    """Whether a process's main thread waits for other processes, as far as can be told."""
    if asks_user(where):
        return False
    return waits_in_jax(where) or waits_in_python(where) or waits_by_thread(where)


def waits(where: Whereabouts) -> bool:
    """Whether a process waits for others, or cannot tell."""
    return waits_for_others(where) or bool(where.fault)


def is_called_back(where: Whereabouts) -> bool:
    """Whether JAX runs code of the user's in a thread of its own: a computation's callback.

    Such a thread begins to run Python in JAX's code, which calls the user's.
    """
    return any(map(_is_jax_file, where.entries))


def is_idle(where: Whereabouts) -> bool:
    """Whether a process's main thread waits for messages, in its event loop."""
    return bool(where.stack) and where.stack[-1].file.endswith("/selectors.py")


def formats_its_error(where: Whereabouts) -> bool:
    """Whether a process has left the code of its cell, and is on its way to the cell's end.

    On a busy machine that may take a second. One that waits is not on its way.
    """
    is_on_its_way = not (waits_in_jax(where) or waits_in_python(where))
    return where.in_cell is None and where.cell_seconds is not None and is_on_its_way


def is_out_of_it(where: Whereabouts | None) -> bool:
    """Whether a process is known to be at no line of a cell."""
    return where is not None and where.in_cell is None and not where.fault


def has_caught_interrupt(where: Whereabouts, seconds: float) -> bool:
    """Whether an interrupt was raised in the cell's code so long ago, and the code has gone on.

    It may end by itself: a ``finally`` may save something. It may also wait in C++.
    """
    since = where.interrupted_seconds
    return since is not None and since >= seconds and where.in_cell is not None


def is_of_jax(entry: StackEntry) -> bool:
    """Whether a call is of JAX's own code, or of what the recorder has put around it."""
    return _is_jax_file(entry.file)


def _is_jax_file(file: str) -> bool:
    return any(part in file for part in _JAX_CODE)
