"""Exercises on real processes: every solution passes, every known mistake gets its own hint."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jaxnb import course
from jaxnb.course import Exercise, Wrong
from jaxnb.errors import ProcessDiedError, UsageError
from jaxnb.session import Session
from support.course import SOLUTIONS, parts
from support.fixtures import assert_usable, until

SOLVED, MISTAKEN = parts(SOLUTIONS), parts(SOLUTIONS / "wrong")

GATHER = "def my_all_gather(x, axis):\n    return jax.lax.all_gather(x, axis, tiled=True)"


def answer(code: str) -> str:
    """Returns a student's function with a body."""
    return f"def my_all_gather(x, axis):\n    {code}\n"


@pytest.fixture
def exercise() -> Exercise:
    """The exercise `all_gather`, not tried yet."""
    given = course.all_gather
    given.tries, given.last, given.passed = 0, None, False
    return given


# All of them on one group; the others of this file are what the gate runs.
@pytest.mark.thorough
@pytest.mark.parametrize("name", course.exercises())
def test_the_solution_passes_and_mistakes_get_their_hints(name: str, session: Session) -> None:
    given = course.exercises()[name]
    session.run(SOLVED[name])
    verdict = given.check(session)
    assert verdict, verdict
    assert given.passed
    for wrong in given.wrong:
        session.run(MISTAKEN[f"{name}: {wrong.name}"])
        verdict = given.check(session)
        assert not verdict, wrong.name
        assert (verdict.known, verdict.hint) == (wrong.name, wrong.hint), verdict
        assert given.passed
        assert session.state == "ready"


def test_a_check_leaves_nothing_behind(session: Session, exercise: Exercise) -> None:
    mine = "x = mesh = f = put = P = int = 7\n"  # names that the exercise's code uses
    session.run(mine + SOLVED["all_gather"])
    names = "sorted(name for name in globals() if name.strip('_i0123456789'))"
    before = session.run(names).value
    verdict = exercise.check(session)
    assert verdict, verdict
    assert verdict.sent == exercise.budget == 7 * 16
    assert exercise.passed
    assert session.run(names).value == before
    assert session.run("x, mesh, f, put, P, int").value == (7,) * 6
    assert "my_all_gather" not in session.history[-1].code


def test_the_student_s_settings_make_no_difference(session: Session, exercise: Exercise) -> None:
    count = "def my_counts(x, axis):\n    return jax.lax.psum(jnp.bincount(x, length=8), axis)\n"
    mesh = 'jax.set_mesh(jax.make_mesh((4, 2), ("a", "b")))\n'
    settings = "bool(jax.config.jax_enable_x64), jax.sharding.get_mesh().axis_names"
    try:
        session.run(f"jax.config.update('jax_enable_x64', True)\n{mesh}{count}{SOLVED['halo']}")
        assert course.histogram.check(session), course.histogram.last
        assert course.halo.check(session), course.halo.last
        assert session.run(settings).value == (True, ("a", "b"))
        session.run("jax.config.update('jax_enable_x64', False)\n_ = jax.set_mesh(None)")
        session.run(answer("jax.config.update('jax_enable_x64', True)\n    return x"))
        exercise.check(session)
        assert session.run(settings).value == (False, ())
    finally:
        session.run("jax.config.update('jax_enable_x64', False)\n_ = jax.set_mesh(None)")


def test_each_failed_try_gives_one_more_hint(session: Session, exercise: Exercise) -> None:
    session.run(answer("return x + 1"))
    assert exercise.check(session).hint == exercise.hints[0]
    assert not exercise.passed
    assert str(exercise.hint()).startswith(exercise.hints[0])
    assert "1 more hint" in str(exercise.hint())
    assert exercise.check(session).hint == exercise.hints[1]
    assert exercise.hints[1] in str(exercise.hint())


def test_what_is_not_defined_is_asked_for(session: Session, exercise: Exercise) -> None:
    verdict = exercise.check(session)
    assert verdict.said == "Define `my_all_gather` in a `%%spmd` cell first"
    assert "def my_all_gather(x, axis):" in verdict.hint
    assert exercise.tries == 0
    session.run(f"if process_index == 2:\n    {GATHER.replace(chr(10), chr(10) + '    ')}")
    assert exercise.check(session).said.startswith("Processes 0-1,3 do not have `my_all_gather`")


@pytest.mark.parametrize(
    ("body", "said", "known"),
    [
        ("return 1 / 0", "Processes 0-3 raised ZeroDivisionError: division by zero", ""),
        ("return jax.lax.all_gather(x, 'j', tiled=True)", "Processes 0-3 raised", "axis"),
        ("if process_index == 2: raise ValueError('no')\n    return jnp.tile(x, (8, 1))",
         "Process 2 raised ValueError: no", ""),
        ("if process_index == 2: return jnp.tile(x, (8, 1))\n    "
         "return jax.lax.all_gather(x, axis, tiled=True)",
         "The processes diverged: process 2 differs from the others", "diverged"),
        ("raise BaseException('mine')", "Processes 0-3 raised BaseException: mine", ""),
        ("return float(x[0, 0])", "Processes 0-3 raised ConcretizationTypeError", "tracer"),
        ("return x", "On processes 0-3, the answer has another shape", ""),
        ("return (x, x)", "On processes 0-3, the answer has another structure", ""),
        ("pass", "On processes 0-3, the answer has another structure", ""),
        ("return np.zeros((16, 2), np.float32)", "the answer has other values", ""),
        ("return jnp.tile(x, (8, 1)) * jnp.nan", "the answer has other values", ""),
        ("return jnp.tile(x, (8, 1)).astype(jnp.bfloat16)", "the answer has another dtype", ""),
        ("return jax.lax.all_gather(x, axis, tiled=True)",
         "The values are right, but the program has an all-gather at cell", ""),
    ],
)  # fmt: skip
def test_a_wrong_answer_raises_nothing(
    body: str, said: str, known: str, session: Session, exercise: Exercise
) -> None:
    session.run(answer(body))
    verdict = exercise.check(session)
    assert not verdict
    assert said in verdict.said
    assert verdict.known == known
    assert "process_check" not in str(verdict)
    assert session.state == "ready"
    assert_usable(session)


def test_an_error_names_the_check_and_the_student_s_line(
    session: Session, exercise: Exercise
) -> None:
    session.run(answer("print('here')\n    return 1 / 0"))
    text = str(exercise.check(session))
    assert "----> 1 the check of all_gather" in text
    assert "----> 3     return 1 / 0" in text
    assert "[0-3] here" in text
    assert "shard_map" not in text


OWN = Exercise(
    name="mine",
    task="Make an array.",
    start="my_array = ...",
    setup="",
    call="my_array",
    want=np.zeros((8, 2), np.float32),
    sharding='NamedSharding(jax.make_mesh((8,), ("i",)), P("i"))',
    wrong=(Wrong("layout", "Split the rows.", uses="sharding"),),
)

MESH = 'NamedSharding(jax.make_mesh((8,), ("i",)), {})'


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("my_array = np.zeros((8, 2), np.float32)", "laid out as numpy.ndarray"),
        ("my_array = jnp.zeros((8, 2))", "is an array of each process alone"),
        (f"my_array = jnp.zeros((8, 2), device={MESH.format('P()')})", "laid out as P()"),
        ("my_array = print", "is not an array"),
        (f"my_array = jnp.zeros((8, 2), device={MESH.format('P()')})\nmy_array.delete()",
         "deleted or donated"),
        ("def keep(x):\n    global my_array\n    my_array = x\n    return x\n"
         "_ = jax.jit(keep)(jnp.zeros((8, 2)))", "a tracer"),
        (f"my_array = jnp.zeros((8, 2), device={MESH.format('P(chr(105))')})", "right on 4"),
    ],
)  # fmt: skip
def test_a_teacher_s_own_exercise_checks_the_layout(code: str, said: str, session: Session) -> None:
    session.run(code)
    verdict = OWN.check(session)
    assert said in str(verdict)
    assert verdict.passed == (said == "right on 4")
    assert_usable(session)


@pytest.mark.parametrize(
    "wrong",
    [{"setup": "shape = size"}, {"setup": "shape ="}, {"call": "my_arrays"}, {"sharding": "Q()"}],
)
def test_a_teacher_s_mistake_is_not_the_student_s(wrong: Any, session: Session) -> None:
    session.run("my_array = np.zeros((8, 2), np.float32)")
    given = replace(OWN, **wrong)
    with pytest.raises(UsageError, match="The exercise mine is wrong, not the answer: "):
        given.check(session)
    assert given.tries == 0
    assert_usable(session)


def test_a_student_s_name_error_is_the_student_s(session: Session, exercise: Exercise) -> None:
    session.run(answer("return y"))
    assert "NameError: name 'y' is not defined" in exercise.check(session).said


def test_a_cell_on_the_processes_says_where_to_check(session: Session) -> None:
    result = session.run(
        "from jaxnb import course\ncourse.all_gather.check()", raise_on_error=False
    )
    assert "Check in a plain cell" in result.errors[0].message


def test_what_is_gathered_is_not_equal_for_jax(session: Session) -> None:
    session.run(
        "def my_norm(gradient, axis):\n"
        "    return jnp.linalg.norm(jax.lax.all_gather(gradient, axis, tiled=True))"
    )
    verdict = course.global_norm.check(session)
    assert verdict.known == "unequal"
    assert "check_vma" not in str(verdict)


def test_memory_may_have_a_budget(session: Session) -> None:
    frugal = Exercise(
        name="frugal",
        task="Sum the squares of 1000 numbers.",
        start="def my_sum(x):\n    ...",
        setup="x = jnp.ones(1000)\nf = jax.jit(my_sum)\n",
        call="f(x)",
        own=True,
        want=np.float32(1000),
        memory=10_000,
        wrong=(Wrong("table", "No table of products is needed.", uses="memory"),),
    )
    session.run("def my_sum(x):\n    return jnp.sum(x * x)")
    assert frugal.check(session)
    session.run("def my_sum(x):\n    return jnp.trace(jnp.sort(jnp.outer(x, x)))")
    verdict = frugal.check(session)
    assert verdict.known == "table", verdict
    assert "B of temporary memory, and 10000 B are enough" in verdict.said


def test_the_page_for_teachers_shows_an_exercise_that_works(session: Session) -> None:
    page = (SOLUTIONS.parents[2] / "docs" / "teaching.md").read_text()
    (code,) = [
        each for each in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "want=" in each
    ]
    names: dict[str, Any] = {}
    exec(code, names)
    for body, known in (("pmean(x.mean(), axis)", ""), ("psum(x.mean(), axis)", "sum")):
        session.run(f"def my_mean(x, axis):\n    return jax.lax.{body}")
        verdict = names["column_mean"].check(session)
        assert (verdict.passed, verdict.known) == (not known, known), verdict
    session.run("def my_mean(x, axis):\n    return x.mean()")
    assert names["column_mean"].check(session).known == "own"


def test_a_group_of_another_size_is_refused(session: Session) -> None:
    small = Exercise(name="small", task="Do.", start="a = 1", setup="", call="a", want=1, devices=4)
    with pytest.raises(UsageError, match="is for 4 devices, and the group has 8 of 4"):
        small.check(session)
    small.devices, small.processes = 8, 2
    with pytest.raises(UsageError, match=r"8 devices of 2 processes.*-n 2 --devices-per-process 4"):
        small.check(session)


def test_without_a_notebook_the_session_is_asked_for(exercise: Exercise) -> None:
    with pytest.raises(UsageError, match=r"pass the session: `check\(session\)`"):
        exercise.check()


@pytest.mark.thorough
def test_a_death_before_is_not_the_answer_s(
    make_session: Callable[..., Session], exercise: Exercise
) -> None:
    session = make_session(4, devices_per_process=2)
    os.kill(session.processes[1].pid, signal.SIGKILL)
    until(lambda: session.state == "broken", "the death is known")
    with pytest.raises(ProcessDiedError, match="%spmd_recover"):
        exercise.check(session)
    assert exercise.tries == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("body", "said", "kept"),
    [
        ("while True: pass", "The answer had not ended after 2 s", "still"),
        (
            "return jax.lax.while_loop(lambda c: c.sum() > -1, lambda c: c + 1, x)",
            "The answer had not ended after 2 s",
            "still",
        ),
        (
            "import os\n    if process_index == 1: os._exit(3)\n    return x",
            "Process 1 of 4 (pid ",
            "still",
        ),
    ],
)
def test_the_group_goes_on_after_an_answer_that_does_not_end(
    body: str, said: str, kept: str, make_session: Callable[..., Session], exercise: Exercise
) -> None:
    session = make_session(4, devices_per_process=2)
    session.run(f"kept = {kept!r}\n{answer(body)}")
    if "2 s" in said:
        exercise.timeout = 2.0
    try:
        verdict = exercise.check(session)
    finally:
        exercise.timeout = 30.0
    assert verdict.said.startswith(said)
    assert session.run("kept").value == kept
    session.run(SOLVED["all_gather"])
    assert exercise.check(session)
