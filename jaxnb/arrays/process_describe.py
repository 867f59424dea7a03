"""How a process describes its arrays: layouts, shards, and those in trees."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxnb.arrays.blocks import corner_edges
from jaxnb.arrays.regions import as_slice
from jaxnb.compat.jax_arrays import device_arrays, is_deleted, make_array
from jaxnb.compat.jax_runtime import wait_until_ready
from jaxnb.errors import JaxnbError
from jaxnb.lockstep import process_recorded
from jaxnb.lockstep.process_inputs import digest
from jaxnb.lockstep.process_origins import ORIGINS, origin_of
from jaxnb.model.arrays import MAX_DIGEST_BYTES, ArrayInfo, MeshInfo, ShardInfo
from jaxnb.model.dispatches import Argument

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
    limits: Any = jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo
    if jnp.issubdtype(dtype, jnp.integer) or jnp.issubdtype(dtype, jnp.floating):
        bits = limits(dtype).bits
    return DtypeFacts(name, dtype.name, (), bits)


def unreduced_axes(sharding: Any) -> tuple[str, ...]:
    """Returns the mesh axes over which the devices hold summands of the elements."""
    if not isinstance(sharding, jax.sharding.NamedSharding):
        return ()
    return tuple(sorted(str(axis) for axis in sharding.spec.unreduced))


def summed(sharding: Any) -> Any:
    """Returns the sharding that the sum of the summands would have: JAX knows no parts of these."""
    if not unreduced_axes(sharding):
        return sharding
    spec = jax.P(*sharding.spec.partitions)
    return jax.sharding.NamedSharding(sharding.mesh, spec, memory_kind=sharding.memory_kind)


def shards_of(sharding: Any, shape: tuple[int, ...]) -> tuple[ShardInfo, ...]:
    """Returns who holds which part, whether the array is there or not; without digests.

    The holders of each part are numbered from 0, in device order of the sharding, as JAX does.

    JAX's own ``Shard.replica_id`` goes through all devices for each of them, and its
    ``global_shards`` fail for PRNG keys where another process has a shard.
    """
    seen: dict[Index, int] = {}
    shards = []
    for device, slices in summed(sharding).devices_indices_map(shape).items():
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
        axes: For each dimension the mesh axes that split it; None without a mesh.
        text: What JAX prints for the sharding.
        shards: Who holds which part, without digests.
    """

    mesh: MeshInfo | None
    spec: str | None
    axes: tuple[tuple[str, ...], ...] | None
    text: str
    shards: tuple[ShardInfo, ...]


@lru_cache(maxsize=128)
def layout_of(sharding: Any, shape: tuple[int, ...]) -> Layout:
    """Returns a sharding of a shape as data.

    It is kept: a tree's leaves mostly lie alike, and what those that travel together share is
    pickled once.
    """
    mesh, spec = mesh_and_spec(sharding)
    text = sharding_text(sharding, spec)
    axes = None if mesh is None else split_axes(sharding.spec, len(shape))
    return Layout(mesh, spec, axes, text, shards_of(sharding, shape))


def split_axes(spec: jax.sharding.PartitionSpec, ndim: int) -> tuple[tuple[str, ...], ...]:
    """Returns for each dimension the mesh axes that split it."""
    parts = [*spec.partitions, *[None] * ndim][:ndim]
    several = [part if isinstance(part, tuple) else (part,) for part in parts]
    return tuple(tuple(str(axis) for axis in part if axis is not None) for part in several)


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


MOST_DEPTH = 300
"""A third of what Python allows by default: user code has called us, and JAX is called in turn."""


class NotATreeError(ValueError):
    """A value holds itself, or is nested too deep."""


def require_tree(value: Any) -> None:
    """Raises where JAX would take a value apart without end.

    Its C++ code runs into Python's limit of recursion there, and never gives back what it has taken
    of that: nothing can be called in the process any more (jaxlib 0.10 and 0.11).

    Raises:
        NotATreeError: It holds itself, or is nested too deep.
    """
    flatten = jax.tree_util.default_registry.flatten_one_level
    path: list[int] = []  # from the value to where we are
    left: list[Any] = [[value]]
    while left:
        if not left[-1]:
            left.pop()
            if path:
                path.pop()
            continue
        node = left[-1].pop()
        found = flatten(node)
        if found is None:
            continue
        if id(node) in path:
            raise NotATreeError("it holds itself")
        if len(path) >= MOST_DEPTH:
            raise NotATreeError(f"it is nested over {MOST_DEPTH} deep")
        path.append(id(node))
        left.append([*found[0]])


MAX_WHOLE_BYTES = 64 << 10
"""Of larger shards only the corners are copied from an accelerator to the host."""

MAX_UNCUT_BYTES = 1 << 20
"""Of larger shards of an accelerator a slice is cut there, which has to be compiled once."""

Corner = tuple[tuple[tuple[int, ...], str], ...]


def describe(
    array: jax.Array, *, digests: bool = True, corner: bool = True, source: bool = True
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
        source: Tell where it came from. Without that, arrays that lie alike have one description.
    """
    sharding = array.sharding
    shape = tuple(array.shape)
    # To look at its parts makes arrays for them, which JAX keeps: only where they are read anyway.
    deleted = is_deleted(array) if digests or corner else array.is_deleted()
    shards = layout_of(sharding, shape).shards
    readable = not deleted and not unreduced_axes(sharding)
    digests = digests and readable and any(shard.replica_id for shard in shards)
    corner = corner and readable and 0 not in shape
    held = _held(array, shards) if digests or corner else []
    found: dict[str, Any] = {"shards": _with_digests(shards, held)} if digests else {}
    if corner:
        found["corner"] = _corner(shape, held)
    if deleted:
        found["deleted"] = True
    if source and (origin := origin_of(ORIGINS.array_of(array))) is not None:
        found["source"] = Argument(0, "", *origin)
    described = planned(shape, array.dtype, sharding)
    return replace(described, **found) if found else described


@lru_cache(maxsize=128)  # what arrays share that travel together is pickled once
def planned(shape: tuple[int, ...], dtype: Any, sharding: Any) -> ArrayInfo:
    """Describes an array that need not be there; see :func:`describe`."""
    facts = dtype_facts(dtype)
    mesh, spec, axes, text, shards = layout_of(sharding, shape)
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
        host_dtype=facts.host_name,
        word_shape=facts.word_shape,
        axes=axes,
        unreduced=unreduced_axes(sharding),
        shards=shards,
    )


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
        RuntimeError, ValueError: The array was deleted or donated.
    """
    if dtype_facts(data.dtype).word_shape:
        data = jax.random.key_data(data)  # no computation: the keys' own buffers
    sharding = data.sharding
    if sharding.num_devices == 1:
        wait_until_ready(data)
        with suppress(BufferError):  # of another device, or of a dtype that is not NumPy's own
            return np.asarray(memoryview(data))
        # JAX keeps a copy that it made for NumPy as long as the array lives. This one is
        # another array with the same buffer, and is gone when the view is made.
        data = make_array(data.aval, sharding, [data], committed=True, checks=False)
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

    It shares the buffer with ``array``, and is deleted with it. JAX keeps the shards' arrays as
    long as ``array`` lives.

    Raises:
        JaxnbError: The array was deleted, or this process holds no shard there.
    """
    for data in [] if is_deleted(array) else device_arrays(array):
        if next(iter(data.sharding.device_set)).id == device_id:
            found: jax.Array = data
            return found
    raise JaxnbError(
        f"process {jax.process_index()} has no shard on device {device_id}: the array was deleted "
        "or donated to a computation, or the shard is elsewhere (`x.sharding.device_set`)"
    )


def cut(data: jax.Array, box: tuple[slice, ...]) -> tuple[jax.Array, tuple[slice, ...]]:
    """Cuts what spans a box out of a large array of an accelerator, which would be copied whole.

    Not while something else is computed, which may never end: a copy does not wait for that.

    Args:
        data: A process-local array on one device.
        box: The slices of each dimension; none for all of it.

    Returns:
        An array on that device, or the one that was given, and the box within it.
    """
    if host_bytes(data) <= MAX_UNCUT_BYTES or _is_in_host_memory(data):
        return data, box
    taken = [range(size)[part] for part, size in zip(box, data.shape, strict=False)]
    if not all(taken):
        return data, box
    starts = [min(each[0], each[-1]) for each in taken]
    sizes = [max(each[0], each[-1]) + 1 - start for each, start in zip(taken, starts, strict=True)]
    # The user's configuration of jax may forbid to compute here, and the device may be full.
    with suppress(Exception):
        if taken and 2 * math.prod(sizes) <= data.size and not process_recorded.still_computed():
            data = jax.lax.dynamic_slice(data, starts, sizes)
            shifted = (
                range(part.start - start, part.stop - start, part.step)
                for part, start in zip(taken, starts, strict=True)
            )
            box = tuple(map(as_slice, shifted))
    return data, box


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
        data = _digest(array if array.is_fully_addressable else array.addressable_data(0))
    header = f"{array.dtype} {array.shape} ".encode()
    return hashlib.blake2b(header + data, digest_size=16).digest()


def _corner(shape: tuple[int, ...], held: Iterable[tuple[ShardInfo, jax.Array]]) -> Corner:
    """Reads the elements at an array's corners that this process holds as replica 0.

    Args:
        shape: Shape of the whole array.
        held: This process's shards and their data.
    """
    edges = corner_edges(shape)
    found: list[tuple[tuple[int, ...], str]] = []
    for shard, data in held:
        starts = [start for start, _ in shard.index]
        places = [
            [i - start for i in edge if start <= i < stop]
            for edge, (start, stop) in zip(edges, shard.index, strict=True)
        ]
        if shard.replica_id or not all(places):
            continue
        for local, element in _elements(data, places):
            index = tuple(i + start for i, start in zip(local, starts, strict=True))
            found.append((index, _element_text(element)))
    return tuple(found)


def _elements(data: jax.Array, places: list[list[int]]) -> list[tuple[tuple[int, ...], Any]]:
    """Returns the elements at the product of the places along each dimension."""
    if host_bytes(data) > MAX_WHOLE_BYTES and not _is_in_host_memory(data):
        # The user's configuration of jax may forbid to compute here, or to compute with NaN.
        with suppress(Exception):
            return [(place, host_view(data[place])[()]) for place in product(*places)]
    host = host_view(data)
    return [(place, host[place]) for place in product(*places)]


def _is_in_host_memory(data: jax.Array) -> bool:
    """Whether NumPy can look at the array without a copy."""
    return all(device.platform == "cpu" for device in data.devices())


def _element_text(element: Any) -> str:
    if isinstance(element, np.ndarray):  # the words of a PRNG key
        return "0x" + "".join(f"{int(word):08x}" for word in element.flat)
    value = element.item() if hasattr(element, "item") else element
    digits = 6 if getattr(element, "itemsize", 8) < 4 else 8  # as many as NumPy prints
    if not isinstance(value, float | complex):
        return str(value)
    # The nearest float32 to 0.3 is 0.30000001 to float64.
    return min(str(element), f"{value:.{digits}g}", key=len)
