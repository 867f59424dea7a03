"""Finding out that a running cell will never end, and freeing its processes."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Protocol

from jaxnb.lockstep.looking import Looker
from jaxnb.model import WAYS, AtWork, CellRequest, Whereabouts
from jaxnb.running import RunningCell
from jaxnb.stalls.reasons import Reason, awaited, main_reason, silent_reason, threads_reason
from jaxnb.stalls.standing import Resting, Standing
from jaxnb.watch import (
    is_at_same_place,
    is_called_back,
    waits_by_thread,
    waits_for_others,
    waits_in_jax,
    waits_in_python,
    waits_of,
)

FREE_SECONDS = 0.2
"""What is in Python answers an interrupt sooner; what waits in C++ never does."""

AGAIN_SECONDS = 0.1
"""The same for who has swallowed one, which is known to be in Python."""

LOOK_SECONDS = 1.0
"""How often the processes are looked at while others have left the cell."""

LEFT_SECONDS = 0.25
"""So long after one has left the cell the others are looked at: most leave it by then."""

IN_STEP_SECONDS = 3.0
"""So long after an interrupt in step who has missed it, or waits in vain, is interrupted again."""

STILL_SECONDS = 2.0
"""Who has done nothing for so long after such an interrupt waits in JAX for what never comes."""

STUCK_SECONDS = 4.0
"""The same where a computation has called back: the callback may sleep, or read."""

SHUT_ALL_SECONDS = 1.0
"""So long after connections were shut for reading all are, if some still wait."""

LEFT_BEHIND_SECONDS = 2.0
"""Who waits at one place for so long, for what others have left the cell without, is freed."""

ALL_WAIT_SECONDS = 3.0
"""When processes have waited for so long, the user is shown where, and for whom, until they go on;
but for those that are freed. With a look a second, no wait is shown later than after 5 s."""


class Watched(Protocol):
    """What :class:`Freer` needs of a group."""

    @property
    def num_processes(self) -> int:
        """Size of the group."""

    @property
    def computes_in_sight(self) -> bool:
        """Whether the system tells that devices compute: those of the CPU use its time."""

    def where(self, processes: Iterable[int]) -> dict[int, Whereabouts]:
        """Returns where processes' main threads are, for those that tell."""

    def free(self, *, is_all: bool = False) -> None:
        """Frees whoever waits in a collective; the group is of no use then."""

    def send_interrupt(self, processes: Iterable[int]) -> None:
        """Sends SIGINT to processes."""

    def interrupt_in_lockstep(self, request: CellRequest) -> None:
        """Has a cell's processes raise KeyboardInterrupt after the same dispatch."""

    def looker(self, request: CellRequest) -> Looker | None:
        """Returns what asks the conductor who waits in a cell; None where it is not asked."""


class Freer:
    """Watches one running cell.

    Args:
        group: The group.
        running: The cell.

    Attributes:
        deaf: Processes that loop, and had swallowed whatever interrupted them when last looked at.
    """

    def __init__(self, group: Watched, running: RunningCell) -> None:
        self._group = group
        self._running = running
        self._tried_at = 0.0
        self._pause = FREE_SECONDS
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._in_cell = len(running.waiting_for)
        self._standing = Standing()
        self._resting = Resting()
        self._looker = group.looker(running.request)
        self._freed_at: float | None = None
        self._since = time.monotonic()
        self._before: Mapping[int, Whereabouts] = {}
        self._interrupted_late: dict[int, float] = {}
        self.deaf: set[int] = set()

    def close(self) -> None:
        """Ends the watch."""
        if self._looker is not None:
            self._looker.close()

    def after_interrupt(self, since: float, *, is_in_step: bool) -> None:
        """Frees processes that an interrupt did not reach.

        In step, who waits in JAX waits for what all have begun, which comes by itself but for a
        fault, and what handles the interrupt may compute: then only who does nothing is freed.

        Args:
            since: When they were interrupted, on ``time.monotonic()``.
            is_in_step: The conductor has interrupted them, after the same dispatch.
        """
        running, now = self._running, time.monotonic()
        if now - max(since, self._tried_at) < self._pause:
            return
        asked = set(running.waiting_for)
        found = self._group.where(asked)
        self._standing.see(found, asked, time.monotonic())
        if not is_in_step or now - since > IN_STEP_SECONDS:
            self._interrupt_late(found, since)
            self._interrupt_waits(found)
        self._interrupt_loops(found, is_in_step=is_in_step)
        stuck = {i: where for i, where in found.items() if waits_in_jax(where)}
        if is_in_step:
            stuck = {i: where for i, where in stuck.items() if self._is_stuck(i, found)}
        if stuck:
            running.note_freed(stuck, interrupted=True)
            self._free()
        self._tried_at = time.monotonic()

    def _is_stuck(self, index: int, found: Mapping[int, Whereabouts]) -> bool:
        """Whether a process does nothing for so long that it never will."""
        enough = STUCK_SECONDS if any(map(is_called_back, found.values())) else STILL_SECONDS
        return self._group.computes_in_sight and self._standing.still_seconds(index) >= enough

    def _free(self) -> None:
        """Shuts the connections of collectives, again if need be: there may be new ones.

        First for reading, once nothing is left to be written; if that has had no effect for a
        while, whatever is left: who waits to receive on those is freed too.
        """
        now = time.monotonic()
        if self._freed_at is None:
            self._freed_at = now
            self._standing.begin_anew()
        self._group.free(is_all=now - self._freed_at > SHUT_ALL_SECONDS)

    def _interrupt_late(self, found: Mapping[int, Whereabouts], since: float) -> None:
        """Interrupts who has missed the interrupt: it had not begun the cell, or Python ignored it.

        Nobody else: code may catch an interrupt, and a second one would strike its handling. Each
        process notes itself what it has missed. When it began the cell would tell less: to ask
        takes some milliseconds, and in fewer than those it may have missed one and begun.
        """
        now = time.monotonic()
        for index, where in found.items():
            if where.cell_seconds is None or where.interrupted_seconds is not None:
                continue
            interrupted = max(since, self._interrupted_late.get(index, since))
            # It was told before now: the interrupt came no later than this.
            if where.missed_seconds is not None and now - where.missed_seconds > interrupted:
                self._interrupted_late[index] = now
                self._group.send_interrupt([index])

    def _interrupt_waits(self, found: Mapping[int, Whereabouts]) -> None:
        """Interrupts again who has seen an interrupt, and waits in Python for others all the same.

        What it called has swallowed that: an `except`, or C code that drops errors. Nobody else is
        left in the cell who could bring what it waits for.
        """
        before, self._before = self._before, found
        since, self._since = self._since, time.monotonic()
        if self._running.waiting_for <= found.keys() and all(
            waits_in_python(where)
            and (where.interrupted_seconds or 0.0) > self._since - since
            and index in before
            and is_at_same_place(before[index], where)
            for index, where in found.items()
        ):
            self._group.send_interrupt(found)

    def _interrupt_loops(self, found: Mapping[int, Whereabouts], *, is_in_step: bool) -> None:
        """Interrupts loops that swallow interrupts again, and notes those that swallow all.

        Each time they see another kind of interrupt.
        """
        again = [i for i, where in found.items() if 0 < where.swallowed < WAYS]
        if again and is_in_step:
            self._group.interrupt_in_lockstep(self._running.request)
        elif again:
            self._group.send_interrupt(again)
        self._pause = AGAIN_SECONDS if again else FREE_SECONDS
        self.deaf = {i for i, where in found.items() if where.swallowed >= WAYS}

    def look(self) -> None:
        """Looks whether the processes wait for something that will never come."""
        running, now = self._running, time.monotonic()
        waiting = set(running.waiting_for)
        if len(waiting) < self._in_cell:  # who has left may have left others behind
            self._look_at = min(self._look_at, now + LEFT_SECONDS)
        self._in_cell = len(waiting)
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        found = self._group.where(waiting)
        standing = self._standing
        standing.see(found, waiting, now)
        others = set(range(self._group.num_processes)) - waiting
        self._resting.see(self._group.where(others) if others else {}, others, now)
        if self._looker is not None:
            self._looker.look()
        waited = standing.all_still_seconds()
        # What is called back may read something for long, or wait for ever: nobody can tell.
        is_sure = not standing.silent and not any(map(is_called_back, found.values()))
        if waited and others and is_sure and all(map(waits_for_others, found.values())):
            if waited >= LEFT_BEHIND_SECONDS and self._are_left_behind(found):
                self._free_left_behind(found)
            elif waited >= ALL_WAIT_SECONDS:
                self._show_who_waits(waiting)
            elif self._freed_at is not None:
                self._free()
        elif waited >= ALL_WAIT_SECONDS:
            self._show_all_wait(waited, is_sure=is_sure)
        elif waiters := standing.waiters(ALL_WAIT_SECONDS):
            self._show_who_waits(waiters)
        else:
            running.end_waits(by_itself=True)

    def _show_all_wait(self, waited: float, *, is_sure: bool) -> None:
        """Shows that nobody in the cell does anything but wait."""
        standing = self._standing
        reason = self._reason(is_sure=is_sure)
        is_all = len(self._running.waiting_for) == self._group.num_processes
        waits = waits_of(standing.found, waited, reason.text, standing.silent, is_all=is_all)
        computes = not standing.all_still_seconds()
        self._running.show_waits(replace(waits, computes=computes, why=reason.cause))

    def _reason(self, *, is_sure: bool) -> Reason:
        """Returns why all in the cell wait, as far as is known."""
        if self._looker is None:
            return Reason("If they wait for each other this never ends." if is_sure else "")
        if (known := self._fault()) is not None:
            return known
        waits = self._looker.waits
        return main_reason(waits) if is_sure and waits is not None else Reason("")

    def _fault(self) -> Reason | None:
        """Returns what the conductor's answer, or its silence, tells to be wrong; None if nothing.

        A main thread that asks is waited for by nobody's thread.
        """
        if self._looker is None:
            return None
        if silent := self._looker.silent():
            return silent_reason(*silent)
        waits = self._looker.waits or ()
        return None if any(each.lane == "main" for each in waits) else threads_reason(waits)

    def _show_who_waits(self, waiters: Collection[int]) -> None:
        """Shows who waits for others that are at work: nothing need be wrong.

        If nobody in the cell is at work, those are that have left it: what they have dispatched
        may not have come to its end.
        """
        standing = self._standing
        seconds = min(map(standing.parked_seconds, waiters))
        those = {i: standing.found[i] for i in waiters}
        work = self._awaited(waiters, standing.at_work())
        is_silent = self._looker is not None and self._looker.silent() is not None
        if (is_silent or not work) and (reason := self._fault()):
            shown = waits_of(those, seconds, reason.text, standing.silent, is_all=False)
            self._running.show_waits(replace(shown, computes=True, why=reason.cause))
            return
        if not work and len(self._running.waiting_for) < self._group.num_processes:
            work = self._resting.at_work(seconds)
        if work:
            shown = waits_of(those, seconds, "", standing.silent)
            self._running.show_waits(replace(shown, is_all=False, at_work=work))

    def _awaited(self, waiters: Collection[int], work: tuple[AtWork, ...]) -> tuple[AtWork, ...]:
        """Returns what those do for whom processes wait; what all do where that is not known."""
        if self._looker is None or self._looker.waits is None:
            return work
        late = awaited(waiters, self._looker.waits)
        theirs = [replace(w, processes=tuple(i for i in w.processes if i in late)) for w in work]
        return tuple(each for each in theirs if each.processes) or work

    def _are_left_behind(self, found: Mapping[int, Whereabouts]) -> bool:
        """Whether processes wait for what will never come, when others have left the cell.

        It never comes if all has been computed that those have dispatched, which is seen where
        devices are the CPU's. Else it is no mistake: one that reads a result waits for what the
        others have dispatched, and left.
        """
        if any(map(waits_by_thread, found.values())):  # others' threads may outlive the cell
            return False
        if all(map(waits_in_python, found.values())):  # for the word of those that have left
            return True
        has_rested = self._resting.seconds() >= LEFT_BEHIND_SECONDS
        return has_rested and self._group.computes_in_sight

    def _free_left_behind(self, found: Mapping[int, Whereabouts]) -> None:
        self._running.note_freed(found, interrupted=False)
        in_python = [index for index, where in found.items() if waits_in_python(where)]
        if in_python:
            self._group.send_interrupt(in_python)
        if len(in_python) < len(found):
            self._free()
        else:
            self._standing.begin_anew()  # who waits again for so long is interrupted again
