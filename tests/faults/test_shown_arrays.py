"""A process dies after its arrays were shown, pulled, held by the notebook or held weakly."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np
import pytest

from jaxnb.errors import ArrayGoneError, CellError, ProcessDiedError
from jaxnb.session import Session
from support.faults import without_replica
from support.fixtures import assert_usable

SETUP = """
import os, signal, weakref
mesh = jax.make_mesh((jax.device_count(),), ("d",))
spread = NamedSharding(mesh, P("d"))
def made(n):
    return jax.make_array_from_callback((n,), spread, lambda i: np.arange(n, dtype=np.float32)[i])
x, big = made(16), made(1 << 20)
keys = jax.jit(lambda: jax.random.split(jax.random.key(3), 16), out_shardings=spread)()
same, mine = jnp.arange(3.0), np.full(3, process_index)
"""
WEAKLY = """
ref, proxy = weakref.ref(x), weakref.proxy(x)
called = weakref.ref(x, print)
weak = weakref.WeakValueDictionary(x=x, big=big)
"""
DIE = "if process_index == {}:\n    os.kill(os.getpid(), signal.SIGKILL)"
KEPT = """
assert same.tolist() == [0, 1, 2] and mine.tolist() == [process_index] * 3
assert ref() is weak["x"] is Out[2] is x and weak["big"] is big
"""


def test_the_others_keep_their_variables_and_what_is_lost_is_named(
    make_session: Callable[..., Session],
) -> None:
    session = make_session(4, devices_per_process=2)
    session.run(SETUP, cell=1)
    shown = [session.run("x", cell=2), session.run("keys", cell=3), session.run("made(8) * 2")]
    session.run(WEAKLY)
    read, later = np.asarray(session.pull("x")), session.pull("big")
    value = session.run("big").value
    with pytest.raises(ProcessDiedError):
        session.run(DIE.format(2))

    recovered = session.recover()
    assert {"x", "big"} <= without_replica(recovered)
    assert {"same", "mesh", "made"} <= set(recovered.given)
    session.run(KEPT, ranks=[0, 1, 3])
    for name in ("x", "big", "keys"):
        with pytest.raises(CellError) as caught:
            session.run(f"{name} + 1")
        errors = caught.value.result.errors
        assert [each.type_name for each in errors.values()] == ["ArrayGoneError"] * 4
        assert f"`{name}`" in errors[0].message
        assert "nobody else had a replica" in errors[0].message
    with pytest.raises(ArrayGoneError, match=r"have lost `x`: .*process 2 has died.*Make it again"):
        session.pull("x")
    assert read.tolist() == list(range(16))
    for array in (later, value):
        with pytest.raises(ArrayGoneError, match="replaced or dropped"):
            np.asarray(array)
    for result in shown:
        with contextlib.suppress(ArrayGoneError):  # unless its data were here already
            np.asarray(result.value)
    assert_usable(session)

    session.run("x = made(16)\nx")
    with pytest.raises(ProcessDiedError):
        session.run(DIE.format(0))
    again = session.recover()
    assert "x" in without_replica(again)
    assert not {"big", "keys"} & set(again.given)  # they were lost before, and still are
    assert session.run("same.tolist()").value == [0, 1, 2]
    assert_usable(session)
