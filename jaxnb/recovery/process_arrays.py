"""Arrays, refs and devices, made again in another process.

Each process packs its own shards of arrays over several processes, and lists these arrays beside
the pickle. Who makes them again has the shards from its own file, or from those of all.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jaxnb.arrays.gathered import numpy_dtype
from jaxnb.arrays.lost import LostValue
from jaxnb.arrays.process_describe import dtype_facts, split_axes, summed, unreduced_axes
from jaxnb.arrays.process_names import paths_to
from jaxnb.arrays.process_pulls import as_bytes
from jaxnb.compat import jax_arrays as exact
from jaxnb.compat.jax_arrays import (
    array_of_ref_now,
    buffer_of,
    device_arrays,
    host_words,
    is_deleted,
)
from jaxnb.compat.jax_runtime import wait_until_ready
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.model.dispatches import Made, Origin
from jaxnb.recovery.fit_to_size import Box, SavedArray, SavedPart

if TYPE_CHECKING:
    from jaxnb.recovery.process_reading import Reading

Check = Callable[[jax.Array], Sequence[jax.Array] | None]
"""Looks whether the elements of an array can be read, and may wait for them.

Returns:
    What each device of this process, in order, is to have, as arrays of one device: where the
    computation has failed on some only, others may have replicas. None if each has its own.

Raises:
    pickle.PicklingError: They cannot; the message says why.
"""


_WIDE = 8
"""Bytes of an element from which on it needs ``jax_enable_x64`` (or may need it: complex64)."""

Part = tuple[Any, ...]
"""A part of an array: the device, the dtype on the host, the shape there, and the bytes."""


Place = tuple[str, int | None, int]
"""A device: its platform, its process (None: that which reads it), its place among those there."""

Facts = tuple[list[int], str, bool, bool, Any]
"""Shape, dtype, whether the type is weak, whether it is committed, layout (None: row-major)."""

PlainOrigin = tuple[int, tuple[Any, ...]]
"""An origin, made of what every pickle knows."""


class PartLostError(pickle.PicklingError):
    """Other processes had parts of an array, and have died.

    Attributes:
        shards: The parts that this process has: the slices of the whole array, and the elements.
    """

    def __init__(self, reason: str, shards: tuple[tuple[Any, Any], ...]) -> None:
        super().__init__(reason)
        self.shards = shards


def wait(array: jax.Array) -> None:
    """Waits until an array is there, or until an interrupt: a :data:`Check`."""
    wait_until_ready(array)
    array.block_until_ready()


class Listing:
    """Lists the arrays over several processes while they are packed: they leave the pickle.

    So equal values have equal pickles on all processes: an array stands as its number, and devices
    of a process's own, where nothing else is with them, as its first, its second ….

    Args:
        compares: The pickle is compared with others', and not read: no parts are taken.

    Attributes:
        parts: The parts of the arrays that this process has.
        is_common: Something that concerns several processes was met: such an array, or a mesh.
    """

    def __init__(self, *, compares: bool = False) -> None:
        self.compares = compares
        self.clear()

    def clear(self) -> None:
        """Begins anew: the same values are packed once more."""
        self.parts: list[np.ndarray[Any, Any]] = []
        self.is_common = False
        self._arrays: list[SavedArray] = []
        self._met: list[Any] = []
        self._holders: dict[int, Any] = {}

    def named(self, variables: Mapping[str, Any]) -> tuple[SavedArray, ...]:
        """Returns the arrays, in the order in which they were met, with where they are.

        Args:
            variables: What was packed.
        """
        wanted = [self._holders.get(id(each), each) for each in self._met]
        found = paths_to(variables, {*map(id, wanted)})
        paths = (found[id(each)].path if id(each) in found else "" for each in wanted)
        pairs = zip(self._arrays, paths, strict=True)
        return tuple(replace(array, path=path) for array, path in pairs)

    def reduced(self, value: Any, check: Check, name: str) -> Any:
        """Tells pickle how an array, a ref or a device is made again.

        An array comes back with its own shards of this process: dtype, weak type, layout, memory
        kind, sharding, and whether it is committed; with attributes that were added to it.

        Args:
            value: Anything.
            check: Looks at each array before it is read.
            name: The variable that it is in.

        Returns:
            What a ``reducer_override`` returns; NotImplemented for whatever else.

        Raises:
            pickle.PicklingError: It cannot be made again; the message says why.
            Exception: What JAX raised in the computation that was to give it.
        """
        kind = type(value)
        if issubclass(kind, jax.core.Tracer):
            raise pickle.PicklingError("a tracer that escaped its transformation (jit, grad …)")
        if issubclass(kind, jax.Device):
            self.is_common |= not _is_own([value])
            return _device, place_of(value)
        if kind is Mesh and not value.empty:
            is_own = _is_own(value.devices.flat)
            self.is_common |= not is_own
            place = own_place if is_own else place_of
            places = [place(device) for device in value.devices.flat]
            return _mesh, (places, dict(value.shape), [*value.axis_types])
        if issubclass(kind, NamedSharding | SingleDeviceSharding):
            maker, *arguments = _described(value)
            return maker, tuple(arguments)
        held = array_of_ref_now(value)
        if held is not None:
            self._holders[id(held)] = value
            return _ref, (held,)
        if not issubclass(kind, jax.Array):
            return NotImplemented
        if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            words = buffer_of(value)
            self._holders[id(words)] = value
            return _keys, (words, jax.random.key_impl(value))
        return self._array(value, check, name)

    def _array(self, array: Any, check: Check, name: str) -> Any:
        if is_deleted(array):
            raise pickle.PicklingError("it had been deleted, or donated to a computation")
        whole = check(array)
        sharding, origin = array.sharding, plain_origin(ORIGINS.of(array))
        if self.compares:  # which object a sharding is, is no part of the array's value
            sharding, origin = _described(sharding), None
        what = facts_of(array), sharding, origin
        attributes = added_attributes(array) or None
        is_of_all = _is_named(array.sharding) and has_all_devices(array.sharding.mesh)
        is_shared = is_of_all or not array.sharding.is_fully_addressable
        boxes = _boxes(array.sharding, array.shape) if is_shared else None
        if boxes is None:
            parts = [(own_place(device), *part) for device, *part in parts_of(array, whole)]
            return _array, (*what, parts), attributes
        self.is_common |= not array.sharding.is_fully_addressable
        taken: list[SavedPart] = []
        for device, dtype, _, data in () if self.compares else parts_of(array, whole):
            taken.append(SavedPart(place_of(device)[2], boxes[device], dtype, len(self.parts)))
            self.parts.append(np.frombuffer(data.raw(), np.uint8))
        self._list(array, name, tuple(taken), is_of_all=is_of_all)
        return _array, (*what, len(self._arrays) - 1), attributes

    def _list(
        self, array: Any, name: str, parts: tuple[SavedPart, ...], *, is_of_all: bool
    ) -> None:
        sharding = array.sharding
        is_named = _is_named(sharding)
        origin = plain_origin(ORIGINS.of(self._holders.get(id(array), array)))
        needs = [place_of(device)[1:] for device in sharding.device_set]
        self._arrays.append(
            SavedArray(
                name=name,
                path="",
                origin=str(origin[0]) if origin is not None else "",
                shape=tuple(array.shape),
                dtype=str(array.dtype),
                mesh=dict(sharding.mesh.shape) if is_named else {},
                is_of_all=is_of_all,
                needs=(1 + max(p for p, _ in needs), 1 + max(d for _, d in needs)),
                spec=split_axes(sharding.spec, array.ndim) if is_named else ((),) * array.ndim,
                parts=parts,
                unreduced=tuple(sorted(unreduced_axes(sharding))),
            )
        )
        self._met.append(array)


def _is_named(sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)


def is_known(sharding: Any) -> bool:
    """Whether it is known which shards of an array with a sharding are equal."""
    return isinstance(sharding, SingleDeviceSharding) or _is_named(sharding)


def has_all_devices(mesh: Mesh) -> bool:
    """Whether a mesh has all devices of its platform."""
    return bool(mesh.size == len(jax.devices(mesh.devices.flat[0].platform)))


def _is_own(devices: Iterable[Any]) -> bool:
    own = jax.process_index()
    return all(device.process_index == own for device in devices)


def _boxes(sharding: Any, shape: tuple[int, ...]) -> dict[Any, Box] | None:
    """Returns which part of an array each device of this process has; None if those are not parts.

    They are not where ``jax.pmap`` has made it: a part has a dimension less.
    """
    places = summed(sharding).addressable_devices_indices_map(tuple(shape))
    if any(type(part) is int for index in places.values() for part in index):
        return None
    return {device: box_of(index, shape) for device, index in places.items()}


def box_of(index: Any, shape: tuple[int, ...]) -> Box:
    """Returns the part of an array that an index is, as JAX gives it."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _described(sharding: Any) -> list[Any]:
    """Returns what makes a sharding, and of what."""
    if isinstance(sharding, NamedSharding):
        spec = sharding.spec
        axes = [[*part] if isinstance(part, tuple) else part for part in spec.partitions]
        sums = sorted(spec.unreduced), sorted(spec.reduced)
        return [_named, sharding.mesh, axes, *sums, sharding.memory_kind]
    if not isinstance(sharding, SingleDeviceSharding):
        return [sharding]
    (device,) = sharding.device_set
    place = own_place(device) if _is_own([device]) else place_of(device)
    return [_single, [*place], sharding.memory_kind]


def facts_of(array: jax.Array) -> Facts:
    """Returns what an array is, beside its sharding and its elements."""
    # A list, that is made here: whether two arrays share a tuple is no part of their value.
    shape, dtype = [*array.shape], dtype_facts(array.dtype).name
    weak, committed = bool(array.weak_type), bool(array.committed)
    return shape, dtype, weak, committed, special_layout(array)


def plain_origin(origin: Origin | None) -> PlainOrigin | None:
    """Returns an origin for pickles; None for one that is not known."""
    return (origin[0], tuple(origin[1])) if origin is not None and origin[1].base else None


def parts_of(array: jax.Array, whole: Sequence[jax.Array] | None = None) -> list[Part]:
    """Returns what this process's devices hold of an array.

    Args:
        array: The array.
        whole: See :data:`Check`.
    """
    own, parts = device_arrays(array), list[Part]()
    for each, held in zip(own, whole or own, strict=True):
        (device,) = each.sharding.device_set
        words = host_words(held)
        data = pickle.PickleBuffer(as_bytes(words).data)
        parts.append((device, words.dtype.name, words.shape, data))
    return parts


def is_array(value: Any) -> bool:
    """Whether a value is an array, and no tracer."""
    return issubclass(type(value), jax.Array) and not issubclass(type(value), jax.core.Tracer)


def special_layout(array: jax.Array) -> Any:
    """Returns an array's layout if it is not row-major; None if it is, or JAX does not tell."""
    if array.ndim < 2:  # to ask takes as long as all the rest of copying a small one
        return None
    try:
        concrete: Any = array
        layout: Any = concrete.format.layout
    except Exception:  # an array without shards on this process
        return None
    if layout is None or tuple(layout.major_to_minor) == tuple(range(array.ndim)):
        return None
    return layout


def added_attributes(array: jax.Array) -> dict[str, Any]:
    """Returns what the user has added to an array: not what JAX and jaxnb keep there."""
    kind = type(array)
    return {
        name: value
        for name, value in vars(array).items()
        if not (hasattr(kind, name) or name.startswith("_jaxnb"))
    }


# ------------------------------------------------------------------------- in the new process


@functools.cache
def _devices(platform: str) -> dict[tuple[int, int], jax.Device]:
    devices = jax.devices(platform)
    return {place_of(device)[1:]: device for device in devices}


@functools.cache
def place_of(device: Any) -> tuple[str, int, int]:
    """Returns a device's platform, its process, and its place among that process's devices."""
    own = [d for d in jax.devices(device.platform) if d.process_index == device.process_index]
    return device.platform, device.process_index, own.index(device)


def own_place(device: Any) -> Place:
    """Returns the platform of a device of this process, and its place among those."""
    platform, _, number = place_of(device)
    return platform, None, number


def device_at(where: Iterable[Any]) -> jax.Device:
    """Returns the device at a place.

    Raises:
        LookupError: There is none.
    """
    platform, process_index, place = where
    if process_index is None:
        process_index = jax.process_index()
    found = _devices(platform).get((process_index, place))
    if found is None:
        raise LookupError(f"process {process_index} has no {platform} device {place} here")
    return found


_reads: Reading | None = None
"""Knows the file that is read, and what has become of its group."""


@contextmanager
def made_by(reading: Reading) -> Iterator[None]:
    """Has devices, meshes and arrays over several processes made by a reading in the block."""
    global _reads
    _reads = reading
    try:
        yield
    finally:
        _reads = None


def reads_own() -> bool:
    """Whether what is made comes from this process's own file."""
    return _reads is not None and _reads.is_own


def _device(*place: Any) -> jax.Device:
    assert _reads is not None
    return _reads.device(place)


def _mesh(places: list[Place], shape: dict[str, int], types: Any) -> Mesh:
    assert _reads is not None
    return _reads.mesh(places, shape, types)


def _named(
    mesh: Any, axes: list[Any], unreduced: list[str], reduced: list[str], kind: str | None
) -> NamedSharding:
    parts = [tuple(part) if isinstance(part, list) else part for part in axes]
    spec = jax.P(*parts, unreduced=set(unreduced), reduced=set(reduced))
    return NamedSharding(mesh, spec, memory_kind=kind)


def _single(place: Any, memory_kind: str | None) -> SingleDeviceSharding:
    return SingleDeviceSharding(_device(*place), memory_kind=memory_kind)


def mesh_of(devices: Iterable[jax.Device], axes: Mapping[str, int], types: Any) -> Mesh:
    """Returns a mesh of devices, in the order given.

    Args:
        devices: The devices.
        axes: The names of its axes, and their sizes.
        types: The types of its axes.
    """
    grid = np.empty(math.prod(axes.values()), dtype=object)
    grid[:] = [*devices]
    return Mesh(grid.reshape([*axes.values()]), (*axes,), axis_types=tuple(types))


def _ref(held: Any) -> Any:
    return held if issubclass(type(held), LostValue) else exact.make_ref(held)


def _keys(words: Any, impl: Any) -> Any:
    is_lost = issubclass(type(words), LostValue)
    return words if is_lost else jax.random.wrap_key_data(words, impl=impl)


def _array(facts: Facts, sharding: Any, origin: PlainOrigin | None, parts: int | list[Part]) -> Any:
    assert _reads is not None
    try:
        placed = (
            _reads.parts(parts, sharding)
            if isinstance(parts, int)
            else [(device_at(place), *part) for place, *part in parts]
        )
    except pickle.PicklingError as error:
        return _reads.lost(f"{facts[1]}{facts[0]}", error)
    array = _made(facts, sharding, placed)
    if origin is not None:
        ORIGINS.carry((origin[0], Made(*origin[1])), array)
    return array


def _made(facts: Facts, sharding: Any, parts: list[Part]) -> jax.Array:
    """Makes an array of this process's parts of it, with no word to other processes."""
    sizes, dtype, weak, committed, layout = facts
    shape = tuple(sizes)
    kind = jax.numpy.dtype(dtype)
    if kind.itemsize >= _WIDE and not jax.config.read("jax_enable_x64"):
        with jax.enable_x64(True):
            return _made(facts, sharding, parts)
    put = [_put(part, sharding.memory_kind, layout) for part in parts]
    array = jax.make_array_from_single_device_arrays(shape, sharding, put, dtype=kind)
    if committed and not weak:
        return array
    aval: Any = array.aval
    return exact.make_array(aval.update(weak_type=weak), sharding, put, committed=committed)


def _put(part: Part, memory_kind: str | None, layout: Any) -> jax.Array:
    device, dtype, shape, data = part
    elements = np.frombuffer(data, dtype=np.uint8).view(numpy_dtype(dtype)).reshape(shape)
    place: Any = SingleDeviceSharding(device, memory_kind=memory_kind)
    put: jax.Array = jax.device_put(elements, place if layout is None else Format(layout, place))
    return put
