"""Verdicts on snapshots of processes that wait, or do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxnb.model.dispatches import Dispatch, Shapes
from jaxnb.model.group import StackEntry, Whereabouts
from jaxnb.session.panel import waits_of
from jaxnb.session.reasons import line_text
from jaxnb.session.standing_since import (
    IDLE_CPU,
    has_caught_interrupt,
    is_called_back,
    is_of_jax,
    stands_still,
    waits_for_others,
    waits_in_jax,
    waits_in_python,
)

CELL = StackEntry("<cell 7>", 3, "<module>", "y = f(x)", 7)
IN_JAX = StackEntry("/v/site-packages/jax/_src/array.py", 9, "ArrayImpl._value", "", None)
MULTIHOST = StackEntry("/v/site-packages/jax/experimental/multihost_utils.py", 9, "f", "", None)
OTHER = StackEntry("/usr/lib/python3/queue.py", 171, "Queue.get", "self.not_empty.wait()", None)
SHELL = StackEntry("/v/IPython/core/interactiveshell.py", 1, "run_code", "", None)


def at(*stack: StackEntry, index: int = 0, call: str = "futex", cpu: float = 1.0) -> Whereabouts:
    return Whereabouts(index, (SHELL, *stack), call, cpu, None)


STUCK = at(CELL)
STARVED = replace(STUCK, runnable=frozenset({(7, 3), (8, 1)}))


@pytest.mark.parametrize("stack", [(CELL,), (CELL, IN_JAX), (CELL, MULTIHOST), (IN_JAX,)])
def test_a_futex_below_a_cells_line_or_jax_is_a_wait_in_jax(stack: tuple[StackEntry, ...]) -> None:
    assert waits_in_jax(at(*stack))


@pytest.mark.parametrize(
    "where",
    [
        at(CELL, call=""),
        at(CELL, call="sleep"),
        at(CELL, OTHER),
        at(CELL, IN_JAX, OTHER),  # a callback
        at(),
        Whereabouts(0, (), "futex", 0.0, None),
    ],
)
def test_other_waits_are_not(where: Whereabouts) -> None:
    assert not waits_in_jax(where)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/v/jax/_src/pjit.py", True),
        ("/v/jax/experimental/multihost_utils.py", True),
        ("/v/jaxnb/compat/jax_dispatch.py", True),
        ("/v/jaxnb/cells/process_runner.py", False),
        ("/home/me/jax_src/model.py", False),
        ("<cell 3>", False),
    ],
)
def test_what_is_jaxs_own(file: str, expected: bool) -> None:
    assert is_of_jax(StackEntry(file, 1, "f", "", None)) is expected


def test_who_waits_at_one_place_is_told_together() -> None:
    busy = Dispatch(
        4, "jit(f)", 1, Shapes(("f32[8]",), 1), Shapes(("f32[]",), 1), (0, 1, 2), 3, 0.1
    )
    in_it = replace(STUCK, last_dispatch=busy)
    found = {2: in_it, 0: in_it, 1: STUCK, 3: at()}
    together, alone, elsewhere = waits_of(found, 12.0, "They part.").waits
    assert (together.processes, together.place) == ((0, 2), CELL)
    assert together.last_dispatch == "4: jit(f) f32[8] -> f32[]"
    assert (alone.processes, alone.place, alone.last_dispatch) == ((1,), CELL, "")
    assert (elsewhere.processes, elsewhere.place) == ((3,), None)


def test_who_waits_at_one_place_without_processor_stands_still() -> None:
    assert stands_still(STUCK, STUCK, 2.0)


def test_threads_that_wake_up_now_and_then_do_not_count() -> None:
    assert stands_still(STARVED, STUCK, 2.0)
    woken = replace(STUCK, runnable=frozenset({(7, 4)}))
    assert stands_still(STARVED, woken, 2.0)


def test_a_thread_that_begins_in_jax_is_a_callback() -> None:
    thread = "/usr/lib/python3.11/threading.py"
    assert not is_called_back(STUCK)
    assert not is_called_back(replace(STUCK, entries=frozenset({thread})))
    assert is_called_back(replace(STUCK, entries=frozenset({thread, IN_JAX.file})))


def test_who_waits_to_agree_waits_for_others() -> None:
    """It sleeps in no futex, and JAX is not what it waits in."""
    agreeing = StackEntry("/v/jaxnb/lockstep/process_connection.py", 9, "Line.ask", "", None)
    for where in at(CELL, agreeing, call=""), at(agreeing, OTHER, index=1):
        assert stands_still(where, where, 2.0)
    assert not waits_in_jax(at(CELL, agreeing, call=""))


def test_who_waits_for_the_words_of_others_waits_for_others() -> None:
    """It asks for them again and again, in Python."""
    told = StackEntry("/v/jaxnb/wire/process_together.py", 9, "told", "", None)
    for where in at(CELL, told, call=""), at(CELL, told, index=1):
        assert waits_for_others(where)
        assert stands_still(where, where, 2.0)
        assert not waits_in_jax(where)


def test_who_waits_for_a_thread_that_waits_for_others_waits_for_others() -> None:
    join = StackEntry("/usr/lib/python3.11/threading.py", 9, "Thread.join", "", None)
    waits = replace(at(CELL, join), asks_by_thread=True)
    assert waits_for_others(waits)
    assert not waits_in_python(waits)
    assert not waits_for_others(replace(waits, asks_by_thread=False))
    assert not waits_for_others(replace(waits, sleeps_in="sleep"))


def test_a_little_processor_time_is_allowed() -> None:
    seconds = 2.0
    less = replace(STUCK, cpu_seconds=1.0 + 0.9 * IDLE_CPU * seconds)
    more = replace(STUCK, cpu_seconds=1.0 + 1.1 * IDLE_CPU * seconds)
    assert stands_still(STUCK, less, seconds)
    assert not stands_still(STUCK, more, seconds)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (STUCK, at(replace(CELL, line=4))),  # it went on
        (STUCK, at(CELL, IN_JAX)),
        (STUCK, at(CELL, call="")),
        (at(CELL, call="sleep"), STUCK),
        (at(CELL, OTHER), at(CELL, OTHER)),
        (STARVED, replace(STARVED, runnable=frozenset({(9, 5), (8, 1)}))),
    ],
)
def test_whoever_did_anything_else_is_not(before: Whereabouts, now: Whereabouts) -> None:
    assert not stands_still(before, now, 2.0)


def test_the_line_is_the_innermost_of_a_cell() -> None:
    assert line_text(at(CELL, IN_JAX)) == "at line 3: `y = f(x)`"
    inner = StackEntry("<cell 5>", 12, "step", "return g(x)", 5)
    assert line_text(at(CELL, inner, IN_JAX)) == "at line 12: `return g(x)`"
    assert line_text(at(replace(CELL, source=""))) == "at line 3"
    assert line_text(at(OTHER)) == ""


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (at(CELL, call=""), True),
        (at(CELL, OTHER), True),
        (at(CELL, call="sleep"), True),
        (at(CELL), True),  # it may wait for its interpreter's lock
        (at(), False),  # it formats its error
    ],
)
def test_who_goes_on_in_the_cell_has_caught_the_interrupt(
    where: Whereabouts, expected: bool
) -> None:
    assert not has_caught_interrupt(where, 0.0)
    interrupted = replace(where, interrupted_seconds=0.5)
    assert has_caught_interrupt(interrupted, 0.5) is expected
    assert not has_caught_interrupt(interrupted, 0.6)


def test_a_sentinel_that_fails_is_told_in_the_panel() -> None:
    faulty = Whereabouts(1, (), "", 0.0, None, fault="ValueError: broken")
    both = {0: replace(STUCK, process_index=0), 1: faulty}
    assert stands_still(faulty, faulty, 2.0)
    assert not waits_for_others(faulty)
    shown = waits_of(both, 12.0, "Why.")
    assert [wait.processes for wait in shown.waits] == [(0,)]
    told = "The position of process 1 is unknown: its sentinel failed (ValueError: broken)."
    assert shown.reason == f"Why. {told}"
