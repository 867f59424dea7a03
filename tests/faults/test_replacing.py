"""A process dies, ``recover()`` replaces it: who has which variables then, and what is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator

import psutil
import pytest

import jaxnb
from jaxnb.errors import ArrayGoneError, CellError, ProcessDiedError
from jaxnb.recovery.messages import Recovered
from jaxnb.recovery.recovering import recovered_card
from jaxnb.session import Session
from support.faults import assert_kept, cleared, missing, without_replica
from support.fixtures import assert_usable, until

PROCESSES = 3

SETUP = """
import collections, dataclasses, functools, math, typing
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


thorough = pytest.mark.thorough


@pytest.fixture(scope="module", params=[1, 2], ids=["D1", "D2"])
def shared_group(request: pytest.FixtureRequest) -> Iterator[Session]:
    with jaxnb.start(PROCESSES, devices_per_process=request.param, platform="cpu") as session:
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


# With the other number of devices too, in `make test-all`.
first_on_one_device = pytest.mark.parametrize(
    "shared_group", [1, pytest.param(2, marks=thorough)], ids=["D1", "D2"], indirect=True
)
first_on_two_devices = pytest.mark.parametrize(
    "shared_group", [pytest.param(1, marks=thorough), 2], ids=["D1", "D2"], indirect=True
)


def assert_recovered(session: Session, recovered: Recovered, which: int) -> None:
    """Fails unless a group with the variables of ``SETUP`` has what it can have."""
    print(f"recovered in {recovered.seconds:.2f} s")
    assert recovered.died == (which,)
    assert without_replica(recovered) == {"x"}
    assert missing(recovered, which) == {"mine": "differs by process"}
    assert {"w", "state", "f", "mesh", "n", "make", "math"} <= set(recovered.given)
    assert session.state == "ready"
    assert [p.state for p in session.processes] == ["ready"] * PROCESSES
    assert_kept(session, AFTER)
    others = [i for i in range(PROCESSES) if i != which]
    session.run("assert mine.tolist() == [process_index] * 3", ranks=others)
    with pytest.raises(
        CellError, match=rf"`mine` is not on process {which} since it is new: differs"
    ):
        session.run("mine + 1")
    with pytest.raises(CellError, match=r"ArrayGoneError.*: `x` .* nobody else had a replica"):
        session.run("f(x)")
    session.run("x = make((2 * n,), P('d'))\nassert float(f(x)) == n * (2 * n - 1)")
    assert_usable(session)


@pytest.mark.parametrize(
    ("shared_group", "which"),
    [
        (1, 0),
        pytest.param(2, PROCESSES - 1, marks=thorough),
        pytest.param(1, PROCESSES - 1, marks=thorough),
        pytest.param(2, 0, marks=thorough),
    ],
    indirect=["shared_group"],
)
def test_idle(group: Session, which: int) -> None:
    old = group.processes[which]
    kill(group, which)
    recovered = group.recover()
    new = group.processes[which]
    assert new.pid != old.pid
    assert new.engine_id != old.engine_id
    assert new.process_index == which
    assert_recovered(group, recovered, which)


# The table of faults has other ends, and other things that the others may be doing.
CASES = {
    "aborts, the others wait": ("os.abort()", "killed by SIGABRT", "float(f(x))"),
    "is killed, the others compile": (
        "os.kill(os.getpid(), signal.SIGKILL)",
        "killed by SIGKILL",
        "float(jax.jit(lambda a: (a * 3).sum())(x))",
    ),
}


@thorough
@pytest.mark.parametrize("shared_group", [1], ids=["D1"], indirect=True)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("which", [0, PROCESSES - 1])
def test_in_a_cell(group: Session, case: str, which: int) -> None:
    end, words, others = CASES[case]
    with pytest.raises(ProcessDiedError, match=words) as caught:
        group.run(f"import os, signal\nif process_index == {which}:\n    {end}\n{others}")
    assert "%spmd_recover" in str(caught.value)
    assert caught.value.process_index == which
    recovered = group.recover()
    assert_recovered(group, recovered, which)


@pytest.mark.thorough
@first_on_two_devices
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


@first_on_one_device
def test_all(group: Session) -> None:
    kill(group, 0, 1, 2)
    recovered = group.recover()
    assert recovered.died == (0, 1, 2)
    assert (recovered.kept, recovered.given) == ((), ())
    assert "No process was left" in str(recovered)
    assert_usable(group)


@pytest.mark.thorough
@thorough
def test_again_and_again(group: Session) -> None:
    """Also one that is a replacement itself, and a helper's pids stay as many."""
    children = len(psutil.Process().children(recursive=True))
    for which in (1, 1, 0, 2):
        kill(group, which)
        assert group.recover().died == (which,)
        assert_kept(group, AFTER)
    assert len(psutil.Process().children(recursive=True)) == children
    assert not group.interrupt()
    group.restart()
    assert_usable(group)


VALUES = """
import collections, dataclasses, functools, typing
from jax.experimental import checkify
from jax.sharding import SingleDeviceSharding
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
    "local": make((4,), P("l"), on=own),
    "uncommitted": jnp.arange(4.0),
    "key": jax.random.key(0),
    "keys": jax.random.split(jax.random.key(1, impl="rbg"), 4),
    "global keys": jax.jit(lambda: jax.random.split(jax.random.key(3), 2),
                           out_shardings=NamedSharding(mesh, P()))(),
}
for dtype in ("bfloat16", "int4", "float8_e4m3fn", "bool", "complex64", "uint32"):
    arrays[dtype] = make((6,), P("q"), dtype=jnp.dtype(dtype), on=square)
lost = {"x": make((6,), P("p"), on=square), "both": make((2 * n,), P("d"))}
lost["ref"] = jax.new_ref(make((2 * n,), P("d")))

Pair = collections.namedtuple("Pair", "left right")

class Stats(typing.NamedTuple):
    mu: typing.Any
    count: int = 0

@functools.partial(jax.tree_util.register_dataclass, data_fields=["w"], meta_fields=["name"])
@dataclasses.dataclass
class Layer:
    w: typing.Any
    name: str = "layer"
    def apply(self, a):
        return a * self.w.sum()

class Late:
    pass

jax.tree_util.register_pytree_node(Late, lambda late: ((), None), lambda aux, parts: Late())

def scaled(a, by=2.0):
    return a * by * offset

def closure(a):
    def inner(b=3):
        return a.sum() * b
    return inner

offset = 3.0
shared = [1]
holders = {"a": shared, "b": shared}
pair, stats, layer, late = Pair(1, shared), Stats(arrays["scalar"]), Layer(w), Late()
opt = {"stats": stats, "lost": lost["both"]}
big = np.arange(1 << 16)
turned = np.arange(12.0).reshape(3, 4).T[::2]
inner, part = closure(w), functools.partial(scaled, by=5.0)
jitted = jax.jit(scaled, out_shardings=NamedSharding(mesh, P()))
mapped = jax.jit(jax.shard_map(lambda a: jax.lax.psum(a.sum(), "d"),
                               mesh=mesh, in_specs=P("d"), out_specs=P()))
gradient = jax.jit(jax.grad(lambda a: scaled(a).sum()))

def checked(a):
    checkify.check(jnp.all(a >= 0), "negative")  # JAX numbers them, on each process by itself
    return a.sum()

total_of = lambda a: float(jax.jit(checkify.checkify(checked))(a)[1])
total_of(w)
rank, device = process_index, jax.local_devices()[0]
generator = (i for i in range(3))
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
def test_every_kind_of_value(make_session: Callable[..., Session]) -> None:
    group = make_session(PROCESSES, devices_per_process=2)
    group.run(SETUP)
    group.run(VALUES)
    before = group.run("{k: facts_of(v) for k, v in arrays.items()}").per_process[1].value
    kill(group, 1)
    recovered = group.recover()
    assert without_replica(recovered) == {"x", "lost['x']", "lost['both']", "lost['ref']"}
    absent = missing(recovered, 1)
    assert "cannot give it: cannot pickle 'generator' object" in absent.pop("generator")
    assert absent == dict.fromkeys(("mine", "rank", "device"), "differs by process")
    assert "generator" in {lost.path for lost in recovered.lost}
    after = group.run("{k: facts_of(v) for k, v in arrays.items()}").per_process[1].value
    assert after == before
    group.run(
        "assert holders['a'] is holders['b'] is shared is pair.right and type(pair) is Pair\n"
        "assert type(stats) is Stats and stats.mu is arrays['scalar'] and opt['stats'] is stats\n"
        "assert type(layer) is Layer and layer.w is w and jax.tree.leaves(layer) == [w]\n"
        "assert big.flags.writeable and big.sum() == sum(range(1 << 16))\n"
        "assert turned.tolist() == [[0, 4, 8], [2, 6, 10]]\n"
        "assert float(inner()) == 30 and scaled(1.0) == 6 and part(1.0) == 15\n"
        "offset = 1.0\nassert scaled(1.0) == 2.0\n"
        "assert np.asarray(jitted(w).addressable_data(0)).tolist() == [0, 2, 4, 6, 8]\n"
        "assert float(mapped(make((2 * n,), P('d')))) == n * (2 * n - 1)\n"
        "assert np.asarray(gradient(w).addressable_data(0)).tolist() == [2] * 5\n"
        "assert float(jax.jit(lambda l, a: l.apply(a))(layer, w).sum()) == 100\n"
        "assert jax.config.jax_enable_x64 and jax.sharding.get_mesh() == mesh\n"
        "assert own.devices.tolist() == jax.local_devices() and total_of(w) == 10\n"
        "assert type(lost['x']).__name__ == 'LostArray' is not None"
    )
    assert group.run("np.random.rand(), int(jax.random.bits(arrays['key']))").value is not None
    with pytest.raises(CellError) as caught:
        group.run("lost['both'] + 1")
    assert [e.type_name for e in caught.value.result.errors.values()] == ["ArrayGoneError"] * 3
    with pytest.raises(ArrayGoneError, match=r"`x` .* nobody else had a replica"):
        group.pull("x").sum()
    sizes = group.run("sum(part.size for _, part in lost['both'].shards)")
    assert [sizes.per_process[i].value for i in range(3)] == [4, 0, 4]
    text = recovered_card(group.group, recovered).text
    for part in (
        "process 1 replaced",
        "`lost['ref']`",
        "differs by process",
        "identical on the others",
    ):
        assert part in text
    assert_usable(group)


@pytest.mark.thorough
@first_on_two_devices
def test_replicas_that_differ_are_not_given_and_figures_neither(group: Session) -> None:
    """The processes were not at the same step when one died: which of the values is right?"""
    group.run(
        "class Params(typing.NamedTuple):\n    a: typing.Any\n"
        "value = np.full(4, process_index, np.float32)\n"
        "params = Params(jax.make_array_from_callback((4,), NamedSharding(mesh, P()),\n"
        "                                             lambda i: value[i]))\n"
        "from matplotlib.figure import Figure\nfigure = Figure()\naxes = figure.subplots()\n"
        "both = [figure, process_index]"
    )
    kill(group, 1)
    recovered = group.recover()
    for name in ("figure", "axes"):
        assert missing(recovered, 1)[name] == "a figure is drawn by each process"
    assert missing(recovered, 1)["both"] == "differs by process"
    assert missing(recovered, 1)["params.a"] == "its replicas differ by process"
    with pytest.raises(CellError, match=r"ArrayGoneError.*`params.a` .*its replicas differ"):
        group.run("params.a + 1")


@pytest.mark.thorough
@first_on_one_device
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
