"""Shows where the processes of a running cell are, once one waits or nothing is shown for long."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import replace

from jaxnb.cells import result
from jaxnb.cells.running import RunningCell
from jaxnb.labels import by_text, capitalized, processes_label
from jaxnb.lockstep.messages import Asking
from jaxnb.model.group import AtLine, Waits, Whereabouts
from jaxnb.session.reach import Reach
from jaxnb.session.reasons import (
    Reason,
    awaited,
    lost_text,
    silent_reason,
    still_text,
    threads_reason,
)

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


def is_idle(where: Whereabouts) -> bool:
    """Whether a process's main thread waits for messages, in its event loop."""
    return bool(where.stack) and where.stack[-1].file.endswith("/selectors.py")


MANY_PROGRAMS = 8
"""Of one function: a loop that compiles at each turn is soon there."""


def doing(where: Whereabouts) -> str:
    """Returns what a process does that waits for no other one; empty if its stack does not tell."""
    files = [entry.file for entry in where.stack]
    if any(file.endswith("/jaxnb/debugging/process_debugger.py") for file in files):
        at_breakpoint = any(file.endswith("/cmd.py") for file in files)
        return "at a breakpoint" if at_breakpoint else "waiting for an answer to its input()"
    if any(file.endswith("/jaxnb/lockstep/process_turns.py") for file in files):
        return "waiting until another of its threads has dispatched"
    if where.compiling is not None:
        what, count = f"`{where.compiling.program}`", where.compiling.count
        what += f" ({count} programs so far)" if count >= MANY_PROGRAMS else ""
        holder = where.compiling.holder
        return f"compiling {what}" if holder is None else f"for process {holder} to compile {what}"
    compiles = any(entry.function.endswith(_COMPILES) for entry in where.stack)
    return "compiling" if compiles else ""


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
        self._since: dict[int, tuple[object, float]] = {}  # where each process is, since when
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
        before, self._since = self._since, {}
        for i, where in found.items():
            place = where.in_cell, _number(where), waits(where)
            known, since = before.get(i, (None, now))
            self._since[i] = place, since if place == known else now

    def seconds(self, index: int) -> float:
        """Returns how long a process has been at its line, and has dispatched nothing."""
        return self._now - self._since[index][1]

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
        at: dict[AtLine, list[int]] = {}
        for i, where in sorted(self.found.items()):
            if where.fault:
                continue
            # In a loop that goes on some process waits for a moment at each look.
            goes_on = self.seconds(i) < MOMENT_SECONDS
            is_waiting, last = waits(where) and not goes_on, where.last_dispatch
            awaited = late.get(i, ()) if is_waiting else ()
            said = f"{last.number}: {last.signature()}" if last is not None and not goes_on else ""
            place = AtLine((), where.in_cell, 0.0, is_waiting, awaited, doing(where), said)
            at.setdefault(place, []).append(i)
        return tuple(
            replace(place, processes=tuple(who), seconds=min(map(self.seconds, who)))
            for place, who in at.items()
        )


def _number(where: Whereabouts) -> tuple[tuple[int, ...], int] | None:
    last = where.last_dispatch
    return None if last is None else (last.processes, last.number)


def faults_text(found: Mapping[int, Whereabouts]) -> str:
    """Returns whose sentinels failed, as sentences: nobody knows where those processes are."""
    return " ".join(
        f"The position of {processes_label(who)} is unknown: the sentinel failed ({fault})."
        for fault, who in by_text({i: where.fault for i, where in found.items()}).items()
    )


LOOK_SECONDS = 1.0
"""How often the processes are looked at."""

MOMENT_SECONDS = 0.5
"""Who has been at a place for less is not said to wait there."""

WAIT_SECONDS = 3.0
"""When a process has waited, or been silent, for so long, the user is shown where, until it goes
on. With a look a second, no wait is shown later than after 5 s."""

QUIET_SECONDS = 5.0
"""The user is shown where the processes of a cell are that has shown nothing for so long."""

LOST_SECONDS = 10.0
"""Who runs no cell for so long, and has not answered, never will: a message was lost. Nothing in
the way of messages drops any, so this is told and not mended."""


class Panel:
    """Watches one running cell; nothing that it sees has it do anything to the processes.

    What it knows: each process's Python stack, and who waits for whom at the conductor. Whether C
    code computes or waits, nobody tells.

    Args:
        group: The group.
        running: The cell, which is told what to show.

    Attributes:
        failed_apart: In what of others' failures processes waited at the last look; empty if in
            none.
    """

    def __init__(self, group: Reach, running: RunningCell) -> None:
        self._group = group
        self._running = running
        self._look_at = time.monotonic() + LOOK_SECONDS
        self._standing = Standing()
        self._looker = group.looker(running.request)
        self._raised_at: dict[str, float] = {}  # what was raised, and when that was first seen
        self._told: set[str] = set()
        self._absent: dict[int, float] = {}
        self._has_told_of_loss = False
        self.failed_apart = ""

    def close(self) -> None:
        """Ends the watch."""
        if self._looker is not None:
            self._looker.close()

    def look(self) -> None:
        """Looks, if it is time to, and has shown where the processes are, if one waits for long."""
        now = time.monotonic()
        if now < self._look_at:
            return
        waiting = set(self._running.waiting_for)
        self._standing.see(self._group.where(waiting), waiting, now)
        # Who has answered late, as a stopped process that goes on, may end the cell in a moment.
        self._look_at = max(now + LOOK_SECONDS, time.monotonic() + LOOK_SECONDS / 2)
        if self._looker is not None:
            self._looker.look()
        self._tell_who_is_absent(now)
        self.failed_apart = ""
        reason = (self._stand() and (self._failure() or self._fault())) or self._silent_agent()
        if not self.failed_apart:  # that says more
            self._tell_who_raised(now)
        is_quiet = now - self._running.shown_at >= QUIET_SECONDS
        if reason.text or self._waits() or is_quiet:
            self._show(reason)
        else:
            self._running.end_waits(by_itself=True)

    def _waits(self) -> bool:
        """Whether a process has waited, or been silent, for long.

        Where processes do not agree on what they dispatch, they wait in JAX.
        """
        silent = self._standing.silent_seconds() >= WAIT_SECONDS
        return silent or bool(self._standing.stuck(WAIT_SECONDS, in_jax=self._looker is None))

    def _stand(self) -> bool:
        """Whether a process may have waited in JAX for long, or all have been at their lines.

        A main thread that joins another thread is in neither JAX nor jaxnb.
        """
        standing = self._standing
        stuck = standing.stuck(WAIT_SECONDS, in_jax=True)
        return bool(stuck) or standing.all_seconds() >= WAIT_SECONDS

    def _show(self, reason: Reason) -> None:
        standing, running = self._standing, self._running
        silent_seconds = standing.silent_seconds()
        silent = tuple(sorted(standing.silent)) if silent_seconds >= WAIT_SECONDS else ()
        others = set(range(self._group.num_processes)) - running.waiting_for
        left = running.how_others_left(others)
        is_left = bool(others) and self._looker is None  # nobody tells who waits for whom
        found = standing.found.values()
        last = [each.last_dispatch.number for each in found if each.last_dispatch is not None]
        running.show_waits(
            Waits(
                standing.places(self._late()),
                silent_seconds if silent else running.seconds,
                " ".join(filter(None, [reason.text, faults_text(standing.found)])),
                reason.cause or ("missing" if is_left else ""),
                silent,
                self._group.stopped_text(silent) if silent else "",
                left,
                has_failed=bool(running.errors),
                dispatches=max(last, default=0),
            )
        )

    def _late(self) -> dict[int, tuple[int, ...]]:
        """Returns for whom processes wait at the conductor."""
        askings = self._askings()
        asking = {each.process for each in askings if each.lane == "main"}
        return {i: tuple(sorted(awaited([i], askings) - asking)) for i in asking}

    def _askings(self) -> tuple[Asking, ...]:
        return (self._looker and self._looker.waits) or ()

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

    def _tell_who_raised(self, now: float) -> None:
        """Tells what was raised a while ago, though the cell goes on elsewhere; each thing once."""
        raised = result.raised(self._running.errors)
        self._raised_at = {what: self._raised_at.get(what, now) for what in raised}
        late = [what for what, at in self._raised_at.items() if now - at >= WAIT_SECONDS]
        new = [what for what in late if what not in self._told]
        if new and not self._is_failure_about_to_be_told():
            self._told |= set(late)
            left = sorted(self._running.waiting_for)
            found = self._standing.found
            places = [found[i].in_cell for i in left if i in found]
            said = [(raised[what], what) for what in new]
            self._running.notice(still_text(said, left, places, self._running.interrupt_by))

    def _is_failure_about_to_be_told(self) -> bool:
        """Whether a computation has failed on some, and others are in JAX, perhaps to stay."""
        may_stay = self._standing.stuck(0.0, in_jax=True)
        return bool(may_stay) and self._group.apart(self._standing.silent) is not None

    def _failure(self) -> Reason | None:
        """Returns what is said of a computation that has failed on some processes only, so far."""
        apart = self._group.apart(self._standing.silent)
        if apart is None:
            return None
        self.failed_apart = str(apart)
        return Reason(f"{apart}.", "missing")

    def _silent_agent(self) -> Reason:
        """Returns what is said of hosts that do not answer though their processes do."""
        waiting = self._running.waiting_for - self._standing.silent
        clause = self._group.silence_text(waiting)
        return Reason(f"{capitalized(clause)}." if clause else "")

    def _fault(self) -> Reason | None:
        """Returns what the conductor's answer, or its silence, tells to be wrong; None if nothing.

        A main thread that asks is waited for by nobody's thread.
        """
        if self._looker is None:
            return None
        if seconds := self._looker.silent_seconds():
            return silent_reason(seconds)
        askings = self._askings()
        is_one_at_work = self._standing.all_seconds() < WAIT_SECONDS
        if is_one_at_work or any(each.lane == "main" for each in askings):
            return None
        return threads_reason(askings)
