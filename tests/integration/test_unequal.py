"""Replicas that are not equal are told of once, and nothing computes with them."""

from __future__ import annotations

import pytest

from jaxnb.cells.card_cell import unequal_names_card
from jaxnb.cells.card_error import error_card
from jaxnb.cells.result import Agreement, CellResult
from jaxnb.errors import CellError
from jaxnb.lockstep.provenance import SAME_SHAPE
from jaxnb.session import Session

SETUP = """
mesh = jax.make_mesh((jax.device_count(),), ("d",))
sharded, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
def make(value, sharding=whole, size=64):
    host = np.full(size, value, np.float32)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
x = make(1, sharded)
# Each process's own `w` counts for its own part, and the sum is the same everywhere.
loss_of = jax.jit(lambda x, w: (x * w).sum())
loss = loss_of(x, make(2))
"""


def refused(session: Session, code: str) -> tuple[CellError, CellResult]:
    with pytest.raises(CellError) as caught:
        session.run(code)
    result = caught.value.result
    assert (result.cause, [each.name for each in result.unequal]) == ("input", ["`w`"])
    return caught.value, result


def test_an_array_whose_rows_differ_is_told_with_its_shapes_and_the_error_is_short(
    session: Session,
) -> None:
    code = "a = jax.make_array_from_process_local_data(sharded, np.ones(4 + 2 * process_index))"
    session.run(SETUP)
    result = session.run(f"{code}\na.sum()", raise_on_error=False)
    said = " ".join(unequal_names_card(result).text.split())
    assert "a 0 float32[16], made at line 1 by make_array_from_process_local_data 1" in said
    assert said.endswith(SAME_SHAPE)
    error = " ".join(error_card(result).text.split())
    assert "The argument is float32[16] on process 0, float32[24] on process 1" in error
    one = code.replace("2 * process_index", "2 * (process_index == 1)")
    result = session.run(f"{one}\na.sum()", raise_on_error=False)
    error = " ".join(error_card(result).text.split())
    assert error.startswith("DivergenceError: process 1 differs from the others")
    # An error of another cause is shown whole.
    result = session.run(f"{code}\nfloat('x')", raise_on_error=False)
    assert result.unequal_names
    assert "Cell In" in error_card(result).text


def test_arrays_of_other_lines_are_not_taken_for_steps(session: Session) -> None:
    code = "a = make(1)\nb = make(2)\nc = a if process_index else b\nfloat('x')"
    session.run(SETUP)
    result = session.run(code, raise_on_error=False)
    said = " ".join(unequal_names_card(result).text.split())
    assert "bound a name to different arrays on different processes. variable process" in said


def test_it_is_refused_again_until_it_is_made_anew(session: Session) -> None:
    session.run(SETUP)
    refused(session, "w = make(process_index)\nloss = loss_of(x, w)")
    refused(session, "float(loss_of(x, w))")
    refused(session, "try:\n    loss_of(x, w)\nexcept Exception:\n    loss_of(x, w)")
    # What was computed before is what it was.
    result = session.run("float(loss)")
    assert (result.agreement, result.value) == (Agreement.SAME, 128.0)
    assert session.run("w = make(3)\nfloat(loss_of(x, w))").value == 192.0
