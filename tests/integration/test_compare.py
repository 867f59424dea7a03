"""One function under several shardings, on a group of 4 processes × 2 devices."""

from __future__ import annotations

from typing import Any

import pytest

from integration.test_collectives import well_formed
from jaxnb.cells.card_cell import cell_card
from jaxnb.compiled.comparison import Comparison
from jaxnb.session import Session
from support.fixtures import assert_usable

SETUP = """
import jaxnb
Auto = jax.sharding.AxisType.Auto
mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(Auto, Auto))
def mlp(x, w1, w2):
    return jnp.tanh(x @ w1) @ w2
def ones(*shape):
    return np.ones(shape, np.float32)
x, w1, w2 = ones(64, 32), ones(32, 128), ones(128, 32)
"""

SHARDINGS = {
    "replicated": "P()",
    "fsdp": "P(('data', 'model')), P(('data', 'model')), P(('data', 'model'))",
    "tensor": "P('data'), P(None, 'model'), P('model')",
}


@pytest.fixture
def group(session: Session) -> Session:
    """The group, with a mesh, a function and arguments."""
    session.run(SETUP)
    return session


def compare(group: Session, call: str, specs: dict[str, str], **settings: Any) -> Comparison:
    found = group.compare(call, specs=specs, **{"repeats": 2} | settings)
    require_readable(found)
    return found


def require_readable(found: Comparison) -> None:
    text = str(found)
    assert max(map(len, text.splitlines())) <= 80, text
    assert well_formed(found._repr_mimebundle_()["text/html"])


def test_fsdp_tensor_parallel_and_replicated_as_computed_by_hand(group: Session) -> None:
    names = "sorted(k for k in globals() if k[0] != '_'), repr(_), len(Out), len(In)"
    group.run("5", ranks=[0])  # processes may have run differently many cells
    group.run("5")
    before = [each.value for each in group.run(names).per_process.values()]
    ran = len(group.cells_run)
    found = compare(group, "mlp(x, w1, w2)", SHARDINGS)
    assert {v.name: v.bytes for v in found.variants} == {
        "replicated": 0,
        "fsdp": 7 * (32 * 128 + 128 * 32) * 4 // 8,  # both weights are gathered over all 8
        "tensor": 2 * 1 * (16 * 32 * 4) // 2,  # 16 × 32 summands on each of 2, all-reduced
    }
    assert [v.collectives for v in found.variants] == [0, 2, 1]
    arguments = [v.report.memory.argument_bytes for v in found.variants if v.report]
    assert arguments == [4 * (64 * 32 + 2 * 32 * 128), 4 * (64 * 32 + 2 * 32 * 128) // 8,
                         4 * (64 * 32 // 4 + 2 * 32 * 128 // 2)]  # fmt: skip
    for each in found.variants:
        assert each.timing is not None
        assert each.compile_seconds is not None
        assert 0 < each.timing.low <= each.timing.median <= each.timing.high
        assert each.timing.repeats == 2
        assert each.timing.slowest in range(4)
        assert each.failure is None
        assert each.warnings == ()
    assert found.best("bytes").name == "replicated"
    assert "  tensor    1 all-reduce over model 2.00 KiB" in str(found)
    # Nothing is left: no name, nothing in `_`, `Out` and `In` (but for the two cells), no replay.
    after = [each.value for each in group.run(names).per_process.values()]
    for now, then in zip(after, before, strict=True):
        assert now[:2] == (then[0], repr(then))
        assert now[2] - then[2] == now[3] - then[3] == 1
    assert [request.code for request in group.cells_run[ran:]] == [names]


def test_in_a_cell_on_its_own_objects(group: Session) -> None:
    result = group.run("""
def step(params, x, *, rate=0.1):
    grads = jax.grad(lambda p: jnp.sum(jnp.tanh(x @ p["w"]) + p["b"]))(params)
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)
batch = jax.make_array_from_callback((64, 32), NamedSharding(mesh, P("data")), lambda i: x[i])
params = {"w": w1, "b": jnp.zeros(128)}
jaxnb.compare(step, (params, batch), kwargs={"rate": 0.5}, repeats=2, specs={
    "as they are": None,
    "fsdp": ({"w": P("data"), "b": P()}, None),
    "half": NamedSharding(jax.make_mesh((4,), ("x",), axis_types=(Auto,)), P("x")),
    "whole outputs": ({"w": P("data"), "b": P()}, P("data")),
    "turned": NamedSharding(jax.sharding.Mesh(jax.devices()[::-1], ("y",)), P("y")),
}, out_specs={"whole outputs": P()})
""")
    found = result.value
    assert isinstance(found, Comparison)
    assert "identical on 4 processes (byte-compared)" in cell_card(result).text
    by_name = {v.name: v for v in found.variants}
    # The gradient of w, from the part of the batch that each has, is summed over data. That of b
    # depends on no data.
    assert by_name["as they are"].bytes == 2 * 3 * 32 * 128 * 4 // 4
    half = by_name["half"]
    assert half.mesh is not None
    assert (half.mesh.axis_names, half.mesh.shape) == (("x",), (4,))
    assert half.timing is None
    assert "half: it did not run: `x` is on 8 devices, and this mesh has 4" in str(found)
    assert all(v.timing is not None for v in found.variants if v is not half), str(found)
    assert not found.warnings  # of "whole outputs" it was asked for
    assert "mesh x 4: half; mesh y 8: turned." in " ".join(str(found).split())
    assert group.run("batch.sharding.spec == P('data') and not batch.is_deleted()").value


def test_a_variant_that_does_not_work_is_a_row(group: Session) -> None:
    group.run("""
def f(x):
    if jax.sharding.get_abstract_mesh().axis_names == ("no",): raise ValueError("no such mesh")
    return jnp.sum(x)
vast = jax.ShapeDtypeStruct((1 << 20, 1 << 20), jnp.float32)
row = ones(1 << 20)
no = jax.make_mesh((8,), ("no",), axis_types=(Auto,))
five = jax.make_mesh((1, 5), ("data", "model"), axis_types=(Auto, Auto), devices=jax.devices()[:5])
def huge(x, y): return (x[:, None] * x[None, :]).sum(0)[:1]
""")
    found = compare(group, "f(x)", {
        "good": "P('data')", "axis": "P('nothing')", "odd": "P(None, None, 'data')",
        "split": "NamedSharding(five, P(None, ('data', 'model')))", "many": "P(), P()",
        "raises": "NamedSharding(no, P())", "again": "P('data')",
    }, mesh="mesh")  # fmt: skip
    said = {v.name: v.failure and f"{v.failure.message}{v.failure.error}" for v in found.variants}
    assert said["good"] is None
    assert found["good"].timing is not None
    assert "nothing of P('nothing',) is not found in mesh" in str(said["axis"])
    assert "is for 3 dimensions, and `x` is float32[64,32]" in str(said["odd"])
    assert "should evenly divide the shape" in str(said["split"])
    assert "The specs do not have the structure of the arguments" in str(said["many"])
    assert "ValueError: no such mesh" in str(said["raises"])
    assert "good and again are the same program" in " ".join(str(found).split())
    assert "raises: JAX could not trace it: ValueError: no such mesh" in str(found)
    assert_usable(group)


def test_what_would_not_fit_into_memory_is_not_run(group: Session) -> None:
    group.run("def outer(x): return (x[:, None] * x[None, :]).sort(0)\nlong = ones(1 << 20)")
    found = compare(group, "outer(long)", {"a": "P('data')"})
    assert found["a"].timing is None
    assert found["a"].bytes is not None
    assert "a: it did not run: it needs " in str(found)


def test_nothing_is_run_without_data_and_nothing_donated(group: Session) -> None:
    group.run("""
s = jax.ShapeDtypeStruct((8,), np.float32)
ran = []
def f(x):
    jax.debug.callback(lambda: ran.append(1))
    return x - jnp.mean(x)
g = jax.jit(f, donate_argnums=0, in_shardings=NamedSharding(mesh, P("data")))
v = jax.make_array_from_callback((8,), NamedSharding(mesh, P("data")), lambda i: np.ones(8)[i])
""")
    found = compare(group, "f(s)", {"a": "P('data')"})
    assert "Nothing was run: `x` has a shape and no data" in " ".join(str(found).split())
    assert found["a"].timing is None
    assert group.run("len(ran)").value == 0
    found = compare(group, "g(v)", {"a": "P('data')", "b": "P('model')"})
    flat = " ".join(str(found).split())
    assert "The function donates arguments. Donation is off here" in flat
    assert "jitted with shardings of its own, which apply to every variant" in flat
    assert found["a"].timing is not None
    assert not group.run("v.is_deleted()").value


def test_what_changes_its_arguments_is_whole(group: Session) -> None:
    """XLA would remove the sum, whose result only the argument holds."""
    group.run("def f(state, x):\n    state['s'] = state['s'] + x.sum()\n    return x[:1]")
    group.run("state, rows = {'s': np.float32(0)}, np.ones((8, 2), np.float32)")
    found = compare(group, "f(state, rows)", {"split": "{'s': P()}, P('data')"})
    (row,) = found.variants
    assert row.failure is None
    assert row.collectives >= 1
    assert "changes its arguments" in " ".join(str(found).split())
    assert group.run("float(state['s'])").value == 0
