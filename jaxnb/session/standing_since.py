"""Pure: since when each process of a running cell has stood where it stands."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from jaxnb.model.group import AtWork, StackEntry, Whereabouts

_COMPILES = ("backend_compile", "compile_or_get_cached", "_compile_and_write_cache")

_WAITS_IN_PYTHON = (
    "/jaxnb/wire/process_together.py",
    "/jaxnb/lockstep/process_connection.py",
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
    return any(each.file.endswith("/jaxnb/lockstep/process_turns.py") for each in where.stack)


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


IDLE_CPU = 0.05
"""A process that waits uses less processor time than this, per second: on a busy machine its
heartbeat and the answers to where it is take up to 0.02."""

COMPUTES = 0.5
"""Who uses so much of a processor is said to compute."""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A process as it was when it came to where it is."""

    at: float
    where: Whereabouts


class Standing:
    """Remembers where processes were seen; times are those of ``time.monotonic()``.

    Attributes:
        found: Where each process is that answered last.
        silent: The processes that did not answer.
    """

    def __init__(self) -> None:
        self.found: Mapping[int, Whereabouts] = {}
        self.silent: frozenset[int] = frozenset()
        self._now = 0.0
        self._still: dict[int, _Anchor] = {}
        self._parked: dict[int, _Anchor] = {}
        self._places: dict[int, _Anchor] = {}
        self._silent_since: dict[int, float] = {}

    def see(self, found: Mapping[int, Whereabouts], asked: Collection[int], now: float) -> None:
        """Takes a look at processes.

        Args:
            found: Where those are that have answered.
            asked: All that were asked: the rest is silent.
            now: When that was.
        """
        self.found, self._now = found, now
        self.silent = frozenset(asked) - found.keys()
        self._silent_since = {i: self._silent_since.get(i, now) for i in self.silent}
        self._still = {
            i: _kept(self._still.get(i), where, now, _stood_still)
            for i, where in found.items()
            if waits(where)
        }
        self._parked = {
            i: _Anchor(now, where) if anchor is None else anchor
            for i, where in found.items()
            # Who is awake for a moment, as JAX is five times a second, may wait for the lock of
            # its interpreter then, which a thread of the user's has.
            if (anchor := _still_parked(self._parked.get(i), where)) or waits_for_others(where)
        }
        self._places = {
            i: _kept(self._places.get(i), where, now, _is_at_same_line)
            for i, where in found.items()
        }

    def still_seconds(self, index: int) -> float:
        """Returns for how long a process has done nothing but wait, at one place; 0 if it works."""
        anchor = self._still.get(index)
        return 0.0 if anchor is None else self._now - anchor.at

    def all_still_seconds(self) -> float:
        """Returns for how long all have waited that answer, or have been silent; 0 if one works."""
        silent = [self._now - since for since in self._silent_since.values()]
        return min([*silent, *map(self.still_seconds, self.found)], default=0.0)

    def parked_seconds(self, index: int) -> float:
        """Returns for how long a main thread has been where it waits, whatever other threads do."""
        anchor = self._parked.get(index)
        return 0.0 if anchor is None else self._now - anchor.at

    def waiters(self, seconds: float) -> list[int]:
        """Returns the processes whose main threads have waited for others for so long."""
        return [i for i in sorted(self._parked) if self.parked_seconds(i) >= seconds]

    def at_work(self, those: Collection[int] | None = None) -> tuple[AtWork, ...]:
        """Returns what processes do, those who do the same together.

        Args:
            those: Which; by default those that do not wait.
        """
        doing: dict[tuple[StackEntry | None, str], list[int]] = {}
        if those is None:
            those = self.found.keys() - self._still.keys() - self._parked.keys()
        for i, where in sorted(self.found.items()):
            if i in those:
                doing.setdefault((where.in_cell, self._doing(i, where)), []).append(i)
        return tuple(
            AtWork(tuple(who), place, what, min(self._now - self._places[i].at for i in who))
            for (place, what), who in doing.items()
        )

    def _doing(self, index: int, where: Whereabouts) -> str:
        """Returns what a process is seen to do; empty if that tells nothing."""
        anchor = self._places[index]
        seconds = self._now - anchor.at
        if asks := asks_user(where):
            return asks
        if waits_for_own_thread(where):
            return "waiting until another of its threads has dispatched"
        if (known := where.compiling) is not None:
            if known.holder is None:
                return f"compiling `{known.program}`"
            return f"waiting for process {known.holder} to compile `{known.program}`"
        if is_compiling(where):
            return "compiling"
        if where.sleeps_in == "sleep":
            return "asleep"
        if seconds and where.cpu_seconds - anchor.where.cpu_seconds > COMPUTES * seconds:
            return "computing"
        return "waiting in C code" if where.sleeps_in == "futex" else ""


IsSame = Callable[[_Anchor, Whereabouts, float], bool]


def _kept(before: _Anchor | None, where: Whereabouts, now: float, is_same: IsSame) -> _Anchor:
    return before if before and is_same(before, where, now) else _Anchor(now, where)


def _stood_still(before: _Anchor, where: Whereabouts, now: float) -> bool:
    return stands_still(before.where, where, now - before.at)


def _still_parked(before: _Anchor | None, where: Whereabouts) -> _Anchor | None:
    return before if before is not None and is_at_same_place(before.where, where) else None


def _is_at_same_line(before: _Anchor, where: Whereabouts, now: float) -> bool:
    return before.where.in_cell == where.in_cell


def stands_still(before: Whereabouts, now: Whereabouts, seconds: float) -> bool:
    """Whether a process has done nothing but wait, at one place.

    It has used no processor, and none of its threads has waited for one for all of the time. A
    loop that reads one result after the other at one line, and waits for each, looks the same.

    Args:
        before: Where it was ``seconds`` ago.
        now: Where it is.
        seconds: The time between.
    """
    # The time of threads that have ended is gone: then it has become less.
    used = abs(now.cpu_seconds - before.cpu_seconds)
    is_idle = used < IDLE_CPU * seconds and not before.runnable & now.runnable
    return is_idle and waits(before) and waits(now) and is_at_same_place(before, now)


def is_at_same_place(before: Whereabouts, now: Whereabouts) -> bool:
    """Whether a process's main thread is in the same calls, and has dispatched nothing since."""
    return before.stack == now.stack and _number(before) == _number(now)


def _number(where: Whereabouts) -> tuple[tuple[int, ...], int] | None:
    last = where.last_dispatch
    return None if last is None else (last.processes, last.number)
