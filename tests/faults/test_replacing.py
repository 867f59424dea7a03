"""A process dies, ``recover()`` replaces it: who has which variables then, and what is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

import jaxnb
from jaxnb.errors import CellError
from jaxnb.session import Session
from support.faults import assert_kept, cleared, missing, without_replica
from support.fixtures import assert_usable, until

PROCESSES = 3

SETUP = """
import math
from jax.sharding import AxisType, Mesh
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(AxisType.Auto,))

def make(shape, spec, dtype=np.float32, on=mesh):
    whole = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    return jax.make_array_from_callback(
        shape, NamedSharding(on, spec), lambda i: whole[i], dtype=dtype)

x = make((2 * n,), P("d"))
w = make((5,), P())
f = jax.jit(jnp.sum)
mine = jnp.full(3, process_index)
state = {"w": [w], "step": 7}
alias = x
"""

AFTER = """
assert state["w"][0] is w and state["step"] == 7 and mesh is w.sharding.mesh
assert w.sharding.device_set == set(jax.devices())
assert [np.asarray(s.data).tolist() for s in w.addressable_shards] == [
    [0, 1, 2, 3, 4]] * len(jax.local_devices())
assert float(f(w * 2)) == 20
"""


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Session]:
    with jaxnb.start(PROCESSES, devices_per_process=2, platform="cpu") as session:
        yield session


@pytest.fixture
def group(shared_group: Session) -> Session:
    session = cleared(shared_group)
    session.run(SETUP)
    return session


def kill(session: Session, *which: int) -> None:
    """Kills processes, and waits until that is known."""
    for index in which:
        os.kill(session.processes[index].pid, signal.SIGKILL)
    until(lambda: session.state == "broken", "the session was broken")
    until(
        lambda: sum(p.state == "dead" for p in session.processes) == len(which),
        "all deaths were noticed",
    )


@pytest.mark.parametrize("which", [0, pytest.param(PROCESSES - 1, marks=pytest.mark.thorough)])
def test_one_of_three(group: Session, which: int) -> None:
    old = group.processes[which]
    kill(group, which)
    recovered = group.recover()
    new = group.processes[which]
    assert new.pid != old.pid
    assert new.engine_id != old.engine_id
    assert new.process_index == which
    assert recovered.died == (which,)
    assert without_replica(recovered) == {"x"}
    assert {e.processes for e in recovered.lost if e.path == "x"} == {tuple(range(PROCESSES))}
    assert missing(recovered, which) == {"mine": "differs by process"}
    assert {"w", "state", "f", "mesh", "n", "make", "math"} <= set(recovered.given)
    assert "alias" not in recovered.given
    assert group.state == "ready"
    assert [p.state for p in group.processes] == ["ready"] * PROCESSES
    assert_kept(group, AFTER)
    others = [i for i in range(PROCESSES) if i != which]
    group.run("assert mine.tolist() == [process_index] * 3", ranks=others)
    with pytest.raises(
        CellError, match=rf"`mine` is not on process {which}, which is new: differs"
    ):
        group.run("mine + 1")
    with pytest.raises(CellError, match=r"ArrayGoneError.*: `x` .* nobody else had a replica"):
        group.run("f(x)")
    group.run("x = make((2 * n,), P('d'))\nassert float(f(x)) == n * (2 * n - 1)")
    assert_usable(group)


@pytest.mark.thorough
def test_what_had_been_lost_before_is_no_new_loss_of_a_new_process(group: Session) -> None:
    group.run("import threading\nlock = threading.Lock()")
    assert "`lock` (lock) on processes 0-2" in str(group.recover())
    kill(group, 1)
    recovered = group.recover()
    assert "Lost before, and still: `lock`." in str(recovered)
    assert {each.is_old for each in recovered.lost if each.path == "lock"} == {True}
    assert {each.type for each in recovered.lost if each.path == "lock"} == {"lock"}


@pytest.mark.thorough
def test_two_of_three(group: Session) -> None:
    group.run("both = {'w': [w], 'mesh': mesh}; ranked = {'w': w, 'rank': process_index}")
    kill(group, 0, 2)
    recovered = group.recover()
    assert recovered.died == (0, 2)
    # One is left: of what is not spread over processes nobody can say that it is for all, nor of
    # what has such a thing beside an array of all.
    assert {"w", "both", "mesh", "make", "f", "math"} <= set(recovered.given)
    assert set(missing(recovered, 0, 2)) == {"mine", "n", "state", "ranked"}
    assert "only one process" in missing(recovered, 0, 2)["ranked"]
    group.run("n = jax.device_count(); state = {'w': [w], 'step': 7}")
    assert_kept(group, AFTER)
    assert_usable(group)


def test_all(group: Session) -> None:
    kill(group, 0, 1, 2)
    recovered = group.recover()
    assert recovered.died == (0, 1, 2)
    assert (recovered.kept, recovered.given) == ((), ())
    assert "No process was left" in str(recovered)
    assert_usable(group)
