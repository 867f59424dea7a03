"""Pure: at which dispatch the processes of a cell stop, and whether they come to it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from jaxnb.labels import processes_label
from jaxnb.model.stopping import HoldState
from jaxnb.watch import (
    formats_its_error,
    is_compiling,
    is_of_jax,
    waits_for_others,
    waits_in_python,
)

PYTHON_SECONDS = 0.5
"""Who does something else than JAX for so long, without a dispatch, may never come to one."""

PYTHON_CPU_SECONDS = 0.2
"""Unless it has had less of a processor than that, and waits for one: the machine is busy."""

JAX_SECONDS = 10.0
"""The same for who runs JAX's Python code, which traces; to compile may take longer."""

STILL_SECONDS = 1.0
"""Nobody does anything for so long: they wait for each other, and nothing that they have
dispatched makes progress."""

DEAF_SECONDS = 1.0
"""Who has not seen a SIGINT after so long is not where it could."""


def step_of(states: Mapping[int, HoldState], left: Mapping[int, int]) -> int | str:
    """Returns after how many dispatches all processes of a cell stop, or why they cannot.

    That is as many as the foremost has made. The others can make them too: each has been
    dispatched by one at least, and before a hold all would have come to them.

    Args:
        states: Those that are in the cell; all hold.
        left: Those that have left it, and how many dispatches they had made.
    """
    for index, state in sorted(states.items()):
        if state.unfit:
            return f"process {index} {state.unfit}"
    counts = {i: state.count for i, state in states.items()}
    most = max([*counts.values(), *left.values()], default=0)
    gone = [i for i, count in left.items() if count < most]
    gone += [i for i, state in states.items() if state.has_left and state.count < most]
    if gone:
        return f"{processes_label(sorted(gone))} left the cell before"
    if not most and not any(map(comes_back, states.values())):
        return "nothing has been dispatched"
    return most


def comes_back(state: HoldState) -> bool:
    """Whether a process is where it comes back from, given time, and goes on to a dispatch.

    It makes one, waits for others, or compiles.
    """
    where = state.where
    if state.is_held or state.is_dispatching or waits_for_others(where) or is_compiling(where):
        return True
    return formats_its_error(where)


@dataclass(frozen=True, slots=True)
class Look:
    """What is known of processes that are to stop at a dispatch.

    Attributes:
        have_stopped: All have seen an interrupt, or left the cell.
        failed: Why they cannot all stop there; empty as long as they can.
        interrupt: Who has made all dispatches, and does something of the user's: SIGINT may strike
            it where it is.
        behind: Who has not made all yet.
    """

    have_stopped: bool = False
    failed: str = ""
    interrupt: tuple[int, ...] = ()
    behind: tuple[int, ...] = ()


class Approach:
    """Processes on their way to the dispatch at which all stop; times as ``time.monotonic()``.

    Attributes:
        step: After how many dispatches they stop.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self._at: dict[int, tuple[float, float, int, bool]] = {}
        """Since when, and since which processor time, at which count, in JAX."""
        self._progress: tuple[float, object] = (0.0, None)
        self._struck: dict[int, float] = {}

    def look(
        self,
        states: Mapping[int, HoldState],
        asked: Collection[int],
        still: float,
        now: float,
        *,
        have_left: bool = False,
    ) -> Look:
        """Takes a look at the processes.

        Args:
            states: Those that have told where they are.
            asked: All that were in the cell.
            still: For how many seconds those that have not stopped have done nothing but wait.
            now: When that was.
            have_left: Others have left the cell already, and were not asked.
        """
        coming = {i: s for i, s in states.items() if not (s.has_stopped or s.has_left)}
        early = [i for i, s in states.items() if s.count < self.step and i not in coming]
        if early:
            return Look(failed=f"{processes_label(sorted(early))} stopped before")
        if not coming and states.keys() >= set(asked):
            return Look(have_stopped=True)
        behind = tuple(sorted(i for i, s in coming.items() if s.count < self.step))
        told = {i: (s.count, s.has_stopped, s.has_left) for i, s in states.items()}
        if told != self._progress[1]:
            self._progress = (now, told)
        if coming and still >= STILL_SECONDS:
            return Look(failed="nothing makes progress", behind=behind)
        late = self._late(coming, now, are_all=not have_left and len(coming) == len(states))
        if lagging := [i for i in late if i in behind]:
            return Look(failed=f"{processes_label(lagging)} came to no dispatch", behind=behind)
        if deaf := [i for i in late if now - self._struck.get(i, now) >= DEAF_SECONDS]:
            return Look(failed=f"{processes_label(deaf)} did not see the interrupt")
        new = tuple(i for i in late if i not in self._struck)
        self._struck.update(dict.fromkeys(new, now))
        return Look(interrupt=new, behind=behind)

    def seconds_without_progress(self, now: float) -> float:
        """Returns for how long no process has come further."""
        return now - self._progress[0]

    def _late(self, coming: Mapping[int, HoldState], now: float, *, are_all: bool) -> list[int]:
        """Returns who has been somewhere for long that it may not come back from.

        Where it is, JAX or not, counts only for who has dispatches to make. Who waits for a word of
        the others, and not for a result, does not come back if one of those has stopped.
        """
        since: dict[int, tuple[float, float, int, bool]] = {}
        late = []
        for i, state in coming.items():
            is_in_vain = not are_all and state.count >= self.step and waits_in_python(state.where)
            if comes_back(state) and not is_in_vain:
                continue
            in_jax = state.count < self.step and is_in_jax(state)
            known = self._at.get(i)
            is_same = known is not None and known[2:] == (state.count, in_jax)
            cpu = state.where.cpu_seconds
            since[i] = known if known and is_same else (now, cpu, state.count, in_jax)
            is_starved = bool(state.where.runnable) and cpu - since[i][1] < PYTHON_CPU_SECONDS
            is_patient = in_jax or (is_starved and not is_in_vain)
            patience = JAX_SECONDS if is_patient else PYTHON_SECONDS
            if now - since[i][0] >= patience:
                late.append(i)
        self._at = since
        return sorted(late)


def is_in_jax(state: HoldState) -> bool:
    """Whether a process runs JAX's Python code."""
    return bool(state.where.stack) and is_of_jax(state.where.stack[-1])
