"""The first NaN of a cell is found, and no process waits for it."""

from __future__ import annotations

from typing import Any

import pytest

from jaxnb.errors import CellError, NanWarning, UsageError
from jaxnb.nans import FirstNan
from jaxnb.session import Session

SET_UP = """
mesh = jax.make_mesh((8,), ("d",))
rows, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
x = jax.make_array_from_callback((16,), rows, lambda i: np.arange(16, dtype=np.float32)[i])
root = jax.jit(lambda x: jnp.sqrt(10.5 - x))
step = jax.jit(lambda x: x + 1, donate_argnums=0)
total = jax.jit(lambda x: x.sum())
float(total(root(x * 0))), step(x * 1), step(x * 1)
"""


@pytest.fixture(params=["record", "strict"])
def group(session: Session, request: pytest.FixtureRequest) -> Session:
    session.run(SET_UP)
    session.mode = request.param  # type: ignore[attr-defined]
    return session


def first(group: Session, code: str, **settings: Any) -> FirstNan:
    settings = {"check_nans": True, "check": group.mode} | settings  # type: ignore[attr-defined]
    with pytest.warns(NanWarning) as caught:
        result = group.run(code, timeout=60, **settings)
    assert result.first_nan is not None
    assert str(caught[0].message) == str(result.first_nan)
    assert result.divergence is None
    return result.first_nan


def test_where_it_is_made(group: Session) -> None:
    found = first(group, "y = x + 1\ny = y - 1\nr = root(y)\nfloat(total(r))")
    assert found.processes == (2, 3)
    assert found.line == 3
    assert {each.number for each in found.found.values()} == {3}
    assert [each.outputs[0].index for each in found.found.values()] == [(11,), (12,)]
    assert [each.outputs[0].count for each in found.found.values()] == [1, 4]
    assert set(found.later) == {0, 1}
    text = str(found)
    assert (
        "jit(<lambda>) at line 3 (dispatch 3 over processes 0-3): `r` float32[16] at [11] on "
        in text
    )
    assert "`r` float32[16] at [12] and 3 more on process 3." in text
    assert "that computation made it" in text
    assert "Later also on processes 0-1." in text
    # The next cell looks at nothing, and the group has gone on.
    assert group.run("np.isnan(total(r)), float(total(x))").value == (True, 120.0)
    assert group.run("float(total(x))", check_nans=True).first_nan is None


def test_what_was_there_before(group: Session) -> None:
    group.run("h = np.arange(16, dtype=np.float32); h[5] = np.nan\n"
              "bad = jax.make_array_from_callback((16,), rows, lambda i: h[i])")  # fmt: skip
    found = first(group, "y = bad * 2\nfloat(total(y))")
    assert found.processes == (1,)
    assert found.line == 1
    assert found.found[1].inputs[0].index == (5,)
    assert "it came from host data or from an earlier cell" in str(found)


def test_in_a_loop_whose_arguments_are_donated(group: Session) -> None:
    code = (
        "s = x * 1\nfor i in range(6):\n    if i == 3: s = s * np.float32('nan')\n    s = step(s)"
    )
    found = first(group, code)
    assert found.processes == (0, 1, 2, 3)
    assert found.line == 3
    assert found.found[0].inputs  # the number from the host


def test_what_a_process_computes_alone(group: Session) -> None:
    code = "y = x + 1\nif process_index == 3:\n    a = jnp.log(jnp.float32(-1))\nfloat(total(y))"
    found = first(group, code)
    assert found.processes == (3,)
    assert found.line == 3
    assert found.found[3].number == 0
    assert found.later == {}
    assert "jit(log) at line 3 (of process 3 alone): `a` float32[] on process 3." in str(found)


def test_nothing_is_said_of_healthy_cells(group: Session) -> None:
    code = """
mask = jnp.where(jnp.arange(16) % 2 == 0, x, -jnp.inf)
weights = jax.nn.softmax(mask)
keys = jax.random.split(jax.random.key(0), 4)
noise = jax.random.normal(keys[0], (16,), dtype=jnp.bfloat16)
counts = jnp.arange(8)
ref = jax.new_ref(jnp.zeros(4)); jax.jit(lambda r: r.__setitem__(0, 1.0))(ref)
local = jax.device_put(np.float32("inf"), jax.local_devices()[0])
float(total(weights))
"""
    mode = group.mode  # type: ignore[attr-defined]
    result = group.run(code, check_nans=True, check=mode)
    assert (result.first_nan, result.divergence) == (None, None)
    assert result.value == pytest.approx(1.0)
    found = first(group, code, check_nans="inf")
    assert found.line == 2
    assert "The first Inf of cell" in str(found)


def test_where_dispatches_are_not_recorded(group: Session) -> None:
    assert first(group, "y = x * 1\nr = root(y)", check="off").line == 2


def test_a_cell_that_raises_says_it_too(group: Session) -> None:
    with pytest.warns(NanWarning, match="at line 1"), pytest.raises(CellError) as caught:
        group.run("r = root(x)\n1 / 0", check_nans=True)
    assert caught.value.result.first_nan is not None
    with pytest.raises(UsageError, match="check_nans"):
        group.run("1", check_nans="yes")  # type: ignore[arg-type]
