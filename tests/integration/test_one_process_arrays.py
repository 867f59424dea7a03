"""Arrays on the devices of one process: one array of the group, or one that each has."""

from __future__ import annotations

import numpy as np
import pytest

from jaxnb.arrays.gathered import GatheredArray
from jaxnb.cells.result import Agreement
from jaxnb.session import Session

MAKE = """
from jax.sharding import Mesh
first = Mesh(np.array(jax.devices()[:2]), ("z",))
own = Mesh(np.array(jax.local_devices()), ("z",))
def make(mesh, spec, start=0):
    data = np.arange(8, dtype=np.float32) + start
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback((8,), sharding, lambda i: data[i], dtype=np.float32)
split, whole = make(first, P("z")), make(first, P())
equal, different = make(own, P("z")), make(own, P("z"), process_index)
tree = {"split": split, "equal": equal}
"""
EIGHT = np.arange(8, dtype=np.float32)


@pytest.mark.parametrize("name", ["split", "whole"])
def test_an_array_of_one_process_is_one_array(session: Session, name: str) -> None:
    session.run(MAKE)
    for lazy in (True, False):
        pulled = session.pull(name, lazy=lazy)
        assert isinstance(pulled, GatheredArray)
        np.testing.assert_array_equal(pulled, EIGHT)
    result = session.run(name)
    assert result.agreement is (Agreement.SHARDED if name == "split" else Agreement.SAME)
    np.testing.assert_array_equal(result.value, EIGHT)
