"""Arrays that processes make, and the same in NumPy, for tests of pull and push."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from jaxnb.session import Session

ALL = [0, 1, 2, 3]

MESH = """
from jax.sharding import AxisType, Mesh, SingleDeviceSharding

def mesh_of(kind="Auto", shape=(4, 2), names=("data", "model"), devices=None):
    return jax.make_mesh(shape, names, axis_types=(getattr(AxisType, kind),) * len(shape),
                         devices=devices)

mesh = mesh_of()

def make(shape, *spec, dtype=np.float32, on=None, kind=None, start=1):
    sharding = NamedSharding(on or mesh, P(*spec), memory_kind=kind)
    whole = (np.arange(int(np.prod(shape))) + start).reshape(shape).astype(dtype)
    return jax.make_array_from_callback(shape, sharding, lambda index: whole[index], dtype=dtype)
"""

SOME = """
some = Mesh(np.array([d for d in jax.devices() if d.process_index in (1, 2)]).reshape(2, 2),
            ("a", "b"))
def make_some(shape, *spec, dtype=np.float32):
    sharding = NamedSharding(some, P(*spec))
    whole = np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)
    mine = [jax.device_put(whole[index], d) for d, index in
            sharding.addressable_devices_indices_map(shape).items()]
    return jax.make_array_from_single_device_arrays(shape, sharding, mine, dtype=dtype)
"""

DTYPES = [
    "float32", "float16", "bfloat16", "int8", "uint8", "uint32", "int16", "bool", "complex64",
    "int4", "uint4", "int2", "uint2", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz",
    "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu",
    "float4_e2m1fn",
]  # fmt: skip


def dtype_of(name: str) -> np.dtype:
    """Returns the dtype of a name, be it NumPy's or one of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name, name))


def whole(shape: tuple[int, ...], dtype: Any = np.float32, start: int = 1) -> np.ndarray:
    """Returns what ``make`` of :data:`MESH` makes."""
    return (np.arange(math.prod(shape)) + start).reshape(shape).astype(dtype)


def assert_same(found: Any, expected: np.ndarray) -> None:
    """Fails unless dtype, shape and bytes are equal."""
    found = np.asarray(found)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert found.tobytes() == expected.tobytes()


def assert_there(
    session: Session, name: str, expected: np.ndarray, spec: str = "", mesh: str = "mesh"
) -> None:
    """Compares every shard of an array on the processes, read there, and how it is spread."""
    told = session.run(
        f"(isinstance({name}, jax.Array), {name}.shape, {name}.dtype.name, {name}.weak_type,"
        f" {name}.sharding == NamedSharding({mesh}, P({spec})),"
        f" {name}.committed, [(s.device.id, s.index, np.asarray(s.data).dtype.name,"
        f" np.asarray(s.data).tobytes()) for s in {name}.addressable_shards])"
    ).per_process
    dtype = expected.dtype.name
    for process in told.values():
        *facts, shards = process.value
        assert facts == [True, expected.shape, dtype, False, True, True]
        for _, index, host_dtype, data in shards:
            assert host_dtype == dtype
            assert data == expected[index].tobytes()


def open_transfers(session: Session) -> int:
    """Returns how many transfers the processes keep open, together."""
    told = session.run(
        "import gc\nfrom jaxnb.arrays.process_pulls import Exposures\n"
        "sum(len(each._open) for each in gc.get_objects() if type(each) is Exposures)"
    )
    return sum(process.value for process in told.per_process.values())


CLASSES = """
import dataclasses, typing

class Moments(typing.NamedTuple):
    count: typing.Any
    mu: typing.Any
    nu: typing.Any

class Empty(typing.NamedTuple):
    pass

@dataclasses.dataclass
class Layer:
    w: typing.Any
    b: typing.Any = None
    name: str = "dense"

def register(jax):
    jax.tree_util.register_dataclass(Layer, ["w", "b"], ["name"])

class Fails:
    "Cannot be unpickled on some processes."
    def __init__(self, on):
        self.on = on
    def __setstate__(self, state):
        import jax
        if jax.process_index() in state["on"]:
            raise RuntimeError("cannot be set")
        self.__dict__.update(state)

class Opaque:
    def __init__(self, array):
        self.array = array
"""
"""A module that the notebook and the processes import."""


MESHES = [((8,), "a"), ((4, 2), "ab"), ((2, 4), "ab"), ((2, 2, 2), "abc"), ((1, 8), "ab")]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], str, tuple[int, ...], list[Any]]:
    """Sizes and names of a mesh's axes, and a shape with a spec that divides it."""
    sizes, names = draw(st.sampled_from(MESHES))
    left, spec, shape = list(names), [], []
    for _ in range(draw(st.integers(0, 3))):
        count = draw(st.integers(0, min(2, len(left))))
        mine = [left.pop(draw(st.integers(0, len(left) - 1))) for _ in range(count)]
        parts = math.prod(sizes[names.index(name)] for name in mine)
        spec.append(tuple(mine) or None)
        shape.append(parts * draw(st.integers(0, 3)))
    return sizes, names, tuple(shape), spec
