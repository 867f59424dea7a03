"""Pure: what stacks tell of the processes of a running cell, and since when each is at its line."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxnb.model.group import AtLine, Whereabouts

_COMPILES = ("backend_compile", "compile_or_get_cached", "_compile_and_write_cache")

_WAITS = ("/jaxnb/wire/process_together.py", "/jaxnb/lockstep/process_connection.py")
"""Files of jaxnb in which a process waits for what others are about to do, or for their word."""

_JAX_CODE = ("/jax/_src/", "/jax/experimental/", "/jaxnb/compat/")


def is_in_jax(where: Whereabouts) -> bool:
    """Whether a process's main thread is in JAX, or in C code that the cell's own line calls.

    A compiled function, or a method of an array, is called from the cell's line without a Python
    call in between. NumPy looks the same, and so does a loop in the cell's own line.
    """
    if not where.stack:
        return False
    innermost = where.stack[-1]
    return innermost.cell is not None or any(part in innermost.file for part in _JAX_CODE)


def waits(where: Whereabouts) -> bool:
    """Whether a process's main thread waits for other processes in jaxnb's own code."""
    if where.compiling is not None and where.compiling.holder is not None:
        return True
    return any(file in entry.file for entry in where.stack for file in _WAITS)


def is_idle(where: Whereabouts) -> bool:
    """Whether a process's main thread waits for messages, in its event loop."""
    return bool(where.stack) and where.stack[-1].file.endswith("/selectors.py")


def formats_its_error(where: Whereabouts) -> bool:
    """Whether a process has left the code of its cell, and is on its way to the cell's end.

    On a busy machine that may take a second. One that waits is not on its way.
    """
    is_on_its_way = not (is_in_jax(where) or waits(where))
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


def doing(where: Whereabouts) -> str:
    """Returns what a process does that waits for no other one; empty if its stack does not tell."""
    files = [entry.file for entry in where.stack]
    if any(file.endswith("/jaxnb/debugging/process_questions.py") for file in files):
        at_breakpoint = any(file.endswith("/cmd.py") for file in files)
        return "at a breakpoint" if at_breakpoint else "waiting for an answer to its input()"
    if any(file.endswith("/jaxnb/lockstep/process_turns.py") for file in files):
        return "waiting until another of its threads has dispatched"
    if where.compiling is not None:
        what = f"`{where.compiling.program}`"
        holder = where.compiling.holder
        return f"compiling {what}" if holder is None else f"for process {holder} to compile {what}"
    compiles = any(entry.function.endswith(_COMPILES) for entry in where.stack)
    return "compiling" if compiles else ""


@dataclass(frozen=True, slots=True)
class _Anchor:
    """A process as it was when it came to where it is."""

    at: float
    where: Whereabouts

    def holds(self, where: Whereabouts) -> bool:
        """Whether it is still there, and has dispatched nothing over several processes since."""
        before = self.where
        is_same = before.in_cell == where.in_cell and _number(before) == _number(where)
        return is_same and waits(before) == waits(where)


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
        self._anchors: dict[int, _Anchor] = {}
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
        self._anchors = {i: self._anchor(i, where) for i, where in found.items()}

    def _anchor(self, index: int, where: Whereabouts) -> _Anchor:
        before = self._anchors.get(index)
        return before if before and before.holds(where) else _Anchor(self._now, where)

    def seconds(self, index: int) -> float:
        """Returns how long a process has been at its line, and has dispatched nothing."""
        return self._now - self._anchors[index].at

    def silent_seconds(self) -> float:
        """Returns how long some process has been silent; 0 if all answer."""
        return max((self._now - since for since in self._silent_since.values()), default=0.0)

    def stuck(self, seconds: float, *, in_jax: bool) -> list[int]:
        """Returns the processes that have waited for others for so long.

        Args:
            seconds: How long.
            in_jax: Those too that are in JAX, and may wait there.
        """
        return [
            i
            for i, where in sorted(self.found.items())
            if self.seconds(i) >= seconds and (waits(where) or (in_jax and is_in_jax(where)))
        ]

    def all_seconds(self) -> float:
        """Returns how long all have been at their lines, or have been silent."""
        silent = [self._now - since for since in self._silent_since.values()]
        return min([*silent, *map(self.seconds, self.found)], default=0.0)

    def places(self, late: Mapping[int, tuple[int, ...]]) -> tuple[AtLine, ...]:
        """Returns where the processes are, those together that do the same at one line.

        Args:
            late: For whom processes wait, where that is known.
        """
        found: dict[tuple[object, ...], AtLine] = {}
        for i, where in sorted(self.found.items()):
            if where.fault:
                continue
            awaited = late.get(i, ()) if waits(where) else ()
            key = (where.in_cell, waits(where), awaited, doing(where), _text_of_last(where))
            before = found.get(key)
            who = (*before.processes, i) if before else (i,)
            seconds = min(self.seconds(i), before.seconds) if before else self.seconds(i)
            found[key] = _at_line(where, who, seconds, awaited)
        return tuple(found.values())


def _at_line(
    where: Whereabouts, who: tuple[int, ...], seconds: float, late: tuple[int, ...]
) -> AtLine:
    last = _text_of_last(where)
    return AtLine(who, where.in_cell, seconds, waits(where), late, doing(where), last)


def _number(where: Whereabouts) -> tuple[tuple[int, ...], int] | None:
    last = where.last_dispatch
    return None if last is None else (last.processes, last.number)


def _text_of_last(where: Whereabouts) -> str:
    last = where.last_dispatch
    return f"{last.number}: {last.signature()}" if last is not None else ""


def faults_text(found: Mapping[int, Whereabouts]) -> str:
    """Returns whose sentinels failed, as sentences: nobody knows where those processes are."""
    return " ".join(
        f"The position of process {index} is unknown: its sentinel failed ({where.fault})."
        for index, where in sorted(found.items())
        if where.fault
    )
