"""``jax.Array`` to data: what it is, who holds which part, and the values at its corners."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from contextlib import suppress
from itertools import product
from operator import itemgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnb.arrays import edge_indices
from jaxnb.model import MAX_DIGEST_BYTES, ArrayInfo, MeshInfo, ShardInfo

MAX_CORNER_ITEMS = 1024
"""Corners of arrays of many dimensions are cut to this many elements."""

MAX_WHOLE_BYTES = 64 << 10
"""Of larger shards only the corners are copied from an accelerator to the host."""


def describe(array: jax.Array, *, digests: bool = True, corner: bool = True) -> ArrayInfo:
    """Describes an array without moving it and without a collective.

    Args:
        array: Any array: global, process-local, deleted, of PRNG keys.
        digests: Digest the bytes of every addressable shard that has replicas, so that the
            notebook can compare them, up to a size. JAX itself never compares replicas.
        corner: Read the elements at the array's corners that this process holds.
    """
    sharding = array.sharding
    deleted = array.is_deleted()
    mesh, spec = _mesh_and_spec(sharding)
    local: dict[int, Any] = {} if deleted else {s.device.id: s for s in array.addressable_shards}
    replicated = _replicated_parts(array)
    shards = []
    holders: Mapping[Any, Any] = sharding.devices_indices_map(array.shape)
    for device, index in holders.items():
        part = _bounds(index, array.shape)
        shard = local.get(device.id)
        wanted = digests and shard is not None and replicated[part] > 1
        shards.append(
            ShardInfo(
                device_id=device.id,
                process_index=device.process_index,
                index=part,
                replica_id=-1,
                digest=_digest(shard.data) if wanted and shard is not None else b"",
            )
        )
    dtype, bits = _dtype(array)
    return ArrayInfo(
        shape=tuple(array.shape),
        dtype=dtype,
        itemsize_bits=bits,
        sharding=str(sharding),
        spec=spec,
        mesh=mesh,
        memory_kind=getattr(sharding, "memory_kind", None),
        fully_replicated=sharding.is_fully_replicated,
        fully_addressable=sharding.is_fully_addressable,
        shards=_number_replicas(shards),
        corner=_corner(array, list(local.values())) if corner and not deleted else (),
        deleted=deleted,
    )


def _bounds(index: tuple[slice, ...], shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    return tuple(s.indices(n)[:2] for s, n in zip(index, shape, strict=True))


def _replicated_parts(array: jax.Array) -> dict[tuple[tuple[int, int], ...], int]:
    counts: dict[tuple[tuple[int, int], ...], int] = {}
    for index in array.sharding.devices_indices_map(array.shape).values():
        part = _bounds(index, array.shape)
        counts[part] = counts.get(part, 0) + 1
    return counts


def _number_replicas(shards: list[ShardInfo]) -> tuple[ShardInfo, ...]:
    """Numbers the holders of each part from 0, in device order of the sharding, as JAX does."""
    seen: dict[tuple[tuple[int, int], ...], int] = {}
    numbered = []
    for shard in shards:
        replica = seen.get(shard.index, 0)
        seen[shard.index] = replica + 1
        numbered.append(
            ShardInfo(shard.device_id, shard.process_index, shard.index, replica, shard.digest)
        )
    return tuple(numbered)


def _mesh_and_spec(sharding: Any) -> tuple[MeshInfo | None, str | None]:
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
    return "P(" + ", ".join(repr(axis) for axis in spec) + ")"


def _dtype(array: jax.Array) -> tuple[str, int]:
    if jnp.issubdtype(array.dtype, jax.dtypes.prng_key):
        data = jax.eval_shape(jax.random.key_data, array)
        words = int(np.prod(data.shape[array.ndim :], dtype=np.int64))
        return str(array.dtype), words * data.dtype.itemsize * 8
    name = str(array.dtype)
    # NumPy stores int4 and the like in a byte each; on the device they are packed.
    for prefix in ("int", "uint", "float"):
        digits = name.removeprefix(prefix)[:1]
        if (
            name.startswith(prefix)
            and digits in ("2", "4")
            and not name[len(prefix) + 1 :][:1].isdigit()
        ):
            return name, int(digits)
    return name, array.dtype.itemsize * 8


def to_numpy(data: jax.Array) -> np.ndarray[Any, Any]:
    """Copies a process-local array to host memory; PRNG keys as their words."""
    if jnp.issubdtype(data.dtype, jax.dtypes.prng_key):
        data = jax.random.key_data(data)
    return np.asarray(data)


def _digest(data: jax.Array) -> bytes:
    if host_bytes(data) > MAX_DIGEST_BYTES:
        return b""
    host = np.ascontiguousarray(to_numpy(data))
    return hashlib.blake2b(host.view(np.uint8).data, digest_size=16).digest()


def host_bytes(array: jax.Array) -> int:
    """Returns the size of the whole array in host memory."""
    return array.size * max(8, _dtype(array)[1]) // 8


def digest_of(array: jax.Array, data: bytes | None) -> bytes:
    """Digests an array that this process holds whole: dtype, shape and bytes.

    Args:
        array: The array.
        data: The digest of its bytes where there is one already: they are not read again.
    """
    if not data:
        whole = array if array.is_fully_addressable else array.addressable_data(0)
        data = _digest(whole)
    header = f"{array.dtype} {array.shape} ".encode()
    return hashlib.blake2b(header + data, digest_size=16).digest()


def _corner(array: jax.Array, shards: list[Any]) -> tuple[tuple[tuple[int, ...], str], ...]:
    """Reads the elements at the array's corners that this process holds as replica 0."""
    edges = [edge_indices(n) for n in array.shape]
    found: list[tuple[tuple[int, ...], str]] = []
    for shard in shards:
        if shard.replica_id != 0 or len(found) >= MAX_CORNER_ITEMS:
            continue
        # The index of a shard of PRNG keys counts the words of a key as a dimension.
        part = _bounds(shard.index[: array.ndim], array.shape)
        inside = [
            [i for i in edge if start <= i < stop]
            for edge, (start, stop) in zip(edges, part, strict=True)
        ]
        if not all(inside):
            continue
        places = [
            [i - start for i in edge]
            for edge, (start, _) in zip(_trimmed(inside), part, strict=True)
        ]
        starts = [start for start, _ in part]
        for local, element in _elements(shard.data, places):
            index = tuple(i + start for i, start in zip(local, starts, strict=True))
            found.append((index, _element_text(element)))
    return tuple(found[:MAX_CORNER_ITEMS])


def _trimmed(edges: list[list[int]]) -> list[list[int]]:
    """Cuts the leading dimensions until about MAX_CORNER_ITEMS elements are left."""
    trimmed = []
    for d, edge in enumerate(edges):
        rest = math.prod(len(other) for other in edges[d + 1 :])
        trimmed.append(edge[: max(1, -(-MAX_CORNER_ITEMS // rest))])
    return trimmed


def _elements(data: jax.Array, places: list[list[int]]) -> list[tuple[tuple[int, ...], Any]]:
    """Returns the elements at the product of the places along each dimension."""
    if host_bytes(data) > MAX_WHOLE_BYTES and not _is_in_host_memory(data):
        # The user's configuration of jax may forbid to compute here, or to compute with NaN.
        with suppress(Exception):
            boxes = product(*map(_ranges, places))
            return sorted((pair for box in boxes for pair in _box(data, box)), key=itemgetter(0))
    host = to_numpy(data)
    return [(place, host[place]) for place in product(*places)]


def _is_in_host_memory(data: jax.Array) -> bool:
    """Whether NumPy can look at the array without a copy."""
    return all(device.platform == "cpu" for device in data.devices())


def _ranges(places: list[int]) -> list[range]:
    """Returns ascending integers as runs: one or two, as they are ends of a dimension."""
    runs: list[range] = []
    for i in places:
        if runs and runs[-1].stop == i:
            runs[-1] = range(runs[-1].start, i + 1)
        else:
            runs.append(range(i, i + 1))
    return runs


def _box(data: jax.Array, box: tuple[range, ...]) -> list[tuple[tuple[int, ...], Any]]:
    """Copies one box of the array to the host; computes on the one device that holds it."""
    host = to_numpy(data[tuple(slice(r.start, r.stop) for r in box)])
    return [
        (place, host[tuple(i - r.start for i, r in zip(place, box, strict=True))])
        for place in product(*box)
    ]


def _element_text(element: Any) -> str:
    if isinstance(element, np.ndarray):  # the words of a PRNG key
        return "0x" + "".join(f"{int(word):08x}" for word in element.flat)
    value = element.item() if hasattr(element, "item") else element
    return f"{value:.6g}" if isinstance(value, float | complex) else str(value)
