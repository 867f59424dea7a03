"""What is told of the shards of every kind of array, against what JAX itself says of them."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest

from integration.test_pull import LAYOUTS as PULLED
from integration.test_pull import UNREDUCED
from jaxnb.arrays.blocks import corner_edges
from jaxnb.errors import JaxnbError
from jaxnb.model.arrays import ArrayInfo
from jaxnb.session import Session
from support.arrays import ALL, DTYPES, MESH, SOME

ON = [(0, 0), (0, 1), (1, 2048), (1, 2049), (2, 4096), (2, 4097), (3, 6144), (3, 6145)]
"""(process, device id) of the group's devices on the CPU."""

HELPERS = (
    MESH
    + """
from jaxnb.arrays import process_describe as shards

def bounds(index, shape):
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape))

def jax_says(x):
    # Of a deleted array JAX tells neither shards nor data.
    if x.is_deleted():
        return {"deleted": True}
    is_key = jnp.issubdtype(x.dtype, jax.dtypes.prng_key)
    base = jax.random.key_data(x) if is_key else x
    own = []
    for s in x.addressable_shards:
        host = np.asarray(jax.random.key_data(s.data) if is_key else s.data)
        own.append((s.device.id, bounds(s.index[:x.ndim], x.shape), s.replica_id,
                    host.dtype.name, host.shape, host.tolist()))
    return {
        "deleted": False,
        "own": own,
        "all": [(s.device.process_index, s.device.id, bounds(s.index[:x.ndim], x.shape),
                 s.replica_id) for s in base.global_shards],
        "fully": (x.is_fully_replicated, x.is_fully_addressable),
        "memory_kind": x.sharding.memory_kind,
    }
"""
)

Told = dict[int, tuple[ArrayInfo, dict[str, Any]]]


def tell(session: Session, code: str) -> Told:
    """Runs a cell that binds ``x``; process index to jaxnb's description of it and JAX's own."""
    session.run(HELPERS + code + "\nNone")
    result = session.run("info = shards.describe(x)\ninfo, jax_says(x)")
    return {i: result.per_process[i].value for i in ALL}


def check(session: Session, code: str) -> ArrayInfo:
    """Compares the descriptions of all processes with JAX and each other; returns process 0's."""
    told = tell(session, code)
    for process, (info, facts) in told.items():
        assert not facts["deleted"]
        assert (info.fully_replicated, info.fully_addressable) == facts["fully"]
        assert info.memory_kind == facts["memory_kind"]
        theirs = sorted(facts["all"])
        assert theirs == sorted(
            (s.process_index, s.device_id, s.index, s.replica_id) for s in info.shards
        )
        mine = {s.device_id: s for s in info.shards if s.process_index == process}
        assert sorted(mine) == sorted(own[0] for own in facts["own"])
        for device, index, replica, host_dtype, host_shape, _ in facts["own"]:
            assert (mine[device].index, mine[device].replica_id) == (index, replica)
            assert info.host_dtype == host_dtype
            assert host_shape == (*(stop - start for start, stop in index), *info.word_shape)
    corners(told)
    return told[0][0]


def groups(told: Told) -> list[list[int]]:
    """The processes of each array: all of a global one, each of a process-local one."""
    if told[0][0].fully_addressable and told[1][0].fully_addressable:
        return [[i] for i in ALL]
    return [ALL]


def corners(told: Told) -> None:
    """The elements that the processes tell are those that the shards have."""
    for group in groups(told):
        shape, is_short = told[group[0]][0].shape, told[group[0]][0].itemsize_bits < 32
        expected: dict[tuple[int, ...], str] = {}
        wanted = set(product(*corner_edges(shape)))
        for process in group:
            for _, index, _, _, host_shape, values in told[process][1]["own"]:
                block = np.empty(host_shape, object)
                block[...] = np.array(values, object).reshape(host_shape)
                for place in product(*(range(start, stop) for start, stop in index)):
                    if place in wanted:
                        local = tuple(i - start for i, (start, _) in zip(place, index, strict=True))
                        expected[place] = text(block[local], 6 if is_short else 8)
        found = [pair for process in group for pair in told[process][0].corner]
        assert len(found) == len(dict(found)), "told twice"
        assert dict(found) == expected


def text(element: Any, digits: int) -> str:
    if isinstance(element, np.ndarray):
        return "0x" + "".join(f"{word:08x}" for word in element.ravel())
    return f"{element:.{digits}g}" if isinstance(element, float | complex) else str(element)


def displayed(session: Session) -> dict[int, ArrayInfo]:
    """Process index to the description that travels when ``x`` is a cell's value."""
    result = session.run("x")
    infos = {i: result.per_process[i].value_info for i in ALL}
    return {i: info.array for i, info in infos.items() if info and info.array}


def parts(info: ArrayInfo) -> list[tuple[int, tuple[tuple[int, int], ...], int]]:
    return [(s.device_id, s.index, s.replica_id) for s in info.shards]


# ---------------------------------------------------------------------- kinds of layout

LAYOUTS = {
    name: f"import jax.experimental.layout\nx = {code}"
    for name, (code, _) in PULLED.items()
    if not name.startswith("some processes")
} | {
    "of pmap": "x = jax.pmap(lambda n: n * 2.0)(np.arange(2.0))",
    "on one device": "x = jnp.arange(12.0).reshape(3, 4) + process_index",
    "on one device's sharding": (
        "x = jax.device_put(np.ones(3), SingleDeviceSharding(jax.local_devices()[1]))"
    ),
    "on one device's mesh": (
        'x = make((3,), "a", on=Mesh(np.array(jax.local_devices()[:1]), ("a",)))'
    ),
    "process-local, sharded": (
        'x = make((4, 3), "a", on=Mesh(np.array(jax.local_devices()), ("a",)), start=process_index)'
    ),
    "a subset that cuts through processes": (
        'half = Mesh(np.array([d for d in jax.devices() if d.id % 2]), ("a",))\n'
        'x = make((8,), "a", on=half)'
    ),
    "host memory, one device": "x = jax.device_put(np.ones(3), jax.memory.Space.Host)",
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(session: Session, name: str) -> None:
    info = check(session, LAYOUTS[name])
    told = displayed(session)
    assert parts(told[0]) == parts(info)
    assert sorted(told) == ALL


def test_what_is_told_beside_the_shards(session: Session) -> None:
    info = check(session, LAYOUTS["partly replicated"])
    assert (info.spec, info.memory_kind) == ("P('data')", "device")
    assert info.mesh is not None
    assert info.mesh.axis_names == ("data", "model")
    assert (info.mesh.shape, info.mesh.axis_types) == ((4, 2), ("Auto", "Auto"))
    assert [(s.process_index, s.device_id) for s in info.shards] == ON
    assert info.mesh.device_ids == tuple(device for _, device in ON)
    assert [s.replica_id for s in info.shards] == [0, 1] * 4
    assert [bool(s.digest) for s in info.shards] == [True, True] + [False] * 6
    info = check(session, LAYOUTS["explicit"])
    assert info.mesh is not None
    assert info.mesh.axis_types == ("Explicit", "Explicit")
    info = check(session, LAYOUTS["on one device"])
    assert (info.mesh, info.spec) == (None, None)
    info = check(session, LAYOUTS["host memory, pinned"])
    assert info.memory_kind == "pinned_host"


# ---------------------------------------------------------------------- kinds of element


@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(session: Session, dtype: str) -> None:
    code = f'x = make((8, 2), "data", dtype=jnp.dtype("{dtype}"))'
    info = check(session, code)
    (bits,) = re.findall(r"^\D+(\d+)", dtype) or ["8"]  # of a bool
    assert (info.dtype, info.itemsize_bits) == (dtype, int(bits))
    assert (info.host_dtype, info.word_shape) == (dtype, ())
    assert displayed(session)[3].itemsize_bits == int(bits)


def test_no_dtype_of_this_jax_is_forgotten(session: Session) -> None:
    names = session.run(
        "sorted(n for n in dir(jnp) if n[-1].isdigit() and hasattr(getattr(jnp, n), 'dtype')"
        " or n.startswith(('float8', 'float6', 'float4')))"
    ).value
    # Off without jax_enable_x64; not supported by the backend; booleans to XLA.
    apart = {"float64", "int64", "uint64", "complex128"}
    apart |= {"float6_e2m3fn", "float6_e3m2fn", "int1", "uint1"}
    plain = {"int32", "uint16"}
    assert set(names) - apart - plain <= set(DTYPES)


# ---------------------------------------------------------------------- PRNG keys

KEYS = {"threefry2x32": ("key<fry>", (2,)), "rbg": ("key<rbg>", (4,))}
KEY_LAYOUTS = {
    "several": "x = jax.random.split(jax.random.key(3, impl='{impl}'), (3, 2))",
    "sharded": "x = spread('{impl}', P('data'))",
    "a replicated one": "x = spread('{impl}', P())[0, 0]",
}
SPREAD = (
    "def spread(impl, spec):\n"
    "    return jax.jit(lambda: jax.random.split(jax.random.key(3, impl=impl), (4, 2)),\n"
    "                   out_shardings=NamedSharding(mesh, spec))()\n"
)


@pytest.mark.parametrize("layout", KEY_LAYOUTS)
@pytest.mark.parametrize("impl", KEYS)
def test_keys(session: Session, impl: str, layout: str) -> None:
    info = check(session, SPREAD + KEY_LAYOUTS[layout].format(impl=impl))
    name, words = KEYS[impl]
    assert (info.dtype, info.host_dtype, info.word_shape) == (name, "uint32", words)
    assert info.itemsize_bits == 32 * words[0]
    assert all(len(element) == 2 + 8 * words[0] for _, element in info.corner)
    assert parts(displayed(session)[0]) == parts(info)


# ---------------------------------------------------------------------- deleted arrays


@pytest.mark.parametrize(
    "code",
    [
        'x = make((16, 10), "data", "model")\nx.delete()',
        'x = make((8, 6), "data")\ny = jax.jit(lambda x: x + 1, donate_argnums=0)(x)',
        "x = jnp.ones(3) + 1\ny = jax.jit(lambda x: x + 1, donate_argnums=0)(x)",
        SPREAD + "x = spread('rbg', P('data'))\nx.delete()",
    ],
    ids=["deleted", "donated", "local, donated", "keys"],
)
def test_deleted_arrays(session: Session, code: str) -> None:
    # What JAX says of the layout before the array is deleted.
    before = tell(session, code.rpartition("\n")[0])
    after = tell(session, code)
    for i in ALL:
        info, facts = after[i]
        assert facts == {"deleted": True}
        assert info.deleted
        assert info.corner == ()
        assert not any(s.digest for s in info.shards)
        assert parts(info) == parts(before[i][0])
        assert (info.shape, info.dtype, info.sharding, info.spec, info.memory_kind) == (
            before[i][0].shape, before[i][0].dtype, before[i][0].sharding, before[i][0].spec,
            before[i][0].memory_kind,
        )  # fmt: skip
        assert (info.host_dtype, info.word_shape) == (
            before[i][0].host_dtype, before[i][0].word_shape,
        )  # fmt: skip
    assert displayed(session)[2].deleted


# ---------------------------------------------------------------------- some processes only


@pytest.mark.parametrize(
    "code",
    [
        'x = make_some((8, 6), "a", "b")',
        "x = make_some((8, 6))",
        'x = make_some((4,), "a", dtype=jnp.bfloat16)',
    ],
)
def test_arrays_of_some_processes(session: Session, code: str) -> None:
    """The others, which hold no shard, describe the same."""
    info = check(session, SOME + code)
    assert {s.process_index for s in info.shards} == {1, 2}
    told = {i: described for i, (described, _) in tell(session, SOME + code).items()}
    assert told[0].corner == told[3].corner == ()
    plain = {(t.sharding, t.shape, tuple(parts(t)), t.fully_replicated) for t in told.values()}
    assert len(plain) == 1


# ---------------------------------------------------------------------- unreduced arrays


def test_unreduced_arrays(session: Session) -> None:
    """JAX has no indices for these: its own ``Shard.index`` raises."""
    session.run(HELPERS + UNREDUCED + "None")
    told = session.run("shards.describe(x)")
    for i in ALL:
        info = told.per_process[i].value
        assert info.spec == "P(None, 'model', unreduced={'data'})"
        assert info.sharding.count("unreduced={'data'}") == 1
        assert (info.corner, info.fully_replicated, info.deleted) == ((), False, False)
        assert [s.index for s in info.shards] == [((0, 4), (0, 3)), ((0, 4), (3, 6))] * 4
        assert not any(s.digest for s in info.shards)
    assert displayed(session)[0] == told.per_process[0].value
    # The summands of the parts are in the shards, and can be read one by one.
    summands = session.run(
        "[shards.host_view(shards.shard_of(x, d.id)).tolist() for d in jax.local_devices()]"
    ).value
    total = session.run(
        "[shards.host_view(shards.shard_of(total, d.id)).tolist() for d in jax.local_devices()]"
    )
    added = np.sum([summands[i] for i in ALL], axis=0)
    np.testing.assert_allclose(added, total.per_process[0].value)
    assert "4 summands of each part" in str(session.layout("x"))
    session.run("x = make((8, 4, 6), 'data')")
    assert "\n  … 7 more slices\n2 replicas of each part" in str(session.layout("x"))


# ---------------------------------------------------------------------- views


DONATE = (
    "f = jax.jit(lambda x: x * 0 - 1, donate_argnums=0)\n"
    "address = lambda a: a.addressable_shards[0].data.unsafe_buffer_pointer()\n"
)


def test_xla_does_not_write_where_a_view_looks_and_keeps_the_array(session: Session) -> None:
    """On one device the donation is not taken, without a word: the array stays usable."""
    session.run(HELPERS + DONATE + "x = jnp.arange(1 << 16) + 0\nv = shards.host_view(x)\n"
                "there = address(x)\ny = f(x).block_until_ready();")  # fmt: skip
    told = session.run("bool((v == np.arange(1 << 16)).all()), x.is_deleted(), address(y) == there")
    assert told.value == (True, False, False)
    # Without the view the memory is taken.
    session.run("del v\nthere = address(x)\ny = f(x).block_until_ready();")
    assert session.run("x.is_deleted(), address(y) == there").value == (True, True)


def test_an_array_that_was_donated_in_part_is_deleted(session: Session) -> None:
    """JAX calls it an array as long as the first device's part is there, which NumPy looks at."""
    session.run(HELPERS + DONATE + 'x = make((8, 4), "data", "model")\n'
                "v = np.asarray(x.addressable_data(0))\ny = f(x);")  # fmt: skip
    shown = session.run("x")
    assert shown.array is not None
    assert shown.array.deleted
    assert shown.per_process[0].value_info.mimebundle == {"text/plain": "<jax.Array, deleted>"}
    assert "deleted" in str(session.layout("x"))
    with pytest.raises(JaxnbError, match="deleted"):
        session.pull("x").sum()
    assert session.run("x.is_deleted(), float(y.sum())").value == (False, -32.0)


# ---------------------------------------------------------------------- one shard
