"""Shows where the processes of a running cell wait, and for whom, for as long as they do."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from jaxnb.cells import answers
from jaxnb.cells.running import RunningCell
from jaxnb.launch.deaths import Death
from jaxnb.lockstep.messages import Apart
from jaxnb.lockstep.notebook_side import Looker
from jaxnb.model.cells import CellRequest
from jaxnb.model.group import AtWork, StackEntry, Wait, Waits, Whereabouts
from jaxnb.session.reasons import (
    Reason,
    awaited,
    left_reason,
    lost_text,
    main_reason,
    silent_reason,
    still_text,
    threads_reason,
)
from jaxnb.session.standing_since import Standing, is_called_back, is_idle, waits_for_others

LOOK_SECONDS = 1.0
"""How often the processes are looked at."""

ALL_WAIT_SECONDS = 3.0
"""When processes have waited for so long, the user is shown where, and for whom, until they go on.
With a look a second, no wait is shown later than after 5 s."""

QUIET_SECONDS = 5.0
"""A cell that has shown nothing for so long is seen to be at work."""

LOST_SECONDS = 10.0
"""Who runs no cell for so long, and has not answered, never will: a message was lost. Nothing in
the way of messages drops any, so this is told and not mended."""


class Reaches(Protocol):
    """What is needed of a group."""

    @property
    def num_processes(self) -> int:
        """Size of the group."""

    @property
    def deaths(self) -> Sequence[Death]:
        """Processes of the group that died without having been told to."""

    def where(self, processes: Iterable[int]) -> dict[int, Whereabouts]:
        """Returns where processes' main threads are, for those that tell."""

    def apart(self) -> Apart | None:
        """Returns the processes of which not the same has failed; None if there are none."""

    def looker(self, request: CellRequest) -> Looker | None:
        """Returns what asks the conductor who waits in a cell; None where it is not asked."""

    def stopped_text(self, processes: Iterable[int]) -> str:
        """Returns which of processes are stopped, as a clause; empty if none is."""

    def send_interrupt(self, processes: Iterable[int]) -> None:
        """Sends SIGINT to processes."""

    def interrupt_in_lockstep(self, request: CellRequest) -> None:
        """Has a cell's processes raise KeyboardInterrupt after the same dispatch."""

    def mark_out_of_step(self) -> None:
        """Notes that processes did not come back."""


class Panel:
    """Watches one running cell; nothing that it sees has it do anything to the processes.

    Args:
        group: The group.
        running: The cell, which is told what to show.

    Attributes:
        failed_apart: In what of others' failures processes waited at the last look; empty if in
            none.
    """

    def __init__(self, group: Reaches, running: RunningCell) -> None:
        self._group = group
        self._running = running
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._standing = Standing()
        self._looker = group.looker(running.request)
        self._absent: dict[int, float] = {}
        self._has_told_of_loss = False
        self._raised_at: dict[str, float] = {}  # what was raised, and when that was first seen
        self._told: set[str] = set()
        self.failed_apart = ""

    def close(self) -> None:
        """Ends the watch."""
        if self._looker is not None:
            self._looker.close()

    def look(self) -> None:
        """Looks, if it is time to, and has shown who waits for long."""
        now = time.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_SECONDS
        self.failed_apart = ""
        waiting = set(self._running.waiting_for)
        others = self._others()
        self._standing.see(self._group.where(waiting), waiting, now)
        if self._looker is not None:
            self._looker.look()
        self._tell_who_is_absent(now)
        waited = self._standing.all_still_seconds()
        if waited >= ALL_WAIT_SECONDS:
            reason = self._reason(others)
            # All had agreed to what those have dispatched that have left; it may go on.
            if others and not reason.cause and self._looker is not None and self._is_sure():
                self._show_who_waits(waiting)
            else:
                self._show_all_wait(waited, reason, is_all=not others)
            return
        self._tell_who_raised(now)
        if waiters := self._standing.waiters(ALL_WAIT_SECONDS):
            self._show_who_waits(waiters)
        elif self._running.is_shown and now - self._running.shown_at >= QUIET_SECONDS:
            self._show_work()
        else:
            self._running.end_waits(by_itself=True)

    def _show_work(self) -> None:
        """Shows that the cell is at work, and how far it is."""
        found = self._standing.found.values()
        last = [each.last_dispatch.number for each in found if each.last_dispatch is not None]
        work, seconds = self._standing.at_work(set(self._standing.found)), self._running.seconds
        if work:
            self._show(Waits((), seconds, "", at_work=work, dispatches=max(last, default=0)))

    def _others(self) -> set[int]:
        """Returns the processes that are not in the cell."""
        return set(range(self._group.num_processes)) - self._running.waiting_for

    def _tell_who_raised(self, now: float) -> None:
        """Tells what was raised a while ago, though the cell goes on elsewhere; each thing once."""
        raised = answers.raised(self._running.errors)
        self._raised_at = {what: self._raised_at.get(what, now) for what in raised}
        late = [what for what, at in self._raised_at.items() if now - at >= ALL_WAIT_SECONDS]
        if new := [what for what in late if what not in self._told]:
            self._told |= set(late)
            left = sorted(self._running.waiting_for)
            places = [self._standing.found[i].in_cell for i in left if i in self._standing.found]
            said = [(raised[what], what) for what in new]
            self._running.notice(still_text(said, left, places, self._running.interrupt_by))

    def _tell_who_is_absent(self, now: float) -> None:
        """Tells, once, who runs nothing, though the cell waits for it."""
        found = self._standing.found.items()
        absent = [i for i, each in found if each.cell_seconds is None and is_idle(each)]
        self._absent = {i: self._absent.get(i, now) for i in absent}
        if self._running.is_behind:  # the answer comes after all output
            self._absent = dict.fromkeys(absent, now)
        lost = [i for i, since in sorted(self._absent.items()) if now - since >= LOST_SECONDS]
        if lost and not self._has_told_of_loss:
            self._has_told_of_loss = True
            self._running.notice(lost_text(lost, LOST_SECONDS, self._running.interrupt_by))

    def _is_sure(self) -> bool:
        """Whether all in the cell are known to wait for other processes.

        What is called back may read something for long, or wait for ever: nobody can tell.
        """
        found = self._standing.found.values()
        is_known = not self._standing.silent and not any(map(is_called_back, found))
        return is_known and all(map(waits_for_others, found))

    def _show_all_wait(self, waited: float, reason: Reason, *, is_all: bool) -> None:
        """Shows that nobody in the cell does anything but wait."""
        standing = self._standing
        waits = waits_of(standing.found, waited, reason.text, standing.silent, is_all=is_all)
        computes = not standing.all_still_seconds()
        self._show(replace(waits, computes=computes, why=reason.cause))

    def _show(self, waits: Waits) -> None:
        stopped = self._group.stopped_text(waits.silent) if waits.silent else ""
        self._running.show_waits(replace(waits, stopped=stopped))

    def _reason(self, others: Collection[int]) -> Reason:
        """Returns why all in the cell wait, as far as is known."""
        if (known := self._failure() or self._fault()) is not None:
            return known
        if not self._is_sure():
            return Reason("")
        waits = self._looker.waits if self._looker is not None else ()
        if waits is None:
            return Reason("")
        asking = {each.process for each in waits if each.lane == "main"}
        if self._looker is None or (asking and awaited(asking, waits) - asking <= set(others)):
            return left_reason(self._running.how_others_left(others))
        return main_reason(waits)

    def _failure(self) -> Reason | None:
        """Returns what is said of a computation that has failed on some processes only, so far."""
        apart = self._group.apart()
        self.failed_apart = str(apart or "")
        return None if apart is None else Reason(f"{apart}.", "missing")

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
        if reason := self._failure() or (self._fault() if is_silent or not work else None):
            shown = waits_of(those, seconds, reason.text, standing.silent, is_all=False)
            self._show(replace(shown, computes=True, why=reason.cause))
            return
        if not work and (gone := tuple(sorted(self._others()))):
            doing = "what was dispatched may go on"
            work = (AtWork(gone, None, doing, seconds, has_left=True),)
        if not work and self._running.waiting_for <= those.keys():
            work, those = standing.at_work(waiters), {}  # what they wait for is computed
        if work:
            shown = waits_of(those, seconds, "", standing.silent)
            has_failed = bool(self._running.errors)
            shown = replace(shown, is_all=False, at_work=work, has_failed=has_failed)
            self._show(shown)

    def _awaited(self, waiters: Collection[int], work: tuple[AtWork, ...]) -> tuple[AtWork, ...]:
        """Returns what those do for whom processes wait; what all do where that is not known."""
        if self._looker is None or self._looker.waits is None:
            return work
        late = awaited(waiters, self._looker.waits)
        theirs = [replace(w, processes=tuple(i for i in w.processes if i in late)) for w in work]
        return tuple(each for each in theirs if each.processes) or work


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
        f"The position of process {index} is unknown: its sentinel failed ({where.fault})."
        for index, where in sorted(found.items())
        if where.fault
    ]


def _last_dispatch_text(where: Whereabouts) -> str:
    last = where.last_dispatch
    return f"{last.number}: {last.signature()}" if last is not None else ""
