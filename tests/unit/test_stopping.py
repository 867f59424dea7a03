"""At which dispatch the processes of a cell stop, and who does not come to it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxnb.model import StackEntry, Whereabouts
from jaxnb.model.stopping import HoldState
from jaxnb.stalls.stopping import Approach, Look, step_of

CELL = StackEntry("<cell 7>", 5, "<module>", "params = step(params)", 7)
COMPILE = StackEntry("/jax/_src/compiler.py", 1, "backend_compile", "", None)
TRACE = StackEntry("/jax/_src/core.py", 1, "bind", "", None)


def at(
    index: int,
    count: int,
    *,
    inner: StackEntry | None = None,
    sleeps_in: str = "",
    unfit: str = "",
    held: bool = False,
    dispatching: bool = False,
    stopped: bool = False,
    left: bool = False,
) -> HoldState:
    stack = (CELL,) if inner is None else (CELL, inner)
    where = Whereabouts(index, stack, sleeps_in, 1.0, None, cell_seconds=1.0)
    return HoldState(index, where, count, unfit, held, dispatching, stopped, left)


def by_process(*states: HoldState) -> dict[int, HoldState]:
    return {state.process_index: state for state in states}


def looks(approach: Approach, *states: HoldState, still: float = 0.0, now: float = 0.0) -> Look:
    found = by_process(*states)
    return approach.look(found, set(found), still, now)


def test_all_stop_where_the_foremost_is() -> None:
    states = by_process(at(0, 4, held=True), at(1, 6, held=True), at(2, 5, sleeps_in="futex"))
    assert step_of(states, {}) == 6
    assert step_of(states, {3: 6}) == 6


@pytest.mark.parametrize(
    ("states", "left", "why"),
    [
        ([at(0, 4), at(1, 4, unfit="is not recorded")], {}, "process 1 is not recorded"),
        ([at(0, 4), at(1, 6)], {2: 5, 3: 4}, "processes 2-3 left the cell before"),
        ([at(0, 4), at(1, 3, left=True)], {}, "process 1 left the cell before"),
        ([at(0, 0), at(1, 0)], {}, "nothing has been dispatched"),
    ],
)
def test_why_they_cannot(states: list[HoldState], left: dict[int, int], why: str) -> None:
    assert step_of(by_process(*states), left) == why


def test_before_the_first_dispatch_they_stop_where_they_compile() -> None:
    assert step_of(by_process(at(0, 0, inner=COMPILE), at(1, 0, held=True)), {}) == 0


def test_it_ends_when_all_have_seen_it_or_left() -> None:
    approach = Approach(6)
    assert looks(approach, at(0, 6, stopped=True), at(1, 5)) == Look(behind=(1,))
    assert looks(approach, at(0, 6, stopped=True), at(1, 6, left=True)).have_stopped


def test_who_stops_before_breaks_it_off() -> None:
    found = looks(Approach(6), at(0, 6), at(1, 5, stopped=True))
    assert found.failed == "process 1 stopped before"


def test_who_is_behind_and_comes_to_no_dispatch_breaks_it_off() -> None:
    approach = Approach(6)
    for now, count in ((0.0, 4), (0.4, 5), (0.8, 5)):
        assert looks(approach, at(0, 6, held=True), at(1, count), now=now) == Look(behind=(1,))
    found = looks(approach, at(0, 6, held=True), at(1, 5), now=1.0)
    assert found.failed == "process 1 came to no dispatch"


@pytest.mark.parametrize(
    "state",
    [at(1, 5, sleeps_in="futex"), at(1, 5, dispatching=True), at(1, 5, inner=COMPILE)],
)
def test_who_comes_back_is_waited_for(state: HoldState) -> None:
    approach = Approach(6)
    for now in (0.0, 60.0):
        assert looks(approach, at(0, 6, held=True), state, now=now) == Look(behind=(1,))


def test_who_gets_no_processor_is_waited_for_longer() -> None:
    approach = Approach(6)
    behind = at(1, 5)
    starved = replace(behind, where=replace(behind.where, runnable=frozenset({(7, 1)})))
    for now in (0.0, 2.0):
        assert not looks(approach, starved, now=now).failed
    at_work = replace(starved, where=replace(starved.where, cpu_seconds=1.5))
    assert looks(approach, at_work, now=3.0).failed == "process 1 came to no dispatch"


def test_who_traces_is_waited_for_a_while() -> None:
    approach = Approach(6)
    for now in (0.0, 9.0):
        assert not looks(approach, at(1, 5, inner=TRACE), now=now).failed
    assert looks(approach, at(1, 5, inner=TRACE), now=10.0).failed


def test_who_is_there_is_interrupted_where_it_is_and_once() -> None:
    approach = Approach(6)
    assert looks(approach, at(0, 6), at(1, 6, inner=TRACE), now=0.0) == Look()
    assert looks(approach, at(0, 6, inner=TRACE), at(1, 6), now=0.5).interrupt == (0, 1)
    assert looks(approach, at(0, 6), at(1, 6), now=1.0) == Look()
    found = looks(approach, at(0, 6, stopped=True), at(1, 6), now=1.5)
    assert found.failed == "process 1 did not see the interrupt"


def test_who_waits_for_the_word_of_one_that_has_left_is_interrupted() -> None:
    word = StackEntry("/x/jaxnb/engine/together.py", 88, "told", "", None)
    waits = at(1, 6, inner=word, sleeps_in="futex"), at(2, 6, inner=word, sleeps_in="futex")
    states = by_process(*waits)
    for have_left, interrupt in ((False, ()), (True, (1, 2))):
        approach = Approach(6)
        for now in (0.0, 0.5):
            found = approach.look(states, set(states), 0.0, now, have_left=have_left)
        assert found.interrupt == interrupt


def test_who_makes_no_progress_is_not_waited_for() -> None:
    approach = Approach(6)
    waits = at(0, 6, sleeps_in="futex"), at(1, 6, sleeps_in="futex")
    assert not looks(approach, *waits, still=0.9).failed
    assert looks(approach, *waits, still=1.0).failed == "nothing makes progress"
