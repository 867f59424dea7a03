"""What four real processes have when the notebook has pushed a value."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxnb.arrays.lost import PerProcess
from jaxnb.errors import UsageError
from jaxnb.model.cells import CallRequest, JointRequest
from jaxnb.session import Session
from jaxnb.wire.asking import Channel
from support.arrays import (
    ALL,
    DTYPES,
    MESH,
    SOME,
    assert_same,
    assert_there,
    dtype_of,
    layouts,
    whole,
)


def text_of(spec: tuple[Any, ...]) -> str:
    return ", ".join(map(repr, spec))


# ---------------------------------------------------------------------- without a spec


ARRAYS: dict[str, np.ndarray] = {
    **{name: whole((8, 6), dtype_of(name)) for name in ("bfloat16", "int4")},
    "big-endian": whole((8, 6), ">f4"),
    "objects": np.array([1, "a", None], object),
    "records": np.array([(1, 2.0)], [("a", "i4"), ("b", "f8")]),
    "empty": np.zeros((0, 3)),
    "Fortran order": np.asfortranarray(whole((300, 200))),
    "strided": whole((400, 600), np.int16)[::2, ::-3],
    "masked": np.ma.masked_array([1.0, 2.0], [True, False]),
    "large": whole((512, 1025), np.float64),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_stays_numpy(session: Session, name: str) -> None:
    array = ARRAYS[name]
    session.push(x=array, y=[array, array])
    result = session.run(
        "(type(x).__name__, str(x.dtype), x.shape, x.dtype.hasobject or x.tobytes(),"
        " x.flags.writeable, y[0] is y[1], y[0] is x)"
    )
    data = array.dtype.hasobject or array.tobytes()
    kind = type(array).__name__
    assert result.value == (kind, str(array.dtype), array.shape, data, True, True, True)
    if array.dtype.kind == "f" and array.size:
        session.run("x[...] = process_index")  # each process's own memory
        assert [v.value for v in session.run("float(x.max())").per_process.values()] == ALL
        assert array.tobytes() == data


def test_what_is_changed_here_later_stays_there(session: Session) -> None:
    session.run(MESH)
    large, small = whole((1024, 1024)), whole((8, 2))
    session.push(large=large, small=small)
    session.push(placed=large, spec=("data", "model"))
    large[:] = small[:] = -1
    assert_same(session.pull("large"), whole((1024, 1024)))
    assert_same(session.pull("small"), whole((8, 2)))
    assert_same(session.pull("placed"), whole((1024, 1024)))


def test_arrays_of_jax_do_not_change_with_the_users(session: Session) -> None:
    session.push(w=[np.zeros(2_000_000, np.float32) for _ in range(4)])
    # JAX may still copy when the call has returned: what is written meanwhile may show.
    session.run("y = [jax.device_put(w) for w in w] + [jnp.asarray(w) for w in w]")
    session.run("jax.block_until_ready(y);")
    session.run("for each in w: each[0] = 99")
    assert session.run("[float(v[0]) for v in y]").value == [0] * 8
    assert session.run("all(each.flags.aligned for each in w)").value is True


def test_arrays_of_jax_of_the_notebook(session: Session) -> None:
    session.run(MESH)
    array = jax.numpy.arange(16, dtype=jax.numpy.bfloat16).reshape(8, 2)
    session.push(x={"a": array, "n": 1})
    assert_same(session.pull("x")["a"], np.asarray(array))
    assert session.run("type(x['a']).__name__").value == "ndarray"
    session.push(x=array, spec="data")
    assert_there(session, "x", np.asarray(array), "'data'")


def test_arrays_that_were_pulled(session: Session) -> None:
    session.run(MESH + "x = make((1024, 512), 'data', 'model');")
    array = session.pull("x")
    session.push(y=array)
    assert session.run("type(y).__name__").value == "ndarray"
    session.push(z=array, part=array[:16], spec="data")
    assert_there(session, "z", whole((1024, 512)), "'data'")
    assert_there(session, "part", whole((1024, 512))[:16], "'data'")


def test_values_by_process(session: Session) -> None:
    session.push(x=PerProcess({i: np.full(i, i) for i in ALL}), y="all")
    told = session.run("x.tolist(), y")
    assert {i: told.per_process[i].value for i in ALL} == {i: ([i] * i, "all") for i in ALL}
    session.push(x=session.pull("process_index"))
    assert session.run("x == process_index").value is True
    with pytest.raises(UsageError, match=r"`x` has values for processes 1-2 and none for process"):
        session.push(x=PerProcess({1: 1, 2: 2}))
    session.push(x=PerProcess({1: "a", 2: "b"}), ranks=[1, 2])
    assert session.pull("x") == {0: 0, 1: "a", 2: "b", 3: 3}
    with pytest.raises(UsageError, match="a global array is one"):
        session.push(x=PerProcess({i: np.ones(8) for i in ALL}), spec="data")


def test_some_processes(session: Session) -> None:
    session.push(x=0)
    session.push(x=np.arange(100_000), ranks=[3])
    assert [type(v).__name__ for v in session.pull("x").values()] == ["int"] * 3 + ["ndarray"]
    for more in ({"spec": "data"}, {"mesh": "mesh"}):
        with pytest.raises(UsageError, match="leave out `ranks`"):
            session.push(x=1, ranks=[0], **more)


def test_settings_and_variables_of_the_same_names(session: Session) -> None:
    session.run(MESH)
    session.push_values({"spec": 1, "ranks": np.ones(8)}, spec=None, mesh="mesh")
    assert_there(session, "spec", np.array(1, np.int32))
    session.push_values({"mesh": 3}, ranks=[1])
    assert session.run("mesh == 3").per_process[1].value is True
    session.run("del spec, mesh, ranks")
    with pytest.raises(UsageError, match="Nothing to push"):
        session.push_values({})
    for name in ("mesh", "spec", "ranks"):
        with pytest.raises(UsageError, match=rf"settings of `push`.*spmd\['{name}'\] = "):
            session.push(**{name: 3})


def test_names_that_are_pushed_are_the_users_own(session: Session) -> None:
    """Seen by %who, and nothing else keeps their values alive."""
    session.run(MESH)
    session.push(x=whole((1024, 1024)), spec="data")
    session.push(y=whole((1024, 1024)))
    assert session.run("[n in get_ipython().user_ns_hidden for n in 'xy']").value == [False] * 2
    session.run("import weakref\nrefs = [weakref.ref(x), weakref.ref(y)]\ndel x, y")
    assert session.run("[r() is None for r in refs]").value == [True, True]


# ---------------------------------------------------------------------- with a spec


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes(session: Session, name: str) -> None:
    session.run(MESH)
    array = whole((8, 6), dtype_of(name))
    for spec in ("data",), (None, "model"), ():
        session.push(x=array, spec=spec)
        assert_there(session, "x", array, text_of(spec))


SOURCES: dict[str, np.ndarray] = {
    "strided": whole((2048, 1200))[::2, ::-2],
    "of one element, broadcast": np.broadcast_to(np.float32(3), (1024, 600)),
    "big-endian, strided": whole((1024, 1200), ">f4")[:, ::2],
    "unaligned": np.frombuffer(b"\0" + whole((1024, 600)).tobytes(), "f4", offset=1).reshape(
        1024, 600
    ),
    "an ndarray's subclass": whole((1024, 600)).view(np.matrix),
}  # fmt: skip


@pytest.mark.parametrize("name", SOURCES)
def test_sources_of_any_order(session: Session, name: str) -> None:
    session.run(MESH)
    array = SOURCES[name]
    assert array.shape == (1024, 600)
    for spec in ("data", "model"), (None, "data"), ():
        session.push(x=array, spec=spec)
        assert_there(session, "x", np.array(array, np.float32), text_of(spec))


NARROWED = {"float64": "float32", "int64": "int32", "uint64": "uint32", "complex128": "complex64"}


@pytest.mark.parametrize("name", NARROWED)
def test_64_bits_become_32(session: Session, name: str) -> None:
    session.run(MESH)
    for shape in ((8, 6), (1024, 600)):
        session.push(x=whole(shape, name), spec=("data", "model"))
        assert_there(session, "x", whole(shape, name).astype(NARROWED[name]), "'data', 'model'")
    session.push(x=np.dtype(name).type(3), mesh="mesh")
    assert_there(session, "x", np.array(3, NARROWED[name]))


def test_with_64_bits_nothing_is_narrowed(session: Session) -> None:
    session.run("jax.config.update('jax_enable_x64', True)\nmesh = jax.make_mesh((8,), ('a',))")
    try:
        for name in NARROWED:
            array = whole((8, 6), name) * 3
            session.push(x=array, n=2**40, spec=None, mesh="mesh")
            assert_there(session, "x", array)
            assert_there(session, "n", np.array(2**40))
            session.push(x=array, spec="a")
            assert_there(session, "x", array, "'a'")
    finally:
        session.run("jax.config.update('jax_enable_x64', False)")


def test_scalars(session: Session) -> None:
    session.run(MESH)
    session.push(x={"n": 3, "f": 2.5, "b": True, "c": 1j, "np": np.float16(1), "bf":
                 dtype_of("bfloat16").type(2), "none": None, "text": "t", "nps": np.str_("s"),
                 "day": np.datetime64("2020-01-01")}, mesh="mesh")  # fmt: skip
    for key, expected in (
        ("n", np.array(3, np.int32)), ("f", np.array(2.5, np.float32)), ("b", np.array(True)),
        ("c", np.array(1j, np.complex64)), ("np", np.array(1, np.float16)),
        ("bf", np.array(2, dtype_of("bfloat16"))),
    ):  # fmt: skip
        assert_there(session, f"x['{key}']", expected)
    told = session.run("x['none'], x['text'], x['nps'], type(x['day']).__name__").value
    assert told == (None, "t", "s", "datetime64")


# ---------------------------------------------------------------------- trees


def test_trees_with_specs_of_their_own(session: Session, classes: ModuleType) -> None:
    session.run(MESH)
    w, b = whole((8, 6)), whole((6,))
    tree = {"layers": [classes.Layer(w, b), (w, 2.5)], "state": classes.Moments(1, w, {"k": b})}
    spec = {
        "layers": [{"w": ("data", "model"), "b": "model"}, jax.P()],
        "state": {"count": None, "mu": (None, "model"), "nu": {"k": None}},
    }
    with pytest.raises(UsageError, match="stands in two places with two specs"):
        session.push(x=tree, spec=spec)
    tree = {"layers": [classes.Layer(w, b), (w.copy(), 2.5)],
            "state": classes.Moments(1, w.copy(), {"k": b.copy()})}  # fmt: skip
    session.push(x=tree, spec=spec)
    assert_there(session, "x['layers'][0].w", w, "'data', 'model'")
    assert_there(session, "x['layers'][0].b", b, "'model'")
    assert_there(session, "x['layers'][1][0]", w)
    assert_there(session, "x['layers'][1][1]", np.array(2.5, np.float32))
    assert_there(session, "x['state'].mu", w, "None, 'model'")
    assert_there(session, "x['state'].nu['k']", b)
    session.push(x=[w, {"b": b}], spec=[("data",), {"b": None}])
    assert_there(session, "x[0]", w, "'data'")
    assert_there(session, "x[1]['b']", b)


def test_shared_arrays_stay_shared(session: Session) -> None:
    session.run(MESH)
    w = whole((8, 6))
    session.push(x=[w, w, {"w": w}], spec="data")
    assert session.run("x[0] is x[1] is x[2]['w']").value is True


# ---------------------------------------------------------------------- meshes


def test_the_mesh_that_is_set(session: Session) -> None:
    session.run(MESH + "a = mesh_of(shape=(8,), names=('a',))\njax.set_mesh(a);")
    try:
        session.push(x=whole((8, 6)), spec="a")
        assert_there(session, "x", whole((8, 6)), "'a'", mesh="a")
    finally:
        session.run("jax.set_mesh(jax.sharding.Mesh(np.empty((), object), ()));")


def test_meshes_of_explicit_axes(session: Session) -> None:
    session.run(MESH + "mesh = mesh_of('Explicit')")
    session.push(x=whole((8, 6)), spec=("data", "model"))
    assert_there(session, "x", whole((8, 6)), "'data', 'model'")
    assert session.run("str(jax.typeof(x))").value == "float32[8@data,6@model]"
    assert_same(session.run("(x * 2).sum(0)").value, (whole((8, 6)) * 2).sum(0))


def test_devices_in_another_order(session: Session) -> None:
    session.run(MESH + "mesh = Mesh(mesh.devices[::-1, ::-1], ('data', 'model'))")
    session.push(x=whole((8, 6)), spec=("data", "model"))
    assert_there(session, "x", whole((8, 6)), "'data', 'model'")


def test_a_mesh_of_some_processes(session: Session) -> None:
    session.run(MESH + SOME)
    for shape in ((8, 6), (1024, 512)):
        session.push(x=whole(shape), n=3, spec=None, mesh="some")
        session.push(y=whole(shape), spec=("a", "b"), mesh="some")
        assert_there(session, "x", whole(shape), mesh="some")
        assert_there(session, "y", whole(shape), "'a', 'b'", mesh="some")
        assert_same(session.pull("y"), whole(shape))
        assert_there(session, "n", np.array(3, np.int32), mesh="some")


# ---------------------------------------------------------------------- all or nothing


def is_for(request: Any, step: str) -> bool:
    """Whether a request asks for a step of a push."""
    if isinstance(request, JointRequest):
        request = request.request
    return isinstance(request, CallRequest) and request.function.endswith(f".{step}")


# ---------------------------------------------------------------------- what moves


@pytest.mark.parametrize(
    ("spec", "copies"), [(("data", "model"), 1), (("data",), 1), ((None, "model"), 4), ((), 4)]
)
def test_each_process_gets_its_own_part_once(
    session: Session, monkeypatch: pytest.MonkeyPatch, spec: Any, copies: int
) -> None:
    """Devices of one process that hold the same part share its bytes."""
    session.run(MESH)
    moved: list[Any] = []
    mover = session._pusher._mover
    write = mover.write
    monkeypatch.setattr(
        mover, "write",
        lambda channel, moves, label: moved.extend(moves) or write(channel, moves, label),
    )  # fmt: skip
    session.push(x=whole((1024, 512)), spec=spec)
    assert sum(move.exposure.nbytes for move in moved) == copies * 1024 * 512 * 4
    assert_there(session, "x", whole((1024, 512)), text_of(spec))


def test_by_messages_where_memory_is_out_of_reach(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.run(MESH)
    sent: list[Any] = []
    ask_all = Channel.ask_all

    def spy(self: Channel, requests: Any, *settings: Any) -> Any:
        kept = {i: list(queue) for i, queue in requests.items()}
        sent.extend(r for queue in kept.values() for r in queue)
        return ask_all(self, kept, *settings)

    monkeypatch.setattr(Channel, "ask_all", spy)
    monkeypatch.setattr("jaxnb.wire.peer_memory.is_within_reach", lambda *_: False)
    for mover in (session._pusher._mover, session._puller._mover):
        monkeypatch.setattr(mover, "_reach", {})
    arrays = {name: SOURCES[name] for name in ("strided", "big-endian, strided")}
    session.push(x=arrays, n=np.arange(3_000_001, dtype=np.int16)[::2], mesh="mesh")
    assert any(is_for(request, "write") for request in sent)
    assert sum(is_for(request, "build") for request in sent) == 4
    for name, array in arrays.items():
        assert_there(session, f"x['{name}']", np.array(array, np.float32))
        assert_same(session.pull(f"x['{name}']", lazy=False), np.array(array, np.float32))
    session.push(p=arrays["strided"], spec=(None, "data"))
    assert_there(session, "p", arrays["strided"], "None, 'data'")
    assert_same(session.pull("p[::-3, 7:500:2]"), arrays["strided"][::-3, 7:500:2])


# ---------------------------------------------------------------------- what is done with it


class _Summed:
    """Is made on the processes by a computation over all of them."""

    def __reduce__(self) -> Any:
        return eval, ("float(__import__('__main__').total(__import__('__main__').ones))",)


def test_what_makes_a_pushed_value_may_compute_over_the_processes(session: Session) -> None:
    session.run(MESH + "total, ones = jax.jit(lambda x: x.sum()), None")
    session.push(ones=np.ones(8, np.float32), spec="data")
    session.push(y=_Summed())
    assert session.run("y").value == 8.0
    session.push(z=[np.ones(8), _Summed()], spec=[("data",), ()])
    assert session.run("z[1]").value == 8.0


@pytest.mark.parametrize(("spec", "size"), [((None, "model"), 4 * 4099), ((), 16)])
def test_donation_spares_what_was_pushed_beside_it(
    session: Session, spec: tuple[Any, ...], size: int
) -> None:
    """On the CPU the pushed memory is the array, and devices of one process share it."""
    array = whole((size // 4, 4) if size == 16 else (size, 2))
    session.run(MESH + "f = jax.jit(lambda x: x + 1, donate_argnums=0)")
    session.push(x=array, spec=spec)
    session.push(y=array, spec=spec)
    session.run("for _ in range(3):\n    x = f(x)\nx.block_until_ready();")
    assert_there(session, "y", array, text_of(spec))
    found = session.run("[np.asarray(s.data).tobytes() == np.asarray(t.data + 3).tobytes() "
                        "for s, t in zip(x.addressable_shards, y.addressable_shards)]")  # fmt: skip
    assert [v.value for v in found.per_process.values()] == [[True, True]] * 4
    session.run("y.delete()")
    assert_same(session.pull("x"), array + 3)


@st.composite
def cases(draw: st.DrawFn) -> Any:
    sizes, names, shape, spec = draw(layouts())
    order = draw(st.permutations(range(len(shape))))
    dtype = draw(st.sampled_from(["float32", ">i2", "float64", "bfloat16", "bool", "int4"]))
    return sizes, names, shape, tuple(spec), order, dtype


@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(case=cases())
def test_any_array_and_any_spec(session: Session, case: Any) -> None:
    sizes, names, shape, spec, order, dtype = case
    session.run(MESH + f"mesh = jax.make_mesh({sizes}, tuple('{names}'), axis_types="
                f"(AxisType.Auto,) * {len(sizes)})")  # fmt: skip
    base = whole(tuple(shape[i] for i in order), dtype_of(dtype))
    array = base.transpose(np.argsort(order)) if shape else base
    assert array.shape == shape
    session.push(x=array, spec=spec)
    kept = {"float64": "float32", ">i2": "int16"}.get(dtype, dtype)
    expected = array.astype(dtype_of(kept))
    assert_there(session, "x", expected, text_of(spec))
    assert_same(session.pull("x"), expected)
