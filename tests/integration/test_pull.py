"""What comes to the notebook when a value of four real processes is pulled."""

from __future__ import annotations

import re
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxnb.arrays import card_transfer, pulling
from jaxnb.arrays.gathered import GatheredArray
from jaxnb.arrays.lost import PerProcess, Record
from jaxnb.arrays.moving import Move
from jaxnb.arrays.pulling import (
    NotMovedWarning,
    OriginsDifferWarning,
    ReplicasDifferWarning,
)
from jaxnb.cells.result import Agreement
from jaxnb.errors import (
    ArrayGoneError,
    JaxnbError,
    SessionClosedError,
    UsageError,
)
from jaxnb.session import Session
from support.arrays import (
    ALL,
    DTYPES,
    MESH,
    SOME,
    assert_same,
    dtype_of,
    layouts,
    open_transfers,
    whole,
)
from support.fixtures import PATIENT_SECONDS, until


def forget(array: GatheredArray) -> None:
    """Makes the data of a small array be there until used, as a large one's are."""
    array._data = None


@contextmanager
def spying(session: Session, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Sequence[Move]]]:
    """Collects what is moved, data that come with descriptions apart."""
    moved: list[Sequence[Move]] = []
    mover = session._puller._mover
    with monkeypatch.context() as patch:
        read = mover.read

        def spy(channel: Any, moves: Sequence[Move], label: str) -> None:
            moved.append(moves)
            read(channel, moves, label)

        patch.setattr(mover, "read", spy)
        yield moved


def moved_bytes(moved: list[Sequence[Move]]) -> int:
    return sum(move.exposure.nbytes for moves in moved for move in moves)


# ---------------------------------------------------------------------- kinds of layout

LAYOUTS: dict[str, tuple[str, np.ndarray]] = {
    "sharded": ('make((16, 10), "data", "model")', whole((16, 10))),
    "by both axes": ('make((16, 10), ("data", "model"))', whole((16, 10))),
    "partly replicated": ('make((16, 10), "data")', whole((16, 10))),
    "partly over processes": ('make((16, 10), None, "model")', whole((16, 10))),
    "replicated": ("make((16, 10))", whole((16, 10))),
    "of no dimensions": ("make(())", whole(())),
    "empty, sharded": ('make((0, 6), "data", "model")', whole((0, 6))),
    "devices in another order": (
        'make((16, 10), "data", "model",'
        ' on=Mesh(mesh.devices[::-1, ::-1].T.reshape(4, 2), ("data", "model")))',
        whole((16, 10)),
    ),
    "explicit": ('make((16, 10), "data", "model", on=mesh_of("Explicit"))', whole((16, 10))),
    "on one device": ("jnp.arange(12.0).reshape(3, 4)", whole((3, 4), start=0)),
    "process-local, sharded": (
        'make((4, 3), "a", on=Mesh(np.array(jax.local_devices()), ("a",)))', whole((4, 3))
    ),
    "host memory, pinned": ('make((16, 10), "data", kind="pinned_host")', whole((16, 10))),
    "column-major": (
        "jax.device_put(np.arange(12.0).reshape(3, 4), jax.experimental.layout.Format("
        "jax.experimental.layout.Layout((1, 0)), SingleDeviceSharding(jax.local_devices()[0])))",
        whole((3, 4), start=0),
    ),
    "some processes, sharded": ('make_some((8, 6), "a", "b")', whole((8, 6), start=0)),
    "some processes, replicated": ("make_some((3,))", whole((3,), start=0)),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(session: Session, name: str) -> None:
    code, expected = LAYOUTS[name]
    session.run(MESH + SOME + f"import jax.experimental.layout\nx = {code};")
    found = session.pull("x")
    assert isinstance(found, GatheredArray)
    assert found.is_here  # small: it came along
    assert_same(found, expected)
    forget(found)
    assert_same(found, expected)
    for shard in found.shards:  # every device's own, read through the other way
        assert_same(shard.data, expected[shard.index])


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(session: Session, name: str) -> None:
    session.run(MESH + f'x = make((8, 3), "data", dtype=jnp.dtype("{name}"))\n'
                "local = jnp.asarray(np.asarray(x.addressable_data(0)));")  # fmt: skip
    expected = whole((8, 3), dtype_of(name))
    found = session.pull("x")
    assert found.dtype == dtype_of(name)
    assert_same(found, expected)
    assert_same(session.pull("x[1:7:2, ::-1]"), expected[1:7:2, ::-1])
    assert_same(found.shards[3].data, expected[found.shards[3].index])
    for i in ALL:
        assert_same(session.pull("local", ranks=[i]), expected[2 * i : 2 * i + 2])


KEYS = {
    "several": "jax.random.split(jax.random.key(3, impl=impl), (3, 2))",
    "sharded": "spread(P('data'))",
}


@pytest.mark.parametrize("layout", KEYS)
def test_keys_come_as_their_words(session: Session, layout: str) -> None:
    session.run(
        MESH + "impl = 'threefry2x32'\n"
        "make_keys = lambda: jax.random.split(jax.random.key(3, impl=impl), (4, 2))\n"
        "def spread(spec):\n"
        "    return jax.jit(make_keys, out_shardings=NamedSharding(mesh, spec))()\n"
        f"x = {KEYS[layout]}"
    )
    alone = KEYS[layout] if "spread" not in KEYS[layout] else "make_keys()"
    expected = session.run(f"np.asarray(jax.random.key_data({alone}))").value
    found = session.pull("x")
    assert found.info.dtype.startswith("key<")
    assert_same(found, expected)
    if found.ndim == 3:
        assert_same(found[1:, 0], expected[1:, 0])
        assert_same(session.pull("x[2, ::-1]"), expected[2, ::-1])


UNREDUCED = (
    "on = mesh_of('Explicit')\n"
    "a, b = make((4, 4), None, 'data', on=on), make((4, 6), 'data', 'model', on=on)\n"
    "with jax.set_mesh(on):\n"
    "    x = jax.jit(lambda a, b: jnp.einsum('ij,jk->ik', a, b,\n"
    "        out_sharding=P(None, 'model', unreduced={'data'})))(a, b)\n"
    "    total = jax.reshard(x, P(None, 'model'))\n"
)


def test_unreduced_arrays_have_no_elements_yet(session: Session) -> None:
    session.run(MESH + UNREDUCED)
    found = session.pull("x")
    assert found.shape == (4, 6)
    with pytest.raises(
        ArrayGoneError, match=r"`x` is unreduced over mesh axes data.*`jax.reshard`"
    ):
        np.asarray(found)
    with pytest.raises(ArrayGoneError, match="unreduced"):
        session.pull("x[0]", lazy=False)
    assert_same(session.pull("total"), whole((4, 4)) @ whole((4, 6)))


# ---------------------------------------------------------------------- containers


def test_trees(session: Session, classes: ModuleType) -> None:
    session.run(MESH + textwrap.dedent("""
        x, local = make((8, 6), "data", "model"), jnp.arange(3)
        state = {
            "params": [classes.Layer(x, local), classes.Layer(make((2,)), name="out")],
            "opt": (classes.Moments(jnp.int32(7), x, make((8, 6), "data", start=5)),
                    classes.Empty(), None),
            "meta": {"np": np.arange(4, dtype=np.int16), "n": 3, "text": "ż", 5: 2.5, None: True},
            "again": x,
        }
    """))  # fmt: skip
    state = session.pull("state")
    first, second = state["params"]
    assert (type(first), first.name, second.name) == (classes.Layer, "dense", "out")
    assert_same(first.w, whole((8, 6)))
    assert_same(first.b, np.arange(3, dtype=np.int32))
    assert_same(second.w, whole((2,)))
    moments, empty, nothing = state["opt"]
    assert (type(moments), empty, nothing) == (classes.Moments, classes.Empty(), None)
    assert_same(moments.count, np.array(7, np.int32))
    assert_same(moments.nu, whole((8, 6), start=5))
    assert moments.mu is first.w is state["again"]  # as on the processes
    assert_same(state["meta"].pop("np"), np.arange(4, dtype=np.int16))
    assert state["meta"] == {"n": 3, "text": "ż", 5: 2.5, None: True}
    assert_same(session.pull("state['opt'][0].mu[2:4, 0]"), whole((8, 6))[2:4, 0])


def test_large_trees_keep_their_arrays_there(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run(MESH + "tree = {'a': make((1024, 300), 'data'), 'b': [make((16,)),"
                " np.arange(50_000)]};")  # fmt: skip
    with spying(session, monkeypatch) as moved:
        tree = session.pull("tree")
        assert moved_bytes(moved) == 50_000 * 8  # NumPy is no array of JAX
        assert_same(tree["b"][0], whole((16,)))
        assert moved_bytes(moved) == 50_000 * 8 + 16 * 4
    assert not tree["a"].is_here
    assert tree["b"][1].flags.writeable
    with spying(session, monkeypatch) as moved:
        tree = session.pull("tree", lazy=False)
        assert len(moved) == 2  # all arrays in one go
    assert tree["a"].is_here
    assert open_transfers(session) == 0


def test_classes_of_a_cell_come_as_records(session: Session) -> None:
    session.run(MESH + textwrap.dedent("""
        import dataclasses, typing
        @dataclasses.dataclass
        class Model:
            w: typing.Any
            inner: typing.Any
        class State(typing.NamedTuple):
            step: typing.Any
            b: typing.Any
        model = Model(make((8,), "data"), [State(jnp.int32(3), make((4,)))])
    """))  # fmt: skip
    model = session.pull("model")
    assert isinstance(model, Record)
    assert list(model) == ["w", "inner"]
    assert_same(model.w, whole((8,)))
    assert int(model.inner[0].step) == 3
    assert_same(session.pull("model.inner[0].b[1:3]"), whole((4,))[1:3])
    with pytest.raises(AttributeError, match=r"Model has no part 'v'; it has w, inner"):
        model.v  # noqa: B018


def test_names_follow_attributes_and_subscripts(session: Session) -> None:
    session.run("import types\nn = types.SimpleNamespace(a={'k': [1, {2: 'two', (3, 4): 't'}]},"
                " b=np.arange(12).reshape(3, 4))")  # fmt: skip
    assert session.pull("n.a['k'][1][2]") == "two"
    assert session.pull("n.a['k'][-1][3, 4]") == "t"
    assert session.pull("n.a['k'][:1]") == [1]
    np.testing.assert_array_equal(
        session.pull("n.b[1:, ::2]"), np.arange(12).reshape(3, 4)[1:, ::2]
    )
    assert session.pull(" n.b[-1, -1] ") == 11


@pytest.mark.parametrize(
    "code",
    [
        "np.arange(1_000_000)[::2]",
        "np.asfortranarray(np.arange(200_000.0).reshape(400, 500))",
        "np.ma.masked_array(np.arange(100_000.0), np.arange(100_000) % 3 == 0)",
        "np.zeros(20_000, [('a', 'i4'), ('b', 'f8')])",
        "np.array([1, 'a', None], object)",
        "np.arange(8.0).astype(jnp.bfloat16)",
        "[np.arange(100_000)] * 2",
    ],
)
def test_numpy_stays_numpy(session: Session, code: str) -> None:
    session.run(f"x = {code}\nkind, data = type(x), np.asarray(x).tobytes()")
    found = session.pull("x")
    expected = eval(code, {"np": np, "jnp": SimpleNamespace(bfloat16=dtype_of("bfloat16"))})
    assert type(found) is type(expected)
    if isinstance(expected, list):
        assert found[0] is found[1]
    np.testing.assert_array_equal(found, expected)
    assert np.asarray(found).dtype == np.asarray(expected).dtype


def test_the_order_of_elements_in_memory_is_no_difference(session: Session) -> None:
    code = (
        "x = np.arange(200_000.0).reshape(400, 500); y = {'a': x[:2, :3]}\n"
        "if process_index == 2: x, y = np.asfortranarray(x), {'a': np.asfortranarray(y['a'])}\n"
    )
    for value in ("x", "y"):
        assert session.run(code + value).agreement is Agreement.SAME
    np.testing.assert_array_equal(session.pull("x"), np.arange(200_000.0).reshape(400, 500))
    np.testing.assert_array_equal(session.pull("y")["a"], [[0, 1, 2], [500, 501, 502]])
    other = "if process_index == 2: x[0, 0] = 1\nx"
    assert session.run(code + other).agreement is Agreement.DIFFERENT


def test_pulls_of_all_kinds_leave_nothing_open(session: Session) -> None:
    session.run(MESH + "n, text, far = 3, 'x' * 5, make((8, 6), 'data')\nbig = np.zeros(1 << 18)")
    for name in ("n", "text", "far", "big", "n"):
        session.pull(name)
    with pytest.raises(JaxnbError):
        session.pull("missing")
    assert open_transfers(session) == 0


def test_arrays_of_jax_inside_arrays_of_numpy(session: Session) -> None:
    session.run(MESH + "x = np.empty(2, object)\nx[0] = make((8, 6), 'data')")
    assert_same(session.pull("x")[0], whole((8, 6)))


# ---------------------------------------------------------------------- values of cells


def test_large_values_of_cells_are_fetched(session: Session) -> None:
    result = session.run(MESH + "[np.arange(1 << 19), 'x', {'far': make((8, 6), 'data')}]")
    numbers, text, tree = result.value
    assert_same(numbers, np.arange(1 << 19))
    assert text == "x"
    assert_same(tree["far"], whole((8, 6)))
    mine = result.per_process[2].value
    assert_same(mine[0], np.arange(1 << 19))
    with pytest.raises(JaxnbError, match="another value"):
        np.asarray(mine[2]["far"])
    assert_same(mine[2]["far"][4:6], whole((8, 6))[4:6])  # what process 2 has


# ---------------------------------------------------------------------- no collective

COUNT = """
from jax._src import pjit
from jax._src.interpreters import pxla
pjit._get_fastpath_data = lambda *args, **kwargs: None
jax.clear_caches()
calls = []
_call = pxla.ExecuteReplicated.__call__
def counted(self, *args):
    calls.append(self.name)
    return _call(self, *args)
pxla.ExecuteReplicated.__call__ = counted
"""


def test_nothing_is_computed_and_no_process_waits_for_another(
    make_session: Callable[..., Session],
) -> None:
    session = make_session(4, devices_per_process=2)
    session.run(MESH + COUNT + "x = make((1024, 1024), 'data', 'model')\n"
                "k = jax.jit(lambda: jax.random.split(jax.random.key(0), 8),"
                " out_shardings=NamedSharding(mesh, P('data')))()\n"
                "f = jax.jit(lambda x: x.sum(), out_shardings=NamedSharding(mesh, P()))\n"
                "f(x).block_until_ready();")  # fmt: skip
    assert session.run("len(calls) > 0").value is True
    # Process 0 is in a collective that the others have not come to, and may never.
    session.run("pending = f(x);", ranks=[0], check="off")  # else the processes are replaced
    session.run("steps = 0\ncalls.clear()")
    session.run("steps += 5", ranks=[3])
    assert_same(session.pull("x"), whole((1024, 1024)))
    assert_same(session.pull("x[17, :5]"), whole((1024, 1024))[17, :5])
    assert session.pull("k").shape == (8, 2)
    assert_same(session.pull("x").shards[5].data, whole((1024, 1024))[512:768, 512:])
    assert session.pull("steps") == {0: 0, 1: 0, 2: 0, 3: 5}
    assert session.pull("calls") == []
    session.run(
        "pending = f(x);", ranks=[1, 2, 3], check="off"
    )  # it was pending, and is complete now
    np.testing.assert_allclose(session.pull("pending"), np.arange(1, 2**20 + 1).sum(), rtol=1e-5)


def test_processes_at_other_steps_give_parts_of_both(session: Session) -> None:
    session.run(MESH + "x = make((8, 6), 'data')")
    session.run("x = make((8, 6), 'data', start=101)", ranks=[2, 3])
    expected = np.concatenate([whole((8, 6))[:4], whole((8, 6), start=101)[4:]])
    told = r"shards of different arrays.*processes 0-1 made at .*processes 2-3 made at "
    with pytest.warns(OriginsDifferWarning, match=told):
        assert_same(session.pull("x"), expected)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("debug_nans", True), ("transfer_guard", "disallow"), ("disable_jit", True)],
)
def test_what_the_user_forbids_jax_is_not_needed(
    session: Session, setting: str, value: Any
) -> None:
    session.run(MESH + "x, keys = make((8, 6), 'data') * jnp.nan, jax.random.key(3)\n"
                f"before = jax.config.jax_{setting}\n"
                f"jax.config.update('jax_{setting}', {value!r})")  # fmt: skip
    try:
        assert np.isnan(session.pull("x")).all()
        assert session.pull("keys").shape == (2,)
        session.push(y=np.full((8, 6), np.nan), n=3, mesh="mesh")
        assert np.isnan(session.pull("y[0]")).all()
    finally:
        session.run(f"jax.config.update('jax_{setting}', before)")


# ---------------------------------------------------------------------- what is moved


@pytest.mark.parametrize("spec", ["'data', 'model'", "'data'", "None, 'model'", ""])
def test_each_element_travels_once(
    session: Session, monkeypatch: pytest.MonkeyPatch, spec: str
) -> None:
    session.run(MESH + f"x = make((1024, 512), {spec});")
    array = session.pull("x")
    with spying(session, monkeypatch) as moved:
        assert_same(array, whole((1024, 512)))
        assert moved_bytes(moved) == 1024 * 512 * 4
        np.asarray(array)
        array.mean()
        array[3:, 1]
    assert len(moved) == 1
    givers = {s.device_id for s in array.info.shards if s.replica_id == 0}
    assert len(moved[0]) == len(givers)


SLICES = {
    "x[..., :3]": 1024 * 3,
    "x[0]": 512,
    "x[-1, -1]": 1,
    "x[10:20, ::-100]": 10 * 6,
    "x[1000:0:-300]": 4 * 512,
    "x[5:5]": 0,
    "x[2:900][100:103, 1]": 3,
    "x[10_000:]": 0,
}


@pytest.mark.parametrize("text", SLICES)
def test_slices_move_what_they_take(
    session: Session, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    session.run(MESH + "x = make((1024, 512), 'data', 'model');")
    expected = eval(text, {"x": whole((1024, 512))})
    with monkeypatch.context() as patch:
        came: list[Any] = []
        small = pulling.small_data
        patch.setattr(pulling, "small_data", lambda packed: came.append(small(packed)) or came[-1])
        with spying(session, monkeypatch) as moved:
            assert_same(session.pull(text, lazy=False), expected)  # with the answer
        assert not moved_bytes(moved)
        assert sum(memoryview(each).nbytes for each in came[0].values()) == SLICES[text] * 4
        patch.setattr(pulling, "EAGER_BYTES", 0)
        with spying(session, monkeypatch) as moved:
            assert_same(session.pull(text, lazy=False), expected)
        assert moved_bytes(moved) == SLICES[text] * 4
    array = session.pull("x")
    with spying(session, monkeypatch) as moved:
        found = eval(text.replace("x", "array", 1), {"array": array})
        assert not array.is_here
    assert_same(found, expected)
    if "][" not in text:
        assert moved_bytes(moved) == SLICES[text] * 4


def test_indices_out_of_range(session: Session) -> None:
    session.run(MESH + "x = make((8, 6), 'data', 'model');")
    message = r"`x\[8\]`: index 8 is out of bounds for axis 0 with size 8; the array has shape"
    with pytest.raises(UsageError, match=message):
        session.pull("x[8]")
    with pytest.raises(UsageError, match="too many indices"):
        session.pull("x[0, 0, 0]")


# ---------------------------------------------------------------------- replicas

REPLICAS = (
    "def replicas(spec, start):\n"
    "    return jax.make_array_from_single_device_arrays((4, 3), NamedSharding(mesh, spec),\n"
    "        [jax.device_put(np.full((4, 3) if spec == P() else (1, 3), float(start)), d)\n"
    "         for d in jax.local_devices()])\n"
)


def test_replicas_that_differ(session: Session) -> None:
    session.run(MESH + REPLICAS + "x = replicas(P(), process_index // 2)")
    with pytest.warns(ReplicasDifferWarning, match=(
        r"The replicas of `x` differ in 1 part, the first \[0:4, 0:3\]: "
        r"processes 0-1 ≠ processes 2-3"
    )) as caught:  # fmt: skip
        array = session.pull("x")
    assert [w.filename for w in caught] == [__file__]
    assert_same(array, np.zeros((4, 3), np.float32))
    assert_same(array.shards[-1].data, np.ones((4, 3), np.float32))


def test_replicas_of_one_process_that_differ(session: Session) -> None:
    session.run(MESH + "x = jax.make_array_from_single_device_arrays((2,), NamedSharding(Mesh("
                "np.array(jax.local_devices()), ('a',)), P()), [jax.device_put(np.full(2, 9.0 * i"
                " * (process_index == 2)), d)"
                " for i, d in enumerate(jax.local_devices())])")  # fmt: skip
    with pytest.warns(ReplicasDifferWarning, match=r"\[0:2\]: device 4096 ≠ device 4097\. JAX"):
        array = session.pull("x")
    assert_same(array.shards[1].data, np.full(2, 9, np.float32))


# ---------------------------------------------------------------------- lifetimes

LARGE = MESH + "x = make((1024, 512), 'data', 'model');"


def test_an_array_that_was_replaced_is_still_what_it_was(session: Session) -> None:
    session.run(LARGE)
    array, other = session.pull("x"), session.pull("x")
    session.run("old, x = x, x + 1;")
    assert_same(array, whole((1024, 512)))
    session.run("del old")
    assert_same(array, whole((1024, 512)))
    with pytest.raises(ArrayGoneError, match=(
        r"`x` was replaced or dropped since on process.*`spmd.pull\('x'\)` has what is there"
    )):  # fmt: skip
        other[0]
    session.run("del x")


@pytest.mark.parametrize(
    "code", ["x.delete()", "x = jax.jit(lambda x: x + 1, donate_argnums=0)(x);"]
)
def test_an_array_that_was_deleted(session: Session, code: str) -> None:
    session.run(LARGE + "\nkeep = x")
    array, other = session.pull("x"), session.pull("x")
    np.asarray(array)
    session.run(code)
    with pytest.raises(ArrayGoneError, match=r"`x` was deleted since, or donated to a computation"):
        np.asarray(other)
    assert_same(array, whole((1024, 512)))
    keep = session.pull("keep")
    assert repr(keep).startswith("<GatheredArray")
    with pytest.raises(ArrayGoneError, match="deleted"):
        np.asarray(keep)


def test_an_array_that_was_deleted_before(session: Session) -> None:
    session.run(LARGE + "\nx.delete()")
    array = session.pull("x")
    assert repr(array).endswith("deleted before it was pulled>")
    with pytest.raises(ArrayGoneError, match="`x` was already deleted, or donated"):
        np.asarray(array)


HIST = """
class Hist:
    def __init__(self, array):
        import numpy as np
        self.array, self.total = array, float(np.asarray(array).sum())
    def __reduce__(self):
        return Hist, (self.array,)
"""


@pytest.mark.parametrize("shape", [(8, 6), (1024, 512)])
def test_what_is_unpickled_uses_its_arrays(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]
) -> None:
    name = f"hist_{shape[0]}"
    (tmp_path / f"{name}.py").write_text(HIST)
    monkeypatch.syspath_prepend(tmp_path)
    session.run(MESH + f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport {name}\n"
                f"h = object.__new__({name}.Hist)\nh.array = make({shape}, 'data')\n"
                "sys.path.pop(0);")  # fmt: skip
    found: list[Any] = []

    def pull() -> None:
        found.append(session.pull("h"))
        found.append(session.run("[np.zeros(1 << 19), h]").value[1])

    thread = threading.Thread(target=pull, daemon=True)
    thread.start()
    thread.join(PATIENT_SECONDS)
    assert [each.total for each in found] == [float(whole(shape).sum())] * 2


def test_who_waits_for_a_pull_says_so(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    with session._reach.channel():
        thread = threading.Thread(target=session.pull, args=["process_index"])
        thread.start()
        until(lambda: "waits for a pull or push to end" in capsys.readouterr().err)
        with pytest.raises(UsageError, match="would wait for that to end"):
            session.run("1")
    thread.join()


def test_arrays_that_attributes_make_anew(session: Session) -> None:
    session.run(MESH + "class Model:\n    w = make((8,), 'data')\n"
                "    @property\n    def twice(self): return self.w * 2\nm = Model()")  # fmt: skip
    assert_same(session.pull("m.twice"), whole((8,)) * 2)
    assert_same(session.pull("m.twice[2:4]"), whole((8,))[2:4] * 2)


@pytest.mark.thorough
def test_a_group_that_ended(make_session: Callable[..., Session]) -> None:
    session = make_session(2)
    session.run("mesh = jax.make_mesh((2,), ('x',))\n"
                "x = jax.make_array_from_callback((1024, 512), NamedSharding(mesh, P('x')),\n"
                "    lambda index: np.ones((512, 512), np.float32));")  # fmt: skip
    here, there = session.pull("x", lazy=False), session.pull("x")
    cell, large = session.run("x").value, session.run("np.arange(1 << 18)")
    session.restart()
    with pytest.raises(ArrayGoneError, match=r"value of cell .* the group was restarted since"):
        large.value  # noqa: B018
    for array in (there, cell):
        with pytest.raises(ArrayGoneError, match="the group was restarted since"):
            np.asarray(array)
    assert here.sum() == 1024 * 512
    session.run("y = jnp.ones((1024, 512));")
    later = session.pull("y")
    session.close()
    with pytest.raises(SessionClosedError):
        np.asarray(later)
    with pytest.raises(SessionClosedError):
        session.pull("y")
    assert here.sum() == 1024 * 512
    assert "1024, 512" in repr(later)


# ---------------------------------------------------------------------- by process


def test_values_that_differ(session: Session) -> None:
    session.run(MESH + "r = process_index\nlocal = jnp.arange(r + 1)\ns = 'same'\n"
                "mixed = {'x': make((8, 6), 'data'), 'r': r}\nn = np.float32(r // 2)")  # fmt: skip
    assert session.pull("r") == PerProcess({i: i for i in ALL})
    assert isinstance(session.pull("n"), PerProcess)
    assert session.pull("s") == "same"
    assert session.pull("r", ranks=[2]) == 2
    assert session.pull("r", ranks=[3, 1]) == {1: 1, 3: 3}
    local = session.pull("local")
    assert [local[i].shape for i in ALL] == [(1,), (2,), (3,), (4,)]
    for i in ALL:
        assert_same(local[i], np.arange(i + 1, dtype=np.int32))
        assert_same(local[i].shards[0].data, np.arange(i + 1, dtype=np.int32))
    mixed = session.pull("mixed")
    assert mixed[1]["r"] == 1
    assert_same(mixed[1]["x"][2:4], whole((8, 6))[2:4])  # its own part
    with pytest.raises(JaxnbError, match="Pull the array by its own name"):
        np.asarray(mixed[1]["x"])
    assert_same(session.pull("mixed['x']"), whole((8, 6)))


def test_part_of_a_global_array(session: Session) -> None:
    session.run(MESH + "x = make((8, 6), 'data')\ny = make((8, 6));")
    part = session.pull("x", ranks=[1, 2])
    assert "only processes 1-2 asked: parts of processes 0,3 cannot be" in " ".join(
        card_transfer.gathered_card(part).text.split()
    )
    assert_same(part[2:6], whole((8, 6))[2:6])
    with pytest.raises(JaxnbError, match=(
        r"2 parts of `x`, the first \[0:2, 0:6\], cannot be pulled: processes 0,3 gave no "
        r"part of it in this pull.*from all processes"
    )):  # fmt: skip
        np.asarray(part)
    assert_same(session.pull("y", ranks=[3]), whole((8, 6)))


def test_names_that_some_processes_lack(session: Session) -> None:
    session.run("if process_index != 2: x = 1\nif process_index == 0: d = {'k': 5}\nelse: d = {}")
    with pytest.raises(UsageError, match=(
        r"Process 2 has no `x`. Nothing was moved. For processes 0-1,3 only, type "
        r"`spmd.pull\('x', ranks=\[0, 1, 3\]\)`"
    )):  # fmt: skip
        session.pull("x")
    assert session.pull("x", ranks=[0, 1, 3]) == 1
    with pytest.raises(UsageError, match=r"Processes 0-3 have no `nothing`. Nothing was moved.$"):
        session.pull("nothing")
    with pytest.raises(UsageError, match=r"Processes 1-3 have no `d\['k'\]` \(KeyError: 'k'\)"):
        session.pull("d['k']")
    session.run("learning = 1")
    with pytest.raises(UsageError, match=r"no `learnin` \(Did you mean 'learning'\?\)\. Nothing"):
        session.pull("learnin")


# ---------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("x = (i for i in ())", "generator"),
        ("import threading\nx = threading.Lock()", "lock"),
        ("x = np", "module"),
        ("leak = []\njax.jit(lambda y: leak.append(y) or y)(1.0);\nx = leak[0]", "tracer"),
    ],
)
def test_what_cannot_be_pickled(session: Session, code: str, says: str) -> None:
    session.run(code)
    with pytest.raises(JaxnbError, match=says) as raised:
        session.pull("x")
    assert "`x` on process 0 cannot be pulled" in str(raised.value)
    assert "unchanged on the process" in str(raised.value)
    assert "`spmd.run('repr(x)').value`" in str(raised.value)
    assert session.run("1 + 1").value == 2


def test_what_cannot_be_read_here(session: Session, tmp_path: Path) -> None:
    (tmp_path / "only_there.py").write_text("class Thing:\n    pass\n")
    session.run(f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport only_there\n"
                "x = only_there.Thing()\nsys.path.pop(0);")  # fmt: skip
    with pytest.raises(JaxnbError, match=r"`x` \(Thing\) on process 0 cannot be read in the "
                       "notebook: ModuleNotFoundError: No module named 'only_there'"):  # fmt: skip
        session.pull("x")


def test_a_class_of_a_cell_stays_and_attributes_beside_fields_come(session: Session) -> None:
    session.run(
        "import dataclasses\n@dataclasses.dataclass\nclass Of:\n    a: object\n"
        "kept = {'w': 1, 'class': Of}\nvalue = Of(1); value.extra = process_index"
    )
    with pytest.warns(NotMovedWarning, match="of `kept` .*: type Of"):
        assert session.pull("kept")["w"] == 1
    assert [session.pull("value")[i].extra for i in (0, 1)] == [0, 1]
    assert session.run("value").agreement is Agreement.DIFFERENT


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x[1.5]", r"would have to compute"),
        ("x.sum", r"would have to compute .*`spmd\.run\('x\.sum'\)\.value`"),
    ],
)
def test_of_an_array_the_notebook_knows_the_rest(session: Session, text: str, says: str) -> None:
    session.run(MESH + "x = make((8, 6), 'data');")
    with pytest.raises(UsageError, match=says):
        session.pull(text)


# ---------------------------------------------------------------------- at random


@st.composite
def cases(draw: st.DrawFn) -> tuple[tuple[int, ...], str, tuple[int, ...], list[Any], tuple]:
    sizes, names, shape, spec = draw(layouts())
    ndim = len(shape)
    index: list[Any] = [
        draw(st.one_of(st.slices(n), st.integers(-n, n - 1) if n else st.slices(n))) for n in shape
    ][: draw(st.integers(0, ndim))]
    return sizes, names, shape, spec, tuple(index)


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases())
def test_any_array_and_any_slice(session: Session, case: Any) -> None:
    sizes, names, shape, spec, index = case
    session.run(
        MESH + f"x = make({shape}, *{spec}, on=jax.make_mesh({sizes}, tuple('{names}'), "
        f"axis_types=(AxisType.Auto,) * {len(sizes)}));"
    )
    expected = whole(shape)
    array = session.pull("x")
    assert_same(array, expected)
    forget(array)
    np.testing.assert_array_equal(array[index], expected[index])
    text = ", ".join(
        str(i) if isinstance(i, int)
        else ":".join("" if p is None else str(p) for p in (i.start, i.stop, i.step))
        for i in index
    )  # fmt: skip
    if text:
        text = text if "," in text else text + ","
        np.testing.assert_array_equal(session.pull(f"x[{text}]", lazy=False), expected[index])
    forget(array)
    assert_same(array, expected)
    for shard in array.shards:
        assert_same(shard.data, expected[shard.index])


def test_code_of_cells_stays_and_is_named(session: Session) -> None:
    """A model has arrays, and functions of a cell: the arrays come."""
    session.run(
        "import dataclasses, functools\n"
        "class Odd:\n    pass\n"
        "@dataclasses.dataclass\nclass Net:\n    w: int\n    def apply(self): return self.w\n"
        "def outer():\n    def init(): return 1\n    return init\n"
        "model = {'w': jnp.ones(3), 'act': lambda x: x, 'init': outer(), 'odd': Odd(),\n"
        "         'apply': Net(1).apply,\n"
        "         'layers': [jnp.zeros(2), functools.partial(jax.jit(lambda x, y: x), 1)]}"
    )
    with pytest.warns(NotMovedWarning) as caught:
        model = session.pull("model")
    (warning,) = caught
    said = str(warning.message)
    assert said.startswith("Parts of `model` refer to code on the processes and stayed there: ")
    for part in (
        "function <lambda>",
        "function outer.<locals>.init",
        "Odd object",
        "method Net.apply",
    ):
        assert part in said
    np.testing.assert_array_equal(model["w"], np.ones(3))
    np.testing.assert_array_equal(model["layers"][0], np.zeros(2))
    assert repr(model["act"]) == "<not moved: function <lambda>>"
    with pytest.raises(RuntimeError, match="on the processes only"):
        model["layers"][1]()
    for text in ("model['act']", "model['odd']"):
        with pytest.raises(JaxnbError, match=f"{re.escape(text)}` on process 0 cannot be pulled"):
            session.pull(text)


def test_keys_that_are_code_are_left_out(session: Session) -> None:
    """Each is told apart from the others: none takes another's place."""
    session.run("rates = {lambda: 1: 1.0, lambda: 2: 2.0, 'w': jnp.ones(2)}")
    with pytest.warns(NotMovedWarning, match="of `rates` .*function <lambda>"):
        rates = session.pull("rates")
    assert sorted(map(repr, rates)) == ["'w'", *["<not moved: function <lambda>>"] * 2]
    np.testing.assert_array_equal(rates["w"], np.ones(2))
    assert [rate for rate in rates.values() if isinstance(rate, float)] == [1.0, 2.0]


def test_code_in_objects_is_left_out(session: Session, classes: ModuleType) -> None:
    session.run(
        "net = classes.Layer(np.ones(2), lambda: 1, [{'f': lambda: 2}])\n"
        "itself = [lambda: 1]\nitself.append(itself)"
    )
    with pytest.warns(NotMovedWarning, match="of `net` .*function <lambda>"):
        net = session.pull("net")
    assert isinstance(net, classes.Layer)
    np.testing.assert_array_equal(net.w, np.ones(2))
    session.run("net = classes.Slotted(jnp.ones(2), classes.relu, lambda: 1)")
    with pytest.warns(NotMovedWarning, match="of `net` .*function <lambda>"):
        net = session.pull("net")
    assert isinstance(net, classes.Slotted)
    assert net.f is classes.relu
    np.testing.assert_array_equal(net.w, np.ones(2))
    with pytest.warns(NotMovedWarning, match="of `itself`"):
        assert session.pull("itself")[1][1]


def test_a_value_with_a_part_that_cannot_be_pickled_is_refused(session: Session) -> None:
    session.run(
        "import threading\nmesh = jax.make_mesh((8,), ('d',))\n"
        "tree = {'mesh': mesh, 'w': 1}\nheld = {'lock': threading.Lock()}"
    )
    for text in ("mesh", "tree", "held"):
        with pytest.raises(JaxnbError, match=f"`{text}` on process 0 cannot be pulled.*its parts"):
            session.pull(text)
    assert session.pull("tree['w']") == 1
