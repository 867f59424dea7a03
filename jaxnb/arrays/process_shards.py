"""``jax.Array`` to data: what it is, who holds which part, and the elements that are here."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from itertools import product
from operator import itemgetter
from typing import Any

import jax
import numpy as np

from jaxnb.arrays import edge_indices
from jaxnb.arrays.process_layouts import Layout, dtype_facts, layout_of, unreduced_axes
from jaxnb.compat.jax_arrays import is_deleted
from jaxnb.compat.jax_waits import wait_until_ready
from jaxnb.errors import JaxnbError
from jaxnb.lockstep.process_inputs import digest
from jaxnb.lockstep.process_origins import ORIGINS, origin_of
from jaxnb.model.arrays import MAX_DIGEST_BYTES, ArrayInfo, ShardInfo
from jaxnb.model.dispatches import Argument

MAX_CORNER_ITEMS = 1024
"""Corners of arrays of many dimensions are cut to this many elements."""

MAX_WHOLE_BYTES = 64 << 10
"""Of larger shards only the corners are copied from an accelerator to the host."""

Corner = tuple[tuple[tuple[int, ...], str], ...]


def describe(
    array: jax.Array,
    *,
    digests: bool = True,
    corner: bool = True,
    known: dict[Any, Layout] | None = None,
) -> ArrayInfo:
    """Describes an array without moving it and without a collective.

    Without digests and corner its data are not touched: no array is made for a shard.

    Of an array that is unreduced over some mesh axes, ``spec`` names these, and ``shards``
    tells which part each device's summand belongs to. Summands need not be equal and are no
    elements, so there are no digests and no corner.

    Args:
        array: Any array: global, process-local, deleted, of PRNG keys, without a shard on
            this process. Not a tracer.
        digests: Digest the bytes of every addressable shard that has replicas, so that the
            notebook can compare them, up to a size. JAX itself never compares replicas.
        corner: Read the elements at the array's corners that this process holds.
        known: See :func:`jaxnb.arrays.process_layouts.layout_of`.
    """
    sharding = array.sharding
    shape = tuple(array.shape)
    # To look at its parts makes arrays for them, which JAX keeps: only where they are read anyway.
    deleted = is_deleted(array) if digests or corner else array.is_deleted()
    facts = dtype_facts(array.dtype)
    mesh, spec, text, shards = layout_of(sharding, shape, {} if known is None else known)
    readable = not deleted and not unreduced_axes(sharding)
    digests = digests and readable and any(shard.replica_id for shard in shards)
    corner = corner and readable and 0 not in shape
    held = _held(array, shards) if digests or corner else []
    source = _source(array)
    return ArrayInfo(
        shape=shape,
        dtype=facts.name,
        itemsize_bits=facts.itemsize_bits,
        sharding=text,
        spec=spec,
        mesh=mesh,
        memory_kind=sharding.memory_kind,
        fully_replicated=sharding.is_fully_replicated,
        fully_addressable=sharding.is_fully_addressable,
        shards=_with_digests(shards, held) if digests else shards,
        corner=_corner(shape, held) if corner else (),
        deleted=deleted,
        host_dtype=facts.host_name,
        word_shape=facts.word_shape,
        origin=0 if source is None else source.made.base,
        source=source,
    )


def _source(array: jax.Array) -> Argument | None:
    origin = origin_of(ORIGINS.array_of(array))
    return None if origin is None else Argument(0, "", *origin)


def _held(array: jax.Array, shards: tuple[ShardInfo, ...]) -> list[tuple[ShardInfo, jax.Array]]:
    """Returns this process's shards with their data."""
    data = {shard.device.id: shard.data for shard in array.addressable_shards}
    return [(shard, data[shard.device_id]) for shard in shards if shard.device_id in data]


def _with_digests(
    shards: tuple[ShardInfo, ...], held: list[tuple[ShardInfo, jax.Array]]
) -> tuple[ShardInfo, ...]:
    replicated = {shard.index for shard in shards if shard.replica_id}
    found = {s.device_id: _digest(data) for s, data in held if s.index in replicated}
    return tuple(replace(s, digest=found.get(s.device_id, b"")) for s in shards)


def host_bytes(array: jax.Array) -> int:
    """Returns the size of the whole array in host memory."""
    return array.size * max(8, dtype_facts(array.dtype).itemsize_bits) // 8


def is_digested(data: jax.Array) -> bool:
    """Whether an array's bytes are digested to be shown: in host memory whatever their number."""
    return _is_in_host_memory(data) or host_bytes(data) <= MAX_DIGEST_BYTES


def host_view(data: jax.Array) -> np.ndarray[Any, Any]:
    """Returns a process-local array's elements in host memory; PRNG keys as their words.

    On the CPU the view is the array's own memory, without a copy. Exceptions, which are
    copied: elements of less than a byte, layouts other than row-major (the copy keeps their
    strides), arrays over several devices.

    The view is read-only and keeps the memory alive: it shows the same elements after the
    array was deleted. XLA does not reuse memory that is viewed: where the array is donated
    meanwhile, the computation writes elsewhere, silently, and an array on a single device is
    then not even marked as deleted. So a view is better not kept for long.

    The array is waited for; in the main thread an interrupt ends that.

    Raises:
        JaxnbError: The array is unreduced over several devices: nobody holds its elements.
        RuntimeError: The array was deleted or donated.
    """
    if dtype_facts(data.dtype).word_shape:
        data = jax.random.key_data(data)  # no computation: the keys' own buffers
    sharding = data.sharding
    if sharding.num_devices == 1:
        # JAX keeps a copy that it made for NumPy as long as the array lives. This one is
        # another array with the same buffer, and is gone when the view is made.
        data = jax.make_array_from_single_device_arrays(data.shape, sharding, [data])
    elif axes := unreduced_axes(sharding):
        raise JaxnbError(
            f"process {jax.process_index()} cannot read an array that is unreduced over the mesh "
            f"axes {', '.join(axes)}: its devices hold summands. It stays as it is. Type "
            f"`jax.reshard(x, jax.P())` to sum it"
        )
    wait_until_ready(data)
    view = np.asarray(data)
    view.flags.writeable = False
    return view


def shard_of(array: jax.Array, device_id: int) -> jax.Array:
    """Returns this process's shard on a device, as an array of that device alone.

    It shares the buffer with ``array``, and is deleted with it. JAX keeps the shards' arrays,
    which :func:`jax.live_arrays` counts, as long as ``array`` lives.

    Raises:
        JaxnbError: The array was deleted, or this process holds no shard there.
    """
    process = f"process {jax.process_index()}"
    if is_deleted(array):
        raise JaxnbError(
            f"{process} has no shard on device {device_id}: the array was deleted, or donated "
            f"to a computation. Assign it again"
        )
    shards = {shard.device.id: shard for shard in array.addressable_shards}
    if device_id in shards:
        data: jax.Array = shards[device_id].data
        return data
    own = [device.id for device in jax.local_devices()]
    why = "the array has no shard there" if device_id in own else f"its own devices are {own}"
    held = f"on devices {sorted(shards)}" if shards else "nowhere"
    raise JaxnbError(
        f"{process} has no shard on device {device_id}: {why}. This process holds shards of it "
        f"{held}; `x.sharding.device_set` tells where the others are"
    )


def _digest(data: jax.Array) -> bytes:
    """Digests the bytes of a process-local array; empty if too many would have to be copied."""
    return digest(host_view(data)) if is_digested(data) else b""


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


def _corner(shape: tuple[int, ...], held: Iterable[tuple[ShardInfo, jax.Array]]) -> Corner:
    """Reads the elements at an array's corners that this process holds as replica 0.

    Args:
        shape: Shape of the whole array.
        held: This process's shards and their data.
    """
    edges = [edge_indices(n) for n in shape]
    found: list[tuple[tuple[int, ...], str]] = []
    for shard, data in held:
        if shard.replica_id != 0 or len(found) >= MAX_CORNER_ITEMS:
            continue
        inside = [
            [i for i in edge if start <= i < stop]
            for edge, (start, stop) in zip(edges, shard.index, strict=True)
        ]
        if not all(inside):
            continue
        starts = [start for start, _ in shard.index]
        places = [
            [i - start for i in edge] for edge, start in zip(_trimmed(inside), starts, strict=True)
        ]
        for local, element in _elements(data, places):
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
    host = host_view(data)
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
    host = host_view(data[tuple(slice(r.start, r.stop) for r in box)])
    return [
        (place, host[tuple(i - r.start for i, r in zip(place, box, strict=True))])
        for place in product(*box)
    ]


def _element_text(element: Any) -> str:
    if isinstance(element, np.ndarray):  # the words of a PRNG key
        return "0x" + "".join(f"{int(word):08x}" for word in element.flat)
    value = element.item() if hasattr(element, "item") else element
    digits = 6 if getattr(element, "itemsize", 8) < 4 else 8  # as many as NumPy prints
    return f"{value:.{digits}g}" if isinstance(value, float | complex) else str(value)
