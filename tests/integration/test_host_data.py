"""Processes pass other numbers or NumPy arrays to one dispatch: both are named."""

from __future__ import annotations

import pytest

from jaxnb.errors import CellError
from jaxnb.session import Session

SETUP = """
mesh = jax.make_mesh((jax.device_count(),), ("d",))
n = jax.device_count()
a = jax.make_array_from_callback(
    (2 * n,), NamedSharding(mesh, P("d")), lambda i: np.arange(2.0 * n, dtype=np.float32)[i]
)
added = jax.jit(lambda x, y: (x + y).sum())
float(added(a, 1.0)), float(added(a, np.ones(2 * n, np.float32))), float(added(a, jnp.float32(1)))
"""

KINDS = {
    "a number": (
        "added(a, 0.1 if process_index else 0.2);",
        r"Argument leaf 1: process 0 passed 0\.2, processes 1-3 passed 0\.1\.",
    ),
    "a NumPy array": (
        "added(a, np.arange(2 * n, dtype=np.float32) + (process_index == 2));",
        r"Argument leaf 1: processes 0-1,3 / process 2 passed float32\[16\] with other data\.",
    ),
    "an array of one number": (
        "added(a, jnp.float32(process_index % 2));",
        r"Argument leaf 1: processes 0,2 passed 0\.0, processes 1,3 passed 1\.0\.",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_named(session: Session, kind: str) -> None:
    code, says = KINDS[kind]
    session.run(SETUP)
    with pytest.raises(CellError, match=says) as caught:
        session.run(code)
    assert {e.type_name for e in caught.value.result.errors.values()} == {"DivergenceError"}
