"""``%spmd_steps`` on real processes: the lines within a ``shard_map``, and their values."""

from __future__ import annotations

import re
from typing import Any

import pytest

from jaxnb.debugging.steps import Steps
from jaxnb.errors import PitfallWarning, UsageError
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS

SET_UP = """
mesh = jax.make_mesh((4, 2), ("a", "b"))
both = P(("a", "b"))
x = jax.device_put(np.arange(8.0), NamedSharding(mesh, both))
def mapped(f, spec=both, **more):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=spec, **more))
def body(x):
    s = jax.lax.psum(x, "a")
    for i in range(2):
        s = s + i
    return s
def prints(x):
    print(x)
    jax.debug.print("is {}", x)
    y = x @ x[:0]
    return y
"""


@pytest.fixture
def group(session: Session) -> Session:
    session.run(SET_UP)
    return session


def stepped(group: Session, code: str, **settings: Any) -> Steps:
    result = group.run(code, steps=True, timeout=PATIENT_SECONDS, **settings)
    assert result.steps is not None
    return result.steps


def values(steps: Steps) -> list[tuple[int, str, str, list[str]]]:
    """Line, name, text, and the blocks in the order of the mesh's devices."""
    return [
        (step.at.line, value.name, value.text, [b for _, b in sorted((value.blocks or {}).items())])
        for step in steps.steps
        for value in step.values
    ]


def test_each_line_with_its_values(group: Session) -> None:
    steps = stepped(group, "y = jax.jit(lambda: 3)()\nmapped(body)(x)")
    summed = [["[12]", "[16]"] * 4, ["[13]", "[17]"] * 4]
    assert values(steps) == [
        (7, "x", "", [f"[{i}]" for i in range(8)]),
        (8, "s", "", summed[0]),
        (9, "i", "0", []),
        (10, "s", "", summed[0]),
        (9, "i", "1", []),
        (10, "s", "", summed[1]),
        (11, "returned", "", summed[1]),
    ]
    assert {step.at.function for step in steps.steps} == {"body"}
    assert [steps.owners[d] for d in (0, 1, 2048, 6145)] == [0, 0, 1, 3]


def test_a_body_that_prints_and_raises(group: Session) -> None:
    result = group.run("mapped(prints)(x)", steps=True, raise_on_error=False)
    assert {error.type_name for error in result.errors.values()} == {"TypeError"}
    printed = result.per_process[3].stdout
    assert "On cpu:6145 at mesh coordinates (a, b,) = (3, 1): [7.]\n" in printed
    assert printed.endswith("is [6.]\nis [7.]\n")
    assert result.steps is not None
    *_, last = result.steps.steps
    assert (last.at.line, last.raised) == (15, "TypeError")
    caught = "def f(x):\n try: y = x @ x[:0]\n except TypeError: y = x\n return y\nmapped(f)(x)"
    assert [each.raised for each in stepped(group, caught).steps] == ["", "TypeError", "", ""]
    # Nothing of it is left: not in JAX, nor in Python.
    assert group.run("import sys\nsys.gettrace(), jax.config.jax_disable_jit").value == (
        None,
        False,
    )
    eager = "jax.shard_map(prints, mesh=mesh, in_specs=both, out_specs=both)(x)"
    with pytest.warns(PitfallWarning, match="%spmd_steps"):
        again = group.run(eager, raise_on_error=False)
    assert [pitfall.kind for pitfall in again.pitfalls] == ["eager-shard-map"]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("k = jax.random.key(1); y = x", ("k", "", ["[0  1]"] * 8)),
        ("e = x[:0]; y = x", ("e", "", ["no elements"] * 8)),
        ("h = x.astype(jnp.bfloat16) / 3; y = x", ("h", "", [f"[{v}]" for v in (
            "0", "0.334", "0.668", "1", "1.336", "1.664", "2", "2.328")])),
        ("w = jnp.zeros((3000, 3000)); y = x", ("w", "34.3 MiB per device, not read", [])),
        ("y = jax.vmap(lambda v: v + 1)(x)", ("v", "all of `vmap`", [f"[{i}]" for i in range(8)])),
        ("y = jax.lax.while_loop(lambda c: c[0] < 9, lambda c: c * 2 + 1, x)",
         ("c", "JAX compiles this part as a whole: its values are not known", [])),
        ("y = jax.grad(lambda v: (v * v).sum())(x)", ("y", "", [f"[{2 * i}]" for i in range(8)])),
        ("d = {'n': [x, 2]}; y = x", ("d['n'][1]", "2", [])),
    ],
)  # fmt: skip
def test_odd_values(group: Session, lines: str, expected: tuple[str, str, list[str]]) -> None:
    steps = stepped(group, f"def f(x):\n    {lines}\n    return y\nmapped(f)(x)")
    assert expected in [each[1:] for each in values(steps)]
    assert steps.apart == ""


@pytest.mark.thorough
def test_shard_map_within_shard_map_and_without_check(group: Session) -> None:
    code = """
def inner(x):
    z = x * 2
    return z
def outer(x):
    y = jax.shard_map(inner, in_specs=P("b"), out_specs=P("b"), axis_names={"b"})(x)
    return y
mapped(outer, P("a"), axis_names={"a"})(x)
"""
    found = values(stepped(group, code))
    assert (3, "z", "", [f"[{2 * i}]" for i in range(8)]) in found
    assert [name for _, name, *_ in found] == ["x", "x", "z", "returned", "y", "returned"]
    unchecked = values(stepped(group, "mapped(body, check_vma=False)(x)"))
    assert unchecked == values(stepped(group, "mapped(body)(x)"))


@pytest.mark.thorough
def test_processes_that_run_different_lines_are_named(group: Session) -> None:
    code = """
def f(x):
    y = x * 2
    if process_index == 2:
        y = y + 1
    return y
mapped(f)(x)
"""
    result = group.run(code, steps=True, raise_on_error=False, timeout=PATIENT_SECONDS)
    assert result.errors
    assert result.steps is not None
    assert re.search(r"process 2 (ran|raised \w+ at) cell \[\d+\] line 5", result.steps.apart)
    assert str(result.steps.apart) in " ".join(str(result.steps).split())
    assert values(stepped(group, "mapped(body)(x)"))


def test_nothing_to_step_through(group: Session) -> None:
    assert "No line within `shard_map`" in str(stepped(group, "1 + 1"))
    assert group.run("1 + 1").steps is None
    with pytest.raises(UsageError, match="exclude each other"):
        group.run("1", steps=True, time=True)
