"""What is told of a dispatch that was stopped, however long; and of a cell, however it was left."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jaxnb
from jaxnb.errors import CellError
from jaxnb.session import Session
from jaxnb_fixtures import PATIENT_SECONDS

SETUP = """
import signal, time
mesh = jax.make_mesh((3,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def make(value):
    host = np.full(6, value, np.float32)
    return jax.make_array_from_callback(
        host.shape, NamedSharding(mesh, P("d")), lambda index: host[index])
x = make(1)
total = jax.jit(jnp.sum)
float(total(x))
"""


@pytest.fixture(scope="module")
def group() -> Iterator[Session]:
    with jaxnb.start(3, platform="cpu") as session:
        session.run(SETUP)
        yield session


def divergence_of(session: Session, code: str) -> str:
    """Runs a cell that process 0 leaves, or that parts; returns what another one was told."""
    with pytest.raises(CellError) as caught:
        session.run(code, timeout=PATIENT_SECONDS)
    error = caught.value.result.per_process[2].error
    assert error is not None
    assert error.type_name == "DivergenceError"
    assert session.run("float(total(x))").value == 6.0
    return error.message


def test_computations_with_very_long_names_that_differ_are_told(group: Session) -> None:
    said = divergence_of(
        group,
        "def f(a): return a + process_index\nf.__name__ = 'm' * 40_000\njax.jit(f)(x);",
    )
    assert "0 / 1 / 2" in said
    assert f"jit({'m' * 100}" in said
    assert len(said) < 2000


def test_computations_of_very_many_arrays_that_differ_are_told(group: Session) -> None:
    code = (
        "many = {i: make(i) for i in range(600)}\n"
        "step = jax.jit(lambda p: jax.tree.map(lambda a: a * (2 + process_index), p))\n"
        "step(many);"
    )
    assert "596 more" in divergence_of(group, code)


@pytest.mark.parametrize("seconds", [0.01, 0.3], ids=["in its lines", "after its lines"])
def test_who_waits_for_one_that_a_handler_took_out_of_the_cell_is_told(
    group: Session, seconds: float
) -> None:
    """Of code that runs after the cell's own, too, which a handler may strike as well."""
    group.run(
        "from jaxnb.engine import ambient\n"
        "class Late(Exception): pass\n"
        "def late(*_): raise Late\n"
        "kept, handler = ambient.note, signal.signal(signal.SIGALRM, late)\n"
        "def note():\n    time.sleep(1)\n    return kept()\n"
        "ambient.note = note"
    )
    code = (
        f"if process_index == 0:\n    signal.setitimer(signal.ITIMER_REAL, {seconds})\n"
        f"    if {seconds} < 0.1: time.sleep(1000)\n"
        "else:\n    ambient.note = kept\n    total(x)"
    )
    try:
        assert "process 0" in divergence_of(group, code)
    finally:
        group.run("ambient.note = kept; signal.signal(signal.SIGALRM, handler);")
