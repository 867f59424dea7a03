"""Arrays, refs and devices, made again in another process: each process carries its own shards."""

from __future__ import annotations

import functools
import math
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import jax
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jaxnb.arrays.gathered import numpy_dtype
from jaxnb.arrays.process_describe import dtype_facts, unreduced_axes
from jaxnb.arrays.process_held import as_bytes
from jaxnb.arrays.process_names import paths_to
from jaxnb.compat import jax_arrays as exact
from jaxnb.compat.jax_arrays import (
    array_of_ref_now,
    buffer_of,
    device_arrays,
    host_words,
    is_deleted,
)
from jaxnb.compat.jax_waits import wait_until_ready
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.model.dispatches import Made, Origin
from jaxnb.recovery.fit_to_size import SavedArray, SavedPart
from jaxnb.wire.pickling import OutOfBand

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


Place = tuple[str, int, int]
"""A device: its platform, its process, and its place among that process's devices."""

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


def reduced(value: Any, check: Check) -> Any:
    """Tells pickle how an array, a ref or a device is made again.

    An array comes back with its own shards of this process: dtype, weak type, layout, memory kind,
    sharding, and whether it is committed and deleted; with attributes that were added to it.

    Args:
        value: Anything.
        check: Looks at each array before it is read.

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
        return _device, place_of(value)
    if kind is Mesh and not value.empty:
        places = [place_of(device) for device in value.devices.flat]
        return _mesh, (places, dict(value.shape), tuple(value.axis_types))
    held = array_of_ref_now(value)
    if held is not None:
        return exact.make_ref, (held,)
    if not issubclass(kind, jax.Array):
        return NotImplemented
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return _keys, (buffer_of(value), jax.random.key_impl(value))
    return _reduced_array(value, check)


def _reduced_array(array: jax.Array, check: Check) -> Any:
    parts = None
    if not is_deleted(array):
        whole = check(array)
        parts = [(place_of(device), *part) for device, *part in parts_of(array, whole)]
    arguments = facts_of(array), array.sharding, plain_origin(ORIGINS.of(array)), parts
    return _array, arguments, added_attributes(array) or None


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
    own = device_arrays(array)
    return [_part(each, held) for each, held in zip(own, whole or own, strict=True)]


def _part(array: jax.Array, held: jax.Array) -> Part:
    """Returns what one device is to have: the device, and the elements in host memory."""
    (device,) = array.sharding.device_set
    words = host_words(held)
    return device, words.dtype.name, words.shape, pickle.PickleBuffer(as_bytes(words).data)


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


def own_device(place: tuple[str, int]) -> jax.Device:
    """Returns a device of this process by its platform, and its place among those."""
    platform, number = place
    return device_at((platform, jax.process_index(), number))


def device_at(where: Place) -> jax.Device:
    """Returns a device by its platform, its process, and its place among those of the process.

    Raises:
        LookupError: There is none.
    """
    platform, process_index, place = where
    found = _devices(platform).get((process_index, place))
    if found is None:
        raise LookupError(f"process {process_index} has no {platform} device {place} here")
    return found


class Resizes(Protocol):
    """What makes things for a group of another size."""

    def device(self, place: Place) -> jax.Device:
        """Returns the device that stands for one of before."""

    def mesh(self, places: Sequence[Place], mesh: Mapping[str, int], types: Any) -> Mesh:
        """Returns the mesh that stands for one of before."""

    def parts(self, number: int, sharding: Any, own: Sequence[Part]) -> list[Part]:
        """Returns what this process's devices are to have of an array."""


_resizing: Resizes | None = None


def set_resizing(how: Resizes | None) -> None:
    """Sets what makes devices, meshes and arrays over several processes from now on."""
    global _resizing
    _resizing = how


def _device(*place: Any) -> jax.Device:
    return device_at(place) if _resizing is None else _resizing.device(place)


def _mesh(places: list[Place], shape: dict[str, int], types: Any) -> Mesh:
    if _resizing is not None:
        return _resizing.mesh(places, shape, types)
    return mesh_of(map(device_at, places), shape, types)


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


def _keys(words: jax.Array, impl: Any) -> jax.Array:
    keys: jax.Array = jax.random.wrap_key_data(words, impl=impl)
    return keys


def _array(
    facts: Facts,
    sharding: Any,
    origin: PlainOrigin | None,
    parts: list[Part] | None,
    number: int | None = None,
) -> jax.Array:
    if _resizing is not None and number is not None:
        parts = _resizing.parts(number, sharding, parts or ())
    elif parts is not None:
        if _resizing is not None and not sharding.is_fully_addressable:
            raise pickle.PicklingError("it was packed for a group of the same size")
        parts = [(_device(*place), *part) for place, *part in parts]
    array = made(facts, sharding, parts)
    set_origin(array, origin)
    return array


def set_origin(array: jax.Array, origin: PlainOrigin | None) -> None:
    """Gives an array the origin that it had in another process."""
    if origin is not None:
        ORIGINS.carry((origin[0], Made(*origin[1])), array)


def made(facts: Facts, sharding: Any, parts: list[Part] | None) -> jax.Array:
    """Makes an array of this process's parts of it, with no word to other processes."""
    sizes, dtype, weak, committed, layout = facts
    shape = tuple(sizes)
    kind = jax.numpy.dtype(dtype)
    if parts is None:
        deleted: jax.Array = _deleted(shape, kind, weak, sharding, committed)
        return deleted
    if kind.itemsize >= _WIDE and not jax.config.read("jax_enable_x64"):
        with jax.enable_x64(True):
            return made(facts, sharding, parts)
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


def _deleted(shape: Any, dtype: Any, weak: bool, sharding: Any, committed: bool) -> Any:
    of: Any = jax.ShapeDtypeStruct(shape, dtype, sharding=sharding, weak_type=weak)
    aval = jax.typeof(of)
    devices = sharding.addressable_devices_indices_map(shape)  # in order
    empty = np.empty((0,), dtype)
    kind = sharding.memory_kind
    parts = [jax.device_put(empty, SingleDeviceSharding(d, memory_kind=kind)) for d in devices]
    made = exact.make_deleted_array(aval, sharding, parts, committed=committed)
    if made is None:
        raise LookupError("this JAX has no way to make an array that has been deleted")
    return made


class Listing:
    """Lists arrays while they are packed, and has their parts left out of the pickle."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begins anew: the same values are packed once more."""
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

    def numbered(self, value: Any, reduced: Any, name: str, buffers: OutOfBand) -> Any:
        """Notes an array that is about to be pickled; returns what a ``reducer_override`` returns.

        Args:
            value: What is pickled.
            reduced: What makes it again.
            name: The variable that it is in.
            buffers: Takes its parts next.
        """
        if not is_listed(value):
            if isinstance(reduced[1][0], jax.Array):  # keys and refs are made of one
                self._holders[id(reduced[1][0])] = value
            return reduced
        maker, (*arguments, parts), attributes = reduced
        sharding: Any = value.sharding
        is_named = _is_named(sharding)
        is_of_all = is_named and _is_of_all(sharding.mesh)
        sums = unreduced_axes(sharding)
        found: tuple[SavedPart, ...] = ()
        if is_of_all and not sums:
            first = len(buffers.buffers)
            buffers.take_next = len(parts)
            places = sharding.addressable_devices_indices_map(value.shape)
            found = tuple(
                SavedPart(box_of(places[device_at(place)], value.shape), dtype, first + k)
                for k, (place, dtype, _, _) in enumerate(parts)
            )
        origin = plain_origin(ORIGINS.of(self._holders.get(id(value), value)))
        needs = [place_of(device)[1:] for device in sharding.device_set]
        self._arrays.append(
            SavedArray(
                name=name,
                path="",
                origin=repr(origin) if origin is not None else "",
                shape=tuple(value.shape),
                dtype=str(value.dtype),
                mesh=dict(sharding.mesh.shape) if is_named else {},
                is_of_all=is_of_all,
                needs=(1 + max(p for p, _ in needs), 1 + max(d for _, d in needs)),
                spec=_spec(sharding.spec, value.ndim) if is_named else ((),) * value.ndim,
                parts=found,
                unreduced=tuple(sorted(sums)),
            )
        )
        self._met.append(value)
        return maker, (*arguments, parts, len(self._arrays) - 1), attributes


def is_listed(value: Any) -> bool:
    """Whether a value is an array over several processes, or all devices, that can be read."""
    if (
        not is_array(value)
        or jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
        or is_deleted(value)
    ):
        return False
    sharding: Any = value.sharding
    if not sharding.is_fully_addressable:
        return True
    return _is_named(sharding) and _is_of_all(sharding.mesh)


def _is_named(sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)


def _is_of_all(mesh: Mesh) -> bool:
    return bool(mesh.size == len(jax.devices(mesh.devices.flat[0].platform)))


def box_of(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Returns the part of an array that an index is, as JAX gives it."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _spec(spec: Any, ndim: int) -> tuple[tuple[str, ...], ...]:
    parts = [*spec.partitions, *[None] * (ndim - len(spec.partitions))]
    return tuple(
        part if isinstance(part, tuple) else (part,) if isinstance(part, str) else ()
        for part in parts
    )
