"""Shardings and dtypes to data: nothing here touches an array's elements."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxnb.model.arrays import MeshInfo, ShardInfo

Index = tuple[tuple[int, int], ...]


class DtypeFacts(NamedTuple):
    """What a dtype of JAX is on a device and on the host.

    Attributes:
        name: Its name, as ``str`` has it.
        host_name: Name of the NumPy or ml_dtypes dtype that its elements have on the host.
        word_shape: Shape of a PRNG key's words; empty for other dtypes.
        itemsize_bits: Size of one element on a device. Integers and floats of under a byte
            are packed there, and have a byte each on the host.
    """

    name: str
    host_name: str
    word_shape: tuple[int, ...]
    itemsize_bits: int


@lru_cache(maxsize=256)
def dtype_facts(dtype: Any) -> DtypeFacts:
    """Returns what a dtype is; kept, as finding the words of a key traces a function."""
    name = str(dtype)
    if jnp.issubdtype(dtype, jax.dtypes.prng_key):
        key = jax.ShapeDtypeStruct((), dtype)
        words = tuple(jax.eval_shape(jax.random.key_data, key).shape)
        return DtypeFacts(name, "uint32", words, math.prod(words) * 32)
    bits = dtype.itemsize * 8
    if name in ("int1", "uint1"):  # XLA has no such integers: they are stored as booleans
        return DtypeFacts(name, "bool", (), bits)
    limits: Any = None
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo
    elif jnp.issubdtype(dtype, jnp.floating):
        limits = jnp.finfo
    if limits is not None:
        bits = limits(dtype).bits
    return DtypeFacts(name, dtype.name, (), bits)


def unreduced_axes(sharding: Any) -> tuple[str, ...]:
    """Returns the mesh axes over which the devices hold summands of the elements."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return ()
    return tuple(sorted(str(axis) for axis in sharding.spec.unreduced))


def shards_of(sharding: Any, shape: tuple[int, ...]) -> tuple[ShardInfo, ...]:
    """Returns who holds which part, whether the array is there or not; without digests.

    The holders of each part are numbered from 0, in device order of the sharding, as JAX does.

    JAX's own ``Shard.replica_id`` goes through all devices for each of them, and its
    ``global_shards`` fail for PRNG keys where another process has a shard.
    """
    if unreduced_axes(sharding):
        # JAX knows no parts of these: take those that the result of the sum would have.
        sharding = jax.sharding.NamedSharding(
            sharding.mesh, jax.P(*sharding.spec.partitions), memory_kind=sharding.memory_kind
        )
    seen: dict[Index, int] = {}
    shards = []
    for device, slices in sharding.devices_indices_map(shape).items():
        index = tuple(s.indices(n)[:2] for s, n in zip(slices, shape, strict=True))
        replica = seen.get(index, 0)
        seen[index] = replica + 1
        shards.append(ShardInfo(device.id, device.process_index, index, replica))
    return tuple(shards)


class Layout(NamedTuple):
    """A sharding of a shape as data: what arrays that lie alike have in common.

    Attributes:
        mesh: The mesh; None for a sharding without one.
        spec: The partition spec as text; None without a mesh.
        text: What JAX prints for the sharding.
        shards: Who holds which part, without digests.
    """

    mesh: MeshInfo | None
    spec: str | None
    text: str
    shards: tuple[ShardInfo, ...]


def layout_of(sharding: Any, shape: tuple[int, ...], known: dict[Any, Layout]) -> Layout:
    """Returns a sharding of a shape as data.

    Args:
        sharding: The sharding.
        shape: The array's.
        known: What was returned before, for arrays that travel together: a tree's leaves
            mostly lie alike, and what they share is described and pickled once.
    """
    key = (sharding, shape)
    if key not in known:
        mesh, spec = mesh_and_spec(sharding)
        text = sharding_text(sharding, spec)
        known[key] = Layout(mesh, spec, text, shards_of(sharding, shape))
    return known[key]


def mesh_and_spec(sharding: Any) -> tuple[MeshInfo | None, str | None]:
    """Returns a sharding's mesh as data and its spec as text; None for one without a mesh."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return None, None
    mesh = sharding.mesh
    info = MeshInfo(
        axis_names=tuple(str(name) for name in mesh.axis_names),
        shape=tuple(mesh.axis_sizes),
        axis_types=tuple(str(kind).rpartition(".")[2] for kind in mesh.axis_types),
        device_ids=tuple(device.id for device in mesh.devices.flat),
    )
    return info, _spec_text(sharding.spec)


def _spec_text(spec: jax.sharding.PartitionSpec) -> str:
    parts = [repr(axis) for axis in spec.partitions]
    # These are sets: their order differs from process to process.
    sets = {"unreduced": sorted(spec.unreduced), "reduced": sorted(spec.reduced)}
    parts += [f"{what}={{{', '.join(map(repr, axes))}}}" for what, axes in sets.items() if axes]
    return "P(" + ", ".join(parts) + ")"


def sharding_text(sharding: Any, spec: str | None) -> str:
    """Returns ``str(sharding)``, the same on each process."""
    text = str(sharding)
    if spec is not None and (sharding.spec.unreduced or sharding.spec.reduced):
        return text.replace(str(sharding.spec), spec)
    return text
