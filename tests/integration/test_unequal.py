"""Replicas that are not equal are told of once, and nothing computes with them."""

from __future__ import annotations

import pytest

from jaxnb.cells.result import Agreement, CellResult
from jaxnb.errors import CellError
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


def test_it_is_refused_again_until_it_is_made_anew(session: Session) -> None:
    session.run(SETUP)
    refused(session, "w = make(process_index)\nloss = loss_of(x, w)")
    refused(session, "float(loss_of(x, w))")
    refused(session, "try:\n    loss_of(x, w)\nexcept Exception:\n    loss_of(x, w)")
    # What was computed before is what it was.
    result = session.run("float(loss)")
    assert (result.agreement, result.value) == (Agreement.SAME, 128.0)
    assert session.run("w = make(3)\nfloat(loss_of(x, w))").value == 192.0
