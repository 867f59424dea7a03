"""Interrupting a running cell so that all its processes stop at the same dispatch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from jaxnb import divergence
from jaxnb.labels import processes_label
from jaxnb.model import Recording, Whereabouts
from jaxnb.model.stopping import HoldState
from jaxnb.running import RunningCell
from jaxnb.stalls.standing import Standing
from jaxnb.stalls.stopping import Approach, step_of
from jaxnb.watch import is_called_back

_INTERRUPTS = {"KeyboardInterrupt", "SwallowedInterrupt"}

LOOK_SECONDS = 0.05
"""How often it is looked how far the processes have come."""

TELL_SECONDS = 2.0
"""After this long the user is told what is waited for."""

SWALLOWED_SECONDS = 0.2
"""How often it is looked then whether code has swallowed the interrupt, to go on in a loop."""

SILENT_SECONDS = 3.0
"""Who does not tell for so long how far it has come is stopped, or keeps Python from running."""

CALLED_BACK_SECONDS = 3.0
"""A callback of a computation that takes so long, without a process coming further, may be stuck:
then whoever waits is freed."""

COMPARE_SECONDS = 0.3
"""Who has stood still for so long may wait in different collectives: recordings are compared."""

TIMED_OUT_SECONDS = 10.0
"""After a time-out nobody may be there to interrupt again: without progress for so long it ends."""


class Stoppable(Protocol):
    """What :class:`StopAtDispatch` needs of a group."""

    @property
    def computes_in_sight(self) -> bool:
        """Whether the system tells that devices compute: those of the CPU use its time."""

    def where(self, processes: Iterable[int]) -> dict[int, Whereabouts]:
        """Returns where processes' main threads are, for those that tell."""

    def recordings(self, processes: Iterable[int]) -> dict[int, Recording]:
        """Returns what processes have dispatched in their cell, for those that tell."""

    def send_interrupt(self, processes: Iterable[int]) -> None:
        """Sends SIGINT to processes."""

    def hold(
        self, processes: Iterable[int], cell: str, number: int, over: Sequence[int]
    ) -> dict[int, HoldState]:
        """Has processes hold before their next dispatch; returns how far they have come."""

    def stop_at(
        self, processes: Iterable[int], cell: str, number: int, over: Sequence[int], count: int
    ) -> dict[int, HoldState]:
        """Has processes raise KeyboardInterrupt after so many dispatches in their cell."""

    def release(self, processes: Iterable[int]) -> None:
        """Has processes forget that they were to hold, or to stop at a dispatch."""


class StopAtDispatch:
    """One attempt to interrupt all processes of a cell at the same dispatch.

    All hold before their next dispatch, which tells how far the foremost has come; then all go on
    up to there and raise KeyboardInterrupt before the next. What they have dispatched completes by
    itself: nothing is lost, and no connection is shut.

    Args:
        group: The group.
        running: The cell.
        number: Which attempt in this cell it is, from 1 on.

    Attributes:
        is_under_way: It is not known yet how it ends.
        has_told: The user was told that the processes are still on their way.
        failed: Why it did not work; then nobody is held any more. Empty if it did, or may.
        stopped: Who has seen its interrupt.
        since: When it began, on ``time.monotonic()``.
    """

    def __init__(self, group: Stoppable, running: RunningCell, number: int) -> None:
        self._group = group
        self._running = running
        self._number = number
        self._over = tuple(sorted(running.processes))
        self._standing = Standing()
        self._approach: Approach | None = None
        self._looked_at = 0.0
        self._is_compared = self._has_told_step = False
        self._last = ""
        self.is_under_way, self.has_told = True, False
        self.failed = ""
        self.stopped: frozenset[int] = frozenset()
        self.since = self._told_at = time.monotonic()
        self._begin()

    def _begin(self) -> None:
        waiting = set(self._running.waiting_for)
        states = self._group.hold(waiting, self._cell, self._number, self._over)
        if not states.keys() >= waiting:
            self.give_up("not all processes tell how far they have come")
            return
        step = step_of(states, self._left())
        if isinstance(step, str):
            self.give_up(step)
            return
        self._approach = Approach(step)
        self._note_last(states)
        self.look(is_patient=True)

    @property
    def _cell(self) -> str:
        return self._running.request.request_id

    def _left(self) -> dict[int, int]:
        """Returns who has left the cell, and after how many dispatches over all its processes."""
        trails = {i: self._running.trails.get(i, ()) for i in self._running.replies}
        return {
            i: sum(t.count for t in each if t.processes == self._over) for i, each in trails.items()
        }

    def give_up(self, why: str) -> None:
        """Ends the attempt: all go on from where they are."""
        self.failed, self.is_under_way = why, False
        self._group.release(self._running.waiting_for)

    def look(self, *, is_patient: bool) -> None:
        """Looks how far the processes have come.

        Args:
            is_patient: Somebody is there who can interrupt again.
        """
        now = time.monotonic()
        is_soon = now - self._looked_at < LOOK_SECONDS
        if self._approach is None or not self.is_under_way or is_soon:
            return
        step, asked = self._approach.step, set(self._running.waiting_for)
        states = self._group.stop_at(asked, self._cell, self._number, self._over, step)
        now = self._looked_at = time.monotonic()
        self.stopped |= {i for i, state in states.items() if state.has_stopped}
        self._note_last(states)
        coming = {i: s.where for i, s in states.items() if not (s.has_stopped or s.has_left)}
        self._standing.see(coming, coming, now)
        # On a busy machine a thread that computes may be seen to wait for a core, and no more.
        is_called = any(map(is_called_back, coming.values()))
        if is_called or any(where.runnable for where in coming.values()):
            self._standing.begin_anew()
        still = self._standing.all_still_seconds() if self._group.computes_in_sight else 0.0
        look = self._approach.look(
            states, asked, still, now, have_left=len(asked) < len(self._over)
        )
        if look.interrupt:
            self._group.send_interrupt(look.interrupt)
        if states.keys() >= asked:
            self._told_at = now
        if any(count < step for count in self._left().values()):
            self.give_up("a process left the cell before")
        elif now - self._told_at > SILENT_SECONDS:
            self.give_up("not all processes tell how far they have come")
        elif look.failed:
            self.give_up(look.failed)
        elif look.have_stopped:
            self.is_under_way = False
            if self.stopped:
                self._tell_step()
        elif still >= COMPARE_SECONDS and self._waits_for_ever():
            self.give_up("the processes wait in different collectives")
        elif is_called and self._approach.seconds_without_progress(now) > CALLED_BACK_SECONDS:
            self.give_up("a callback of a computation does not return")
        elif not is_patient and self._approach.seconds_without_progress(now) > TIMED_OUT_SECONDS:
            self.give_up("nothing makes progress")
        elif now - self.since > TELL_SECONDS and not self.has_told:
            self.has_told = True
            self._tell_wait(look.behind)

    def swallowed(self) -> int:
        """Returns how many interrupts a process has swallowed in a loop; looks now and then."""
        now = time.monotonic()
        if now - self._looked_at < SWALLOWED_SECONDS:
            return 0
        self._looked_at = now
        found = self._group.where(self._running.waiting_for)
        return max((where.swallowed for where in found.values()), default=0)

    def _waits_for_ever(self) -> bool:
        """Whether processes have dispatched different things; looked at once."""
        if self._is_compared:
            return False
        self._is_compared = True
        recordings = self._group.recordings(self._running.waiting_for)
        gone = set(self._over) - recordings.keys()
        notes = dict.fromkeys(recordings, "is in the cell")
        parted = divergence.compare(self._running.request.cell, recordings, notes, gone)
        return parted is not None and divergence.is_mismatch(parted)

    def _tell_wait(self, behind: Sequence[int]) -> None:
        assert self._approach is not None
        still = "is" if len(behind) == 1 else "are"
        who = f"; {processes_label(behind)} {still} on the way to it" if behind else ""
        self._running.notice(
            f"Interrupted: all processes stop at the same dispatch, {self._approach.step}, so that "
            f"no computation is broken off{who}. Interrupt again to stop them where they are; then "
            "what is being computed may be lost."
        )

    def _note_last(self, states: Mapping[int, HoldState]) -> None:
        """Notes what the last dispatch was, from a process that is there."""
        for state in states.values():
            if (
                self._approach is not None
                and state.count == self._approach.step
                and state.last_name
            ):
                line = "" if state.last_line is None else f" at line {state.last_line}"
                self._last = f", `{state.last_name}`{line}"

    def end(self) -> None:
        """Notes that all processes have left the cell; says where they stopped, if they did."""
        self.is_under_way = False
        ends = {r.error.type_name for r in self._running.replies.values() if r.error is not None}
        if self._approach is None or self.failed or not ends & _INTERRUPTS:
            return
        counts = set(self._left().values())
        if len(counts) == 1 and min(counts) >= self._approach.step:
            self._tell_step()

    def _tell_step(self) -> None:
        if self._approach is None or not self._approach.step or self._has_told_step:
            return
        self._has_told_step = True
        self._running.notice(
            f"{processes_label(self._over)} stopped at the same step: dispatch "
            f"{self._approach.step} of this cell{self._last}. No computation was broken off."
        )
