"""Decides for a running cell whether to go on waiting: interrupts, time-outs, deaths, silence."""

from __future__ import annotations

import time

from jaxnb.cells.running import RunningCell
from jaxnb.debugging.asking import Asker
from jaxnb.session.panel import (
    Panel,
    formats_its_error,
    has_caught_interrupt,
    is_in_jax,
    is_out_of_it,
)
from jaxnb.session.reach import Reach
from jaxnb.session.reasons import silent_text

DEATH_GRACE_SECONDS = 0.3
"""After a death, the other processes have this long to end the cell by themselves."""

INTERRUPT_GRACE_SECONDS = 3.0
"""After this long without an answer to an interrupt, the user is told who is silent."""

IN_JAX_SECONDS = 1.0
"""The same if all silent processes are in JAX's C++ code, which does not check for signals."""

CAUGHT_SECONDS = 0.5
"""The user is told this soon about code that has caught the interrupt and continued."""

OTHERS_SECONDS = 5.0
"""After a process has failed in a script, the others have this long to end by themselves."""

APART_SECONDS = 7.0
"""After it was told that a computation has failed on some processes, the others of a cell have this
long to end by themselves: they wait in it, and no one else comes."""

LAST_SECONDS = 0.5
"""This long after the second interrupt, processes that are still in the cell are given up."""

LOOK_SECONDS = 0.5
"""How often to check whether a silent process is leaving the cell."""

AGAIN_SECONDS = 0.2
"""How often to check which processes have missed an interrupt."""

LEAVES_SECONDS = 10.0
"""Processes that are formatting their errors have this long to end the cell by themselves: code of
the user's that formats may never return."""

PROFILE_SECONDS = 60.0
"""The same in a cell that is profiled: to end the profile takes about a second for each million
calls, in which JAX keeps Python from running."""

INTERRUPT_GAP_SECONDS = 1.0
"""Minimum time between two SIGINTs: a second one could interrupt IPython while it formats the
traceback of the first."""


class Supervisor:
    """Decides, for one running cell, when to interrupt and when to stop waiting.

    While nothing is wrong, a :class:`Panel` shows who waits for whom.

    Args:
        group: What runs it.
        running: The cell.
        timeout: Seconds after which it is interrupted, or None.
        asker: Knows how long the user was asked, which the time-out does not count.

    Attributes:
        timed_out: It has reached its time-out.
        gave_up: Processes have not come back from it: the user has interrupted it twice, or what
            they wait for has failed elsewhere.
        told_apart: What the user was told has failed elsewhere; empty if nothing.
    """

    def __init__(
        self, group: Reach, running: RunningCell, timeout: float | None, asker: Asker
    ) -> None:
        self._group = group
        self._running = running
        self._timeout, self._asker = timeout, asker
        self._interrupted_at: float | None = None
        self._died_at: float | None = None
        self._pressed_at: float | None = None
        self._last_at: float | None = None  # when the user interrupted what a first did not end
        self._told = False
        self._looked_at = self._looked_late_at = 0.0
        self._late: dict[int, float] = {}
        self._panel = Panel(group, running)
        self._is_in_step = False  # the conductor stops all, and no signal was sent since
        self._failed_at: float | None = None  # when a process was seen to have done so
        self.timed_out = self.gave_up = False
        self.told_apart = ""

    def go_on(self) -> bool:
        """Looks at interrupts, the clock and deaths; returns whether to go on waiting."""
        running = self._running
        if not running.waiting_for or running.abandoned is not None:
            return False
        if running.interrupted.is_set():
            running.interrupted.clear()
            self._interrupt_again()
        if any(death.role != "engine" for death in self._group.deaths):
            return False  # no answer can come any more
        if self._group.deaths and self._interrupted_at is None:
            # What waits in a collective with the dead gets an error from the broken connection.
            self._died_at = self._died_at or time.monotonic()
            if time.monotonic() - self._died_at > DEATH_GRACE_SECONDS:
                self._strike()
        seconds = running.seconds - self._asker.seconds
        if self._timeout is not None and not self.timed_out and seconds > self._timeout:
            self.timed_out = True
            self._interrupted_at, self._told = None, False  # an interrupt before it was in vain
            self._interrupt()
        if self._interrupted_at is None and self._has_failed_long_ago():
            self.told_apart = self._panel.failed_apart
            failed = self.told_apart or "A process has failed, and the others go on"
            running.notice(f"{failed}. They are interrupted.")
            self._interrupt()
        if self._interrupted_at is None:
            if not self._group.deaths:  # then broken connections end the waits of the others
                self._panel.look()
            return True
        if not self._is_in_step:
            self._interrupt_late(self._interrupted_at)
        if self._last_at is not None:
            return not self._is_given_up(self._last_at)
        return self._look_at_silent(self._interrupted_at)

    def close(self) -> None:
        """Ends the watch over the cell."""
        self._panel.close()

    @property
    def interrupted(self) -> bool:
        """Whether the cell was interrupted, for whatever reason."""
        return self._interrupted_at is not None

    def _interrupt_again(self) -> None:
        """Passes an interrupt on; the second one, once the user was told, is the last."""
        now, pressed_at = time.monotonic(), self._pressed_at
        if self._told and self._last_at is None:
            self._last_at = now
        elif pressed_at is not None and now - pressed_at < INTERRUPT_GAP_SECONDS:
            return
        self._pressed_at = now
        self._interrupt()

    def _interrupt(self) -> None:
        """Interrupts the processes: after the same dispatch, if they agree on dispatches."""
        running = self._running
        if self._group.deaths or running.request.check == "off" or len(running.processes) < 2:
            self._strike()
            return
        running.end_waits(was_interrupted=True)
        self._group.interrupt_in_lockstep(running.request)
        self._interrupted_at, self._is_in_step = self._interrupted_at or time.monotonic(), True

    def _strike(self) -> None:
        """Interrupts processes where they are."""
        self._running.end_waits(was_interrupted=True)
        self._group.send_interrupt(self._running.waiting_for)
        self._interrupted_at, self._is_in_step = self._interrupted_at or time.monotonic(), False

    def _interrupt_late(self, since: float) -> None:
        """Interrupts again the processes that had not begun the cell and so missed the interrupt.

        Only those: other code may have caught it, and a second one would interrupt its handler.
        Each process records what it missed. The time at which it began the cell would not do: a
        query takes milliseconds, in which a process can miss an interrupt and begin.
        """
        now = time.monotonic()
        if now - max(since, self._looked_late_at) < AGAIN_SECONDS:
            return
        found = self._group.where(self._running.waiting_for)
        self._looked_late_at = now = time.monotonic()
        for index, where in found.items():
            if where.cell_seconds is None or where.interrupted_seconds is not None:
                continue
            interrupted = max(since, self._late.get(index, since))
            # It was told before now: the interrupt came no later than this.
            if where.missed_seconds is not None and now - where.missed_seconds > interrupted:
                self._late[index] = now
                self._group.send_interrupt([index])

    def _is_given_up(self, since: float) -> bool:
        """Whether to give up processes that the last interrupt did not end.

        Those that are formatting their error may finish first.

        Args:
            since: When the user pressed Interrupt.
        """
        now = time.monotonic()
        if now - since < LAST_SECONDS:
            return False
        waiting = self._running.waiting_for
        if now - since < LAST_SECONDS + INTERRUPT_GRACE_SECONDS:
            found = self._group.where(waiting)
            if all(i in found and formats_its_error(found[i]) for i in waiting):
                return False
        self.gave_up = True
        self._group.mark_out_of_step()
        return True

    @property
    def _asks(self) -> bool:
        """Whether to ask the user to interrupt again: not after a time-out or a death."""
        return not (self.timed_out or self._group.deaths or self._failed_at)

    def _has_failed_long_ago(self) -> bool:
        """Whether a process has failed a while ago, and the others go on.

        In a computation in which the others wait; in a script in any way.
        """
        is_script = self._running.request.script is not None
        has_failed = self._panel.failed_apart or (is_script and self._running.errors)
        if not has_failed:
            self._failed_at = None
            return False
        self._failed_at = self._failed_at or time.monotonic()
        seconds = OTHERS_SECONDS if is_script else APART_SECONDS
        return time.monotonic() - self._failed_at > seconds

    def _look_at_silent(self, since: float) -> bool:
        """Reports who has not ended after the interrupt; returns whether to go on waiting.

        Reports after a grace period, unless all of them are formatting their errors; sooner if
        they are known to have caught the interrupt or to wait in C++.
        """
        now = time.monotonic()
        soonest = CAUGHT_SECONDS if self._asks else IN_JAX_SECONDS
        if self._told or now - since < soonest or now - self._looked_at < LOOK_SECONDS:
            return True
        self._looked_at = now
        found = self._group.where(self._running.waiting_for)
        # Do not name a process that has left the cell beside one that is still in it.
        waiting = [i for i in self._running.waiting_for if not is_out_of_it(found.get(i))]
        waiting = sorted(waiting or self._running.waiting_for)
        those = [found[i] for i in waiting if i in found]
        are_known = len(those) == len(waiting)
        if are_known and all(map(formats_its_error, those)) and now - since < LEAVES_SECONDS:
            return True
        caught = are_known and all(has_caught_interrupt(each, CAUGHT_SECONDS) for each in those)
        are_in_jax = are_known and all(map(is_in_jax, those))
        grace = IN_JAX_SECONDS if are_in_jax and not caught else INTERRUPT_GRACE_SECONDS
        if self._running.request.profile and not any(each.in_cell for each in those):
            grace = PROFILE_SECONDS
        if now - since <= grace and not (caught and self._asks):
            return True
        asks = self._told = self._asks
        press = self._running.interrupt_by if asks else ""
        stopped = self._group.stopped_text(waiting)
        text = silent_text(waiting, found, now - since, caught=caught, press=press, stopped=stopped)
        self._running.notice(text)
        if not asks:
            self._group.mark_out_of_step()
            self.gave_up = self._failed_at is not None and self._running.request.script is None
        return asks
