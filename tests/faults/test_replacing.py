"""A process dies, ``recover()`` replaces it: who has which variables then, and what is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import pytest

import jaxnb
from jaxnb.errors import ArrayGoneError, CellError, ProcessDiedError
from jaxnb.recovery.recovering import recovered_card
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
    assert missing(recovered, which) == {"mine": "differs by process"}
    assert {"w", "state", "f", "mesh", "n", "make", "math"} <= set(recovered.given)
    assert group.state == "ready"
    assert [p.state for p in group.processes] == ["ready"] * PROCESSES
    assert_kept(group, AFTER)
    others = [i for i in range(PROCESSES) if i != which]
    group.run("assert mine.tolist() == [process_index] * 3", ranks=others)
    with pytest.raises(
        CellError, match=rf"`mine` is not on process {which} since it is new: differs"
    ):
        group.run("mine + 1")
    with pytest.raises(CellError, match=r"ArrayGoneError.*: `x` .* nobody else had a replica"):
        group.run("f(x)")
    group.run("x = make((2 * n,), P('d'))\nassert float(f(x)) == n * (2 * n - 1)")
    assert_usable(group)


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


# What else a process carries over: tests/integration/test_recover.py
VALUES = """
jax.config.update("jax_enable_x64", True)
square = Mesh(np.array(jax.devices()).reshape(3, 2), ("p", "q"))
tall = Mesh(np.array(jax.devices()).reshape(2, 3), ("p", "q"))
own = Mesh(np.array(jax.local_devices()), ("l",))
arrays = {
    "replicated": make((5,), P()),
    "over q": make((6, 4), P("q"), on=square),
    "over tall p": make((4,), P("p"), on=tall),
    "empty": make((0, 3), P("q"), on=square),
    "scalar": make((), P()),
    "double": make((3,), P(), dtype=np.float64),
    "bfloat16": make((6,), P("q"), dtype=jnp.bfloat16, on=square),
    "int4": make((6,), P("q"), dtype=jnp.int4, on=square),
    "local": make((4,), P("l"), on=own),
    "uncommitted": jnp.arange(4.0),
    "keys": jax.random.split(jax.random.key(1, impl="rbg"), 4),
    "global keys": jax.jit(lambda: jax.random.split(jax.random.key(3), 2),
                           out_shardings=NamedSharding(mesh, P()))(),
}
lost = {"x": make((6,), P("p"), on=square), "both": make((2 * n,), P("d"))}
lost["ref"] = jax.new_ref(make((2 * n,), P("d")))
jitted = jax.jit(lambda a: a * 2.0, out_shardings=NamedSharding(mesh, P()))
rank, device = process_index, jax.local_devices()[0]
generator = (i for i in range(3))
value = np.full(4, process_index, np.float32)
differs = jax.make_array_from_callback((4,), NamedSharding(mesh, P()), lambda i: value[i])
np.random.seed(4)
jax.set_mesh(mesh)

def facts_of(v):
    is_key = jnp.issubdtype(v.dtype, jax.dtypes.prng_key)
    return (str(v.dtype), v.shape, v.committed, [
        (jax.local_devices().index(t.device), t.replica_id if v.is_fully_addressable else 0,
         np.asarray(jax.random.key_data(t.data) if is_key else t.data).tobytes())
        for t in v.addressable_shards])
"""


@pytest.mark.thorough
def test_every_kind_of_array(make_session: Callable[..., Session]) -> None:
    group = make_session(PROCESSES, devices_per_process=2)
    group.run(SETUP)
    group.run(VALUES)
    before = group.run("{k: facts_of(v) for k, v in arrays.items()}").per_process[1].value
    kill(group, 1)
    recovered = group.recover()
    assert without_replica(recovered) == {"x", "lost['x']", "lost['both']", "lost['ref']"}
    absent = missing(recovered, 1)
    assert "cannot give it: cannot pickle 'generator' object" in absent.pop("generator")
    assert absent.pop("differs") == "its replicas differ by process"
    assert absent == dict.fromkeys(("mine", "rank", "device", "value"), "differs by process")
    assert "generator" in {lost.path for lost in recovered.lost}
    after = group.run("{k: facts_of(v) for k, v in arrays.items()}").per_process[1].value
    assert after == before
    group.run(
        "assert np.asarray(jitted(w).addressable_data(0)).tolist() == [0, 2, 4, 6, 8]\n"
        "assert jax.config.jax_enable_x64 and jax.sharding.get_mesh() == mesh\n"
        "assert own.devices.tolist() == jax.local_devices()\n"
        "assert type(lost['x']).__name__ == 'LostArray' is not None"
    )
    assert group.run("np.random.rand(), int(jax.random.bits(arrays['keys'][0]))").value is not None
    with pytest.raises(CellError) as caught:
        group.run("lost['both'] + 1")
    assert [e.type_name for e in caught.value.result.errors.values()] == ["ArrayGoneError"] * 3
    with pytest.raises(CellError, match=r"ArrayGoneError.*`differs` .*its replicas differ"):
        group.run("differs + 1")
    with pytest.raises(ArrayGoneError, match=r"`x` .* nobody else had a replica"):
        group.pull("x").sum()
    sizes = group.run("sum(part.size for _, part in lost['both'].shards)")
    assert [sizes.per_process[i].value for i in range(3)] == [4, 0, 4]
    text = recovered_card(group.group, recovered).text
    for part in ("process 1 replaced", "`lost['ref']`", "differs by process", "identical on the"):
        assert part in text
    assert_usable(group)


@pytest.mark.thorough
def test_what_a_new_process_cannot_import_is_told(group: Session, tmp_path: object) -> None:
    """All the rest is given."""
    group.run(
        "import sys, types\n"
        "sys.modules['made_here'] = module = types.ModuleType('made_here')\n"
        "import made_here\n"
        f"sys.path.append({str(tmp_path)!r})"
    )
    kill(group, 0)
    recovered = group.recover()
    assert {lost.path for lost in recovered.lost} >= {"mine", "module"}
    assert "No module named 'made_here'" in str(recovered)
    group.run(AFTER + f"assert {str(tmp_path)!r} in __import__('sys').path")


@pytest.mark.timing
def test_gloo_aborts(group: Session) -> None:
    """Two sizes of one collective, unchecked, end a process inside gloo: the death is told."""
    group.run("y = make((64 * n,), P('d')); z = make((n,), P('d'))")
    with pytest.raises(ProcessDiedError, match="EnforceNotMet"):
        group.run(
            "g = jax.jit(lambda a: a, out_shardings=NamedSharding(mesh, P()))\n"
            "g(y if process_index == 1 else z).block_until_ready()",
            check="off",
            timeout=60,
        )
    dead = {p.process_index for p in group.processes if p.state == "dead"}
    assert dead
    recovered = group.recover()
    assert set(recovered.died) == dead
    assert_kept(group, AFTER)
    others = [i for i in range(PROCESSES) if i not in dead]
    group.run("assert mine.tolist() == [process_index] * 3", ranks=others)
    assert_usable(group)
