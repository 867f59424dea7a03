"""How long to wait for a running cell: time-outs, interrupts, deaths, silent processes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Protocol

from jaxnb.deaths import Death
from jaxnb.freeing import Freer, Watched
from jaxnb.labels import processes_label
from jaxnb.model import WAYS, Whereabouts
from jaxnb.running import RunningCell
from jaxnb.watch import formats_its_error, has_caught_interrupt, line_text

DEATH_GRACE_SECONDS = 0.3
"""After a death the other processes may go on with their cell for so long."""

INTERRUPT_GRACE_SECONDS = 3.0
"""After this long without an answer to an interrupt the user is told who is silent."""

CAUGHT_SECONDS = 0.5
"""The user is told sooner of code that has caught the interrupt, and goes on for so long."""

LOOK_SECONDS = 0.5
"""How often it is looked whether a silent process is on its way back."""

INTERRUPT_GAP_SECONDS = 1.0
"""No second SIGINT sooner: one that strikes while IPython formats the traceback of the first
would interrupt that."""


class Interruptible(Watched, Protocol):
    """What :class:`Patience` needs of a session."""

    @property
    def deaths(self) -> Sequence[Death]:
        """Processes of the group that died without having been told to."""

    def mark_out_of_step(self) -> None:
        """Notes that processes did not come back."""


class Patience:
    """Decides, for one running cell, when to interrupt and when to stop waiting.

    Args:
        group: What runs it.
        running: The cell.
        timeout: Seconds after which it is interrupted, or None.
    """

    def __init__(self, group: Interruptible, running: RunningCell, timeout: float | None) -> None:
        self._group = group
        self._running = running
        self._timeout = timeout
        self._interrupted_at: float | None = None
        self._died_at: float | None = None
        self._interrupts = 0
        self._told = self._offers_force = False
        self._looked_at = 0.0
        self._freer = Freer(group, running)
        self._is_in_step = False  # the conductor stops all, and no signal was sent since
        self.timed_out = False
        self.gave_up = self.ends_at_once = False

    def go_on(self) -> bool:
        """Looks at interrupts, the clock and deaths; returns whether to go on waiting."""
        running = self._running
        if not running.waiting_for or running.abandoned is not None:
            return False
        if running.interrupted.is_set():
            running.interrupted.clear()
            if not self._interrupt_again():
                return False
        if any(death.role != "engine" for death in self._group.deaths):
            return False  # no answer can come any more
        if self._group.deaths and self._interrupted_at is None and self._others_had_time():
            self._interrupts += 1
            self._strike()
        if self._timeout is not None and not self.timed_out and running.seconds > self._timeout:
            self.timed_out = True
            self._interrupt()
        if self._interrupted_at is not None:
            self._freer.after_interrupt(self._interrupted_at, is_in_step=self._is_in_step)
            if self._only_the_deaf_are_left():
                return False
        elif not self._group.deaths:  # then broken connections free who waits
            self._freer.look()
        return self._interrupted_at is None or self._look_at_silent(self._interrupted_at)

    def close(self) -> None:
        """Ends the watch over the cell."""
        self._freer.close()

    @property
    def interrupted(self) -> bool:
        """Whether the cell was interrupted, for whatever reason."""
        return self._interrupts > 0

    def _interrupt_again(self) -> bool:
        """Passes an interrupt on; gives up if the user has been told that it ends by force."""
        if self._offers_force:
            self._give_up()
            return False
        since = self._interrupted_at
        if self._told or since is None or time.monotonic() - since > INTERRUPT_GAP_SECONDS:
            self._interrupt()
        return True

    def _interrupt(self) -> None:
        """Interrupts the processes: after the same dispatch, if they agree on dispatches."""
        self._interrupts += 1
        running = self._running
        self._told = False
        running.end_waits()
        if self._group.deaths or running.request.check == "off" or len(running.processes) < 2:
            self._strike()
            return
        self._group.interrupt_in_lockstep(running.request)
        self._interrupted_at, self._is_in_step = time.monotonic(), True

    def _strike(self) -> None:
        """Interrupts processes where they are."""
        self._interrupted_at, self._is_in_step = time.monotonic(), False
        self._told = False
        self._running.end_waits()
        self._group.send_interrupt(self._running.waiting_for)

    def _give_up(self) -> None:
        self.gave_up = True
        self._group.mark_out_of_step()

    def _only_the_deaf_are_left(self) -> bool:
        """Whether all that are still in the cell swallow every interrupt; they are given up."""
        waiting = self._running.waiting_for
        if not waiting or not waiting <= self._freer.deaf:
            return False
        found = self._group.where(waiting)  # once more: the last of several tries may have ended
        if any(i not in found or found[i].swallowed < WAYS for i in waiting):
            return False
        if not self._asks:
            self._group.mark_out_of_step()
            return True
        they_are = "It is" if len(waiting) == 1 else "They are"
        self._running.notice(
            f"{processes_label(waiting).capitalize()} swallowed every interrupt in a loop, "
            f"SwallowedInterrupt too, which is no KeyboardInterrupt: {_places(waiting, found)}. "
            f"{they_are} ended by force; {_CARRIED}."
        )
        self.ends_at_once = True
        self._give_up()
        return True

    @property
    def _asks(self) -> bool:
        """Whether somebody is there who decides."""
        return not (self.timed_out or self._group.deaths)

    def _others_had_time(self) -> bool:
        """Whether those that outlived a death have had time to end their cell by themselves.

        What waits in a collective with the dead gets an error from the broken connection.
        """
        if self._died_at is None:
            self._died_at = time.monotonic()
        return time.monotonic() - self._died_at > DEATH_GRACE_SECONDS

    def _look_at_silent(self, since: float) -> bool:
        """Says who did not end after the interrupt; returns whether to go on waiting.

        After a while, unless all are on the way back; and sooner if it is known that they have
        caught it.
        """
        now = time.monotonic()
        soonest = CAUGHT_SECONDS if self._asks else INTERRUPT_GRACE_SECONDS
        if self._told or now - since < soonest or now - self._looked_at < LOOK_SECONDS:
            return True
        self._looked_at = now
        found = self._group.where(self._running.waiting_for)
        # Whose answer is on its way is not named beside one that is in the cell.
        waiting = [i for i in self._running.waiting_for if not _is_out_of_it(found.get(i))]
        waiting = sorted(waiting or self._running.waiting_for)
        are_back = all(i in found and formats_its_error(found[i]) for i in waiting)
        caught = all(i in found and has_caught_interrupt(found[i], CAUGHT_SECONDS) for i in waiting)
        if are_back or not (caught or now - since > INTERRUPT_GRACE_SECONDS):
            return True
        if not self._asks:
            self._group.mark_out_of_step()
            return False
        self._told = True
        self._offers_force = not caught or self._interrupts > 1
        self._running.notice(self._notice(waiting, found, caught=caught))
        return True

    def _notice(
        self, waiting: Collection[int], found: Mapping[int, Whereabouts], *, caught: bool
    ) -> str:
        who, where = processes_label(waiting).capitalize(), _places(waiting, found)
        is_one = len(waiting) == 1
        if caught:
            said = f"{who} caught the interrupt and went on: {where}. This may end by itself."
        else:
            said = (
                f"{who} did not answer the interrupt within {INTERRUPT_GRACE_SECONDS:g} s: "
                f"{where}. Nothing here can free what waits in C++ code for long."
            )
        if not self._offers_force:
            they_do = "it does" if is_one else "they do"
            return f"{said} Interrupt again to interrupt what {they_do} now."
        it = "it" if is_one else "them"
        return f"{said} Interrupt again to end {it} by force: {_CARRIED}."


_CARRIED = "new processes take the variables over"

PLURALS = {"is": "are", "has": "have"}


def _places(waiting: Iterable[int], found: Mapping[int, Whereabouts]) -> str:
    places: dict[str, list[int]] = {}
    for index in sorted(waiting):
        places.setdefault(_what_it_does(found.get(index)), []).append(index)
    return "; ".join(f"{processes_label(who)} {_of(len(who), it)}" for it, who in places.items())


def _of(count: int, does: str) -> str:
    """Returns what one process does, as it is said of so many."""
    verb, rest = does.split(" ", 1)
    return does if count == 1 else f"{PLURALS[verb]} {rest}"


def _is_out_of_it(where: Whereabouts | None) -> bool:
    return where is not None and where.in_cell is None and not where.fault


def _what_it_does(where: Whereabouts | None) -> str:
    if where is None:
        return "is silent"
    if where.fault:
        return f"is where nobody can tell: its sentinel failed ({where.fault})"
    if where.cell_seconds is None:
        return "is not in the cell"
    return f"is {line_text(where)}" if line_text(where) else "has left the cell's lines"


@contextmanager
def sigint_sets(event: threading.Event) -> Iterator[None]:
    """Turns SIGINT into an event for the block.

    KeyboardInterrupt could strike anywhere, in the middle of merging output too. Outside the
    main thread there are no signals to turn.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGINT, lambda *_: event.set())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, previous)


@contextmanager
def sigint_held() -> Iterator[None]:
    """Holds SIGINT back until the block has ended, for what must not be left half done."""
    held = threading.Event()
    with sigint_sets(held):
        yield
    if held.is_set():
        raise KeyboardInterrupt
