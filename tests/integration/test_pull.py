"""What comes to the notebook when a value of four real processes is pulled."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxnb.arrays.gathered import GatheredArray
from jaxnb.arrays.moving import Move
from jaxnb.arrays.pulling import (
    OriginsDifferWarning,
)
from jaxnb.errors import (
    ArrayGoneError,
    JaxnbError,
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
        "spread = lambda spec: jax.jit(make_keys, out_shardings=NamedSharding(mesh, spec))()\n"
        f"x = {KEYS[layout]}\nboth = x, jax.device_put(np.ones(x.shape, np.float32), x.sharding);"
    )
    alone = KEYS[layout] if "spread" not in KEYS[layout] else "make_keys()"
    expected = session.run(f"np.asarray(jax.random.key_data({alone}))").value
    found, like = session.pull("both")
    assert found.info.dtype.startswith("key<")
    assert_same(found, expected)
    assert_same(like, np.ones(expected.shape[:-1], np.float32))  # it lies as the keys do
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


def test_pulls_of_all_kinds_leave_nothing_open(session: Session) -> None:
    session.run(MESH + "n, text, far = 3, 'x' * 5, make((8, 6), 'data')\nbig = np.zeros(1 << 18)")
    for name in ("n", "text", "far", "big", "n"):
        session.pull(name)
    with pytest.raises(JaxnbError):
        session.pull("missing")
    assert open_transfers(session) == 0


# ---------------------------------------------------------------------- values of cells


def test_a_pull_leaves_no_arrays_there(session: Session) -> None:
    """Each cell looks at all that live: what is read of an array must not be kept beside it."""

    def living() -> list[int]:
        count = session.run("gc.collect()\nlen(jax.live_arrays())")
        return [each.value for each in count.per_process.values()]

    session.run(MESH + "import gc\ntrees = [make((8, 4), 'data') for _ in range(3)]")
    session.pull("trees", lazy=False)
    session.run("trees += [make((8, 4), 'data') for _ in range(3)]")
    made = living()
    for array in session.pull("trees"):
        forget(array)
        np.asarray(array)
    assert all(now <= then for now, then in zip(living(), made, strict=True)), (made, living())


def test_large_values_of_cells_are_fetched(session: Session) -> None:
    result = session.run(MESH + "[np.arange(1 << 19), 'x', {'far': make((8, 6), 'data')}]")
    numbers, text, tree = result.value
    assert_same(numbers, np.arange(1 << 19))
    assert text == "x"
    assert_same(tree["far"], whole((8, 6)))
    mine = result.per_process[2].value
    assert_same(mine[0], np.arange(1 << 19))
    with pytest.raises(JaxnbError, match="gave no part of it in this pull"):
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
    array = session.pull("x")
    with spying(session, monkeypatch) as moved:
        found = eval(text.replace("x", "array", 1), {"array": array})
        assert not array.is_here
    assert_same(found, expected)
    if "][" not in text:
        assert moved_bytes(moved) == SLICES[text] * 4


ON_ACCELERATOR = """
from jaxnb.arrays import process_describe
kept = process_describe._is_in_host_memory, process_describe.MAX_UNCUT_BYTES
kept_view, copied = process_describe.host_view, []
def counting(data):
    copied.append(data.size)
    return kept_view(data)
process_describe._is_in_host_memory = lambda data: False
process_describe.MAX_UNCUT_BYTES = 1024
process_describe.host_view = counting
"""
COMPUTING = """
kept_computed = process_describe.process_recorded.still_computed
process_describe.process_recorded.still_computed = lambda: ("a computation",)
"""
ON_CPU = """
process_describe.process_recorded.still_computed = kept_computed
process_describe._is_in_host_memory, process_describe.MAX_UNCUT_BYTES = kept
process_describe.host_view = kept_view
"""


def test_a_slice_of_an_accelerator_is_cut_there(session: Session) -> None:
    """On the CPU, which is told that it is one: no shard is copied to the host as a whole."""

    def pulled(text: str) -> int:
        """Pulls a slice; returns how many elements were copied to the host, of all shards."""
        session.run("copied.clear()")
        expected = eval(text, {"x": whole((1024, 512))})
        assert_same(np.asarray(session.pull(text, lazy=False)), expected)
        return sum(told.value for told in session.run("sum(copied)").per_process.values())

    session.run(MESH + "x = make((1024, 512), 'data', 'model')")
    session.run(ON_ACCELERATOR)
    try:
        copied = {text: pulled(text) for text in SLICES}
        dense = [text for text in SLICES if ":-" not in text]
        assert {text: copied[text] for text in dense} == {text: SLICES[text] for text in dense}
        assert max(copied.values()) < 1024 * 512 / 2
        # While something is computed that may never end, it is copied: that waits for nothing.
        session.run(COMPUTING)
        assert pulled("x[0]") == 2 * 256 * 256
    finally:
        session.run(ON_CPU)


def test_indices_out_of_range(session: Session) -> None:
    session.run(MESH + "x = make((8, 6), 'data', 'model');")
    message = r"`x\[8\]`: index 8 is out of bounds for axis 0 with size 8; the array has shape"
    with pytest.raises(UsageError, match=message):
        session.pull("x[8]")
    with pytest.raises(UsageError, match="too many indices"):
        session.pull("x[0, 0, 0]")


HIST = """
class Hist:
    def __init__(self, array):
        import numpy as np
        self.array, self.total = array, float(np.asarray(array).sum())
    def __reduce__(self):
        return Hist, (self.array,)
"""


def test_what_is_unpickled_uses_its_arrays(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hist.py").write_text(HIST)
    monkeypatch.syspath_prepend(tmp_path)
    session.run(MESH + f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nimport hist\n"
                "h = object.__new__(hist.Hist)\nh.array = make((1024, 512), 'data')\n"
                "sys.path.pop(0);")  # fmt: skip
    found: list[Any] = []

    def pull() -> None:
        found.append(session.pull("h"))
        found.append(session.run("[np.zeros(1 << 19), h]").value[1])

    thread = threading.Thread(target=pull, daemon=True)
    thread.start()
    thread.join(PATIENT_SECONDS)
    assert [each.total for each in found] == [float(whole((1024, 512)).sum())] * 2


def test_who_waits_for_a_pull_says_so(session: Session, capsys: pytest.CaptureFixture[str]) -> None:
    with session._reach.channel():
        thread = threading.Thread(target=session.pull, args=["process_index"])
        thread.start()
        until(lambda: "waits for a pull or push to end" in capsys.readouterr().err)
        with pytest.raises(UsageError, match="would wait for that to end"):
            session.run("1")
    thread.join()


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
