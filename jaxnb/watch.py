"""Pure: where the processes are, as snapshots, to what that means."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from jaxnb.model import StackEntry, Wait, Waits, Whereabouts

IDLE_CPU = 0.05
"""A process that waits uses less processor time than this, per second: on a busy machine its
heartbeat and the answers to where it is take up to 0.02."""

_COMPILES = ("backend_compile", "compile_or_get_cached", "_compile_and_write_cache")

_WAITS_IN_PYTHON = (
    "/jaxnb/engine/together.py",
    "/jaxnb/lockstep/process_line.py",
)

_JAX_CODE = ("/jax/_src/", "/jax/experimental/", "/jaxnb/engine/_jax_internals/")


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
    """Whether a process's main thread waits for others in jaxnb's own code.

    For what they are about to do, or in a comparison for their word. An interrupt
    reaches it, and to shut connections of collectives would not free it.
    """
    return any(file in entry.file for entry in where.stack for file in _WAITS_IN_PYTHON)


def waits_by_thread(where: Whereabouts) -> bool:
    """Whether a process's main thread waits for something, and another one for other processes."""
    return where.asks_by_thread and where.sleeps_in == "futex" and not waits_in_python(where)


def is_compiling(where: Whereabouts) -> bool:
    """Whether a process's main thread compiles a computation."""
    return any(entry.function.endswith(_COMPILES) for entry in where.stack)


def waits_for_others(where: Whereabouts) -> bool:
    """Whether a process's main thread waits for other processes, as far as can be told."""
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
    """Whether a process has left the code of its cell, and has not yet ended it.

    On a busy machine that may take a second.
    """
    return where.in_cell is None and where.cell_seconds is not None


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


def is_at_same_place(before: Whereabouts, now: Whereabouts) -> bool:
    """Whether a process's main thread is in the same calls, and has dispatched nothing since."""
    return before.stack == now.stack and _number(before) == _number(now)


def _number(where: Whereabouts) -> tuple[tuple[int, ...], int] | None:
    last = where.last_dispatch
    return None if last is None else (last.processes, last.number)


def stand_still(
    before: Mapping[int, Whereabouts],
    now: Mapping[int, Whereabouts],
    waiting: Collection[int],
    seconds: float,
) -> bool:
    """Whether each of some processes has done nothing but wait, at one place.

    It has used no processor, and none of its threads has waited for one for all of the time. A
    loop that reads one result after the other at one line, and waits for each, looks the same.

    Args:
        before: Snapshots from ``seconds`` ago.
        now: Snapshots from now.
        waiting: The processes in question.
        seconds: The time between.
    """
    return bool(waiting) and all(
        index in before
        and index in now
        and waits(before[index])
        and waits(now[index])
        and is_at_same_place(before[index], now[index])
        and uses_no_processor(before[index], now[index], seconds)
        for index in waiting
    )


def uses_no_processor(before: Whereabouts, now: Whereabouts, seconds: float) -> bool:
    """Whether a process has computed nothing in the seconds between two snapshots."""
    # The time of threads that have ended is gone: then it has become less.
    used = abs(now.cpu_seconds - before.cpu_seconds)
    return used < IDLE_CPU * seconds and not before.runnable & now.runnable


def waits_of(
    found: Mapping[int, Whereabouts],
    seconds: float,
    reason: str,
    silent: Iterable[int] = (),
    *,
    is_all: bool = True,
) -> Waits:
    """Returns where processes wait, those at one place together.

    Args:
        found: Where each is.
        seconds: For how long they have been there.
        reason: What is known of why, as sentences.
        silent: Who has not told where it is.
        is_all: These are all processes of the group.
    """
    places: dict[tuple[StackEntry | None, str], list[int]] = {}
    for index, where in sorted(found.items()):
        if where.fault:
            continue
        places.setdefault((where.in_cell, _last_dispatch_text(where)), []).append(index)
    reason = " ".join([*filter(None, [reason]), *_faults(found)])
    found_at = (Wait(tuple(who), place, last) for (place, last), who in places.items())
    return Waits(tuple(found_at), seconds, reason, tuple(sorted(silent)), is_all)


def _faults(found: Mapping[int, Whereabouts]) -> list[str]:
    """Returns whose sentinels failed, as sentences: nobody knows where those processes are."""
    return [
        f"Where process {index} is cannot be told: its sentinel failed ({where.fault})."
        for index, where in sorted(found.items())
        if where.fault
    ]


def _last_dispatch_text(where: Whereabouts) -> str:
    last = where.last_dispatch
    return f"{last.number}: {last.signature()}" if last is not None else ""


def line_text(where: Whereabouts) -> str:
    """Returns ``"at line 3: `y = f(x)`"``; empty outside cells."""
    return "" if where.in_cell is None else where.in_cell.text
