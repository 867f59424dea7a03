"""Where processes are in a cell, and why they wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxnb.lockstep.messages import Asking, Lane, Word
from jaxnb.model.dispatches import Dispatch, Shapes
from jaxnb.model.group import Compiling, StackEntry, Whereabouts
from jaxnb.session.panel import (
    Standing,
    doing,
    faults_text,
    has_caught_interrupt,
    is_in_jax,
    waits,
)
from jaxnb.session.reasons import awaited, silent_reason, threads_reason

CELL = StackEntry("<cell 7>", 3, "<module>", "y = f(x)", 7)
IN_JAX = StackEntry("/v/site-packages/jax/_src/array.py", 9, "ArrayImpl._value", "", None)
MULTIHOST = StackEntry("/v/site-packages/jax/experimental/multihost_utils.py", 9, "f", "", None)
QUEUE = StackEntry("/usr/lib/python3/queue.py", 171, "Queue.get", "self.not_empty.wait()", None)
SHELL = StackEntry("/v/IPython/core/interactiveshell.py", 1, "run_code", "", None)
ASKS = StackEntry("/v/jaxnb/lockstep/process_connection.py", 9, "Line.ask", "", None)
TOLD = StackEntry("/v/jaxnb/wire/process_together.py", 9, "told", "", None)
QUESTION = StackEntry("/x/jaxnb/debugging/process_debugger.py", 80, "Questions.ask", "", None)
DISPATCH = Dispatch(
    4, "jit(f)", 1, Shapes(("f32[8]",), 1), Shapes(("f32[]",), 1), (0, 1, 2), 3, 0.1
)


def at(*stack: StackEntry, index: int = 0) -> Whereabouts:
    return Whereabouts(index, (SHELL, *stack))


def seen(*looks: list[Whereabouts], asked: tuple[int, ...] = (0, 1, 2)) -> Standing:
    """Looks a second apart."""
    found = Standing()
    for second, look in enumerate(looks):
        found.see({where.process_index: where for where in look}, asked, 100.0 + second)
    return found


@pytest.mark.parametrize(
    ("stack", "in_jax", "is_waiting"),
    [
        # A cell's line and JAX may wait in C++.
        ((CELL,), True, False),
        ((CELL, IN_JAX), True, False),
        ((CELL, MULTIHOST), True, False),
        ((IN_JAX,), True, False),
        # Other Python code does not.
        ((CELL, QUEUE), False, False),
        ((CELL, IN_JAX, QUEUE), False, False),
        ((), False, False),
        # Who asks others waits.
        ((CELL, ASKS), False, True),
        ((TOLD, QUEUE), False, True),
    ],
)
def test_who_waits_in_jax_or_for_others(
    stack: tuple[StackEntry, ...], in_jax: bool, is_waiting: bool
) -> None:
    assert (is_in_jax(at(*stack)), waits(at(*stack))) == (in_jax, is_waiting)


@pytest.mark.parametrize(
    ("where", "said"),
    [
        (at(CELL), ""),
        (at(CELL, StackEntry("/jax/_src/compiler.py", 9, "backend_compile", "", None)),
         "compiling"),
        (replace(at(CELL), compiling=Compiling("jit(f)")), "compiling `jit(f)`"),
        (replace(at(CELL), compiling=Compiling("jit(f)", 2)), "for process 2 to compile `jit(f)`"),
        (
            replace(at(CELL), compiling=Compiling("jit(f)", 2, 9)),
            "for process 2 to compile `jit(f)` (9 programs so far)",
        ),
        (at(CELL, StackEntry("/usr/lib/python3/cmd.py", 134, "Cmd.cmdloop", "", None), QUESTION),
         "at a breakpoint"),
        (at(CELL, QUESTION), "waiting for an answer to its input()"),
        (at(CELL, StackEntry("/x/jaxnb/lockstep/process_turns.py", 40, "Turns.begin", "", None)),
         "waiting until another of its threads has dispatched"),
    ],
)  # fmt: skip
def test_what_a_stack_tells(where: Whereabouts, said: str) -> None:
    assert doing(where) == said
    assert not said.startswith("for process 2") or waits(where)


def test_who_is_at_one_line_is_shown_together() -> None:
    in_it = replace(at(CELL), last_dispatch=DISPATCH)
    who = [replace(in_it, process_index=i) for i in (0, 2)]
    look = [*who, at(CELL, ASKS, index=1), at(index=3)]
    together, asks, elsewhere = seen(look, look).places({1: (3,), 0: (3,)})
    assert (together.processes, together.place, together.seconds) == ((0, 2), CELL, 1)
    assert (together.waits, together.late) == (False, ())
    assert together.last_dispatch == "4: jit(f) f32[8] -> f32[]"
    assert (asks.processes, asks.waits, asks.late, asks.last_dispatch) == ((1,), True, (3,), "")
    assert (elsewhere.processes, elsewhere.place) == ((3,), None)


@pytest.mark.parametrize(
    "other",
    [
        at(replace(CELL, line=4)),
        at(CELL, ASKS),
        replace(at(CELL), last_dispatch=DISPATCH),
    ],
)
def test_who_went_on_is_there_since_then(other: Whereabouts) -> None:
    for looks in ([at(CELL)], [other], [other]), ([other], [at(CELL)], [at(CELL, QUEUE)]):
        assert seen(*looks, asked=(0,)).all_seconds() == 1


def test_who_waits_for_long() -> None:
    looks = [[at(CELL, ASKS), at(CELL, index=1), at(CELL, QUEUE, index=2)]] * 4
    standing = seen(*looks)
    assert standing.stuck(3, in_jax=False) == [0]
    assert standing.stuck(3, in_jax=True) == [0, 1]
    assert standing.stuck(4, in_jax=True) == []


def test_the_silent_count_from_when_they_fell_silent() -> None:
    both = [at(CELL), at(CELL, index=1)]
    standing = seen([*both, at(CELL, index=2)], both, both)
    assert (standing.silent, standing.silent_seconds()) == ({2}, 1)
    assert standing.all_seconds() == 1
    nobody = seen([], [], [])
    assert (nobody.silent, nobody.silent_seconds(), nobody.all_seconds()) == ({0, 1, 2}, 2, 2)


@pytest.mark.parametrize(
    ("where", "expected"), [(at(CELL), True), (at(CELL, QUEUE), True), (at(), False)]
)
def test_who_goes_on_in_the_cell_has_caught_it(where: Whereabouts, expected: bool) -> None:
    assert not has_caught_interrupt(where, 0.0)
    interrupted = replace(where, interrupted_seconds=0.5)
    assert has_caught_interrupt(interrupted, 0.5) is expected
    assert not has_caught_interrupt(interrupted, 0.6)


def test_a_sentinel_that_fails_is_told() -> None:
    faulty = Whereabouts(1, (), fault="ValueError: broken")
    standing = seen([at(CELL), faulty], asked=(0, 1))
    assert [each.processes for each in standing.places({})] == [(0,)]
    told = "The position of process 1 is unknown: the sentinel failed (ValueError: broken)."
    assert faults_text(standing.found) == told


# ---------------------------------------------------------------------- by what the conductor knows


def asking(
    process: int,
    lane: Lane = "main",
    program: bytes = b"p",
    inputs: bytes = b"",
    token: int = 1,
    among: tuple[int, ...] = (0, 1, 2, 3),
) -> Asking:
    return Asking(process, lane, token, Word(among, program, inputs))


def test_who_is_awaited_may_wait_itself() -> None:
    chain = [asking(0, among=(0, 1)), asking(1, among=(1, 2))]
    assert awaited([0], chain) == {1, 2}
    assert awaited([1], chain) == {2}
    assert awaited([3], chain) == set()
    assert awaited([0, 2, 3], [asking(i) for i in (0, 2, 3)]) == {1}
    assert awaited([0], [asking(0, "other")]) == set()
    assert "has not answered for 3 s" in silent_reason(3.2).text


def test_threads_differ() -> None:
    def reason(*askings: Asking) -> tuple[str, str]:
        found = threads_reason(askings)
        assert found is not None
        return found.text, found.cause

    each = "A thread of each of processes 0-3 (or a computation's callback) waits"
    text, cause = reason(*(asking(i, "other", inputs=b"%d" % (i % 2)) for i in range(4)))
    assert text.startswith(each)
    assert text.endswith("inputs of the one program differ on processes 0,2 / 1,3.")
    assert cause == "input"
    text, cause = reason(*(asking(i, "other", program=b"%d" % i) for i in range(4)))
    assert text.endswith("programs or shapes differ on processes 0 / 1 / 2 / 3.")
    assert cause == "program"
    text, cause = reason(asking(0, "other"), asking(0, "other", b"q", token=2))
    assert text.startswith("A thread of process 0 (")
    assert text.endswith("processes 1-3 have no thread that does.")
    assert cause == "missing"
    # Those that wait since before are not what all wait for now.
    older = [asking(i, "other", program=b"%d" % i, token=0) for i in range(4)]
    text, cause = reason(*(asking(i, "other", inputs=b"%d" % i) for i in range(4)), *older)
    assert cause == "input"
    assert threads_reason([asking(0)]) is None
