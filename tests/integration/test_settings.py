"""Settings that differ by process are told, and no two different programs meet for them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jaxnb.cells.result import CellResult
from jaxnb.errors import CellError
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS

SET_UP = """
import contextlib
mesh = jax.make_mesh((8,), ("d",))
rows = NamedSharding(mesh, P("d"))
x = jax.make_array_from_callback((8,), rows, lambda i: np.arange(8, dtype=np.float32)[i])
total = jax.jit(lambda x: (x * np.arange(8.0)).sum())
dot = jax.jit(lambda x: jnp.einsum("i,i->", x, x, out_sharding=NamedSharding(mesh, P())))
float(total(x))
"""

ON_TWO = "if process_index == 2: jax.config.update({!r}, {!r})\n"
ON_ALL = "jax.config.update({!r}, {!r})\n"


X64 = "jax_enable_x64"

DIFFERENT = [
    (X64, True, False, "float(total(x))"),
    (X64, True, False, "y = total(x)"),  # the others have left the cell by the time it is noticed
]


def told(result: CellResult) -> list[str]:
    return [each.message for each in result.pitfalls if each.kind == "settings"]


def refused(run: Callable[[], object]) -> CellResult:
    with pytest.raises(CellError, match="Settings differ between processes") as caught:
        run()
    return caught.value.result


@pytest.fixture
def group(session: Session) -> Session:
    session.run(SET_UP)
    return session


@pytest.mark.parametrize(("name", "other", "usual", "call"), DIFFERENT)
def test_a_program_that_a_setting_has_changed_on_one_process_meets_no_other(
    group: Session, name: str, other: object, usual: object, call: str
) -> None:
    pids = [p.pid for p in group.processes]
    result = refused(lambda: group.run(ON_TWO.format(name, other) + call, timeout=PATIENT_SECONDS))
    said = f"`{name}` is {usual} on processes 0-1,3, {other} on process 2"
    mend = f"jax.config.update({name!r}, {usual!r})"
    for _ in range(2):
        assert {(said in e.message, mend in e.message) for e in result.errors.values()} == {
            (True, True)
        }
        assert (len(result.errors), result.cause) == (4, "program")
        result = refused(lambda: group.run(call, timeout=PATIENT_SECONDS))
    result = group.run(ON_ALL.format(name, usual) + call)
    assert not result.pitfalls
    assert result.divergence is None
    assert group.run("float(total(x))").value == 140.0  # x was kept
    assert [p.pid for p in group.processes] == pids


def test_what_all_change_alike_passes(group: Session) -> None:
    result = group.run(ON_ALL.format(X64, True) + "y = total(x); y.dtype.name, float(y)")
    assert result.value == ("float64", 140.0)
    assert (result.divergence, result.pitfalls) == (None, ())
    result = group.run("with jax.enable_x64(False): y = total(x)\ny.dtype.name, float(total(x))")
    assert result.value == ("float32", 140.0)
    assert (result.divergence, result.pitfalls) == (None, ())
    assert not group.run(ON_ALL.format(X64, False) + "float(total(x))").pitfalls


def test_what_jax_sets_within_a_shard_map_is_no_setting(group: Session) -> None:
    """A line that one process alone computes in an eager body is told as that."""
    code = (
        "def f(x):\n    y = x * 2\n    if process_index == 2: y = y + 1\n    return y\n"
        "jax.shard_map(f, mesh=mesh, in_specs=P('d'), out_specs=P('d'))(x)"
    )
    with pytest.raises(CellError, match="at line 3") as caught:
        group.run(code)
    assert "check_vma" not in str(caught.value)
