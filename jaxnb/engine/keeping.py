"""Putting away what belongs to a backend, and having it back on the next one's devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jaxnb.engine import shards
from jaxnb.engine.layouts import dtype_facts, shards_of, unreduced_axes
from jaxnb.engine.lost import LostArray
from jaxnb.engine.origins import ORIGINS

Devices = Mapping[int, jax.Device]


def type_text(array: jax.Array) -> str:
    """Returns an array's type: ``"float32[4, 2]"``."""
    return f"{dtype_facts(array.dtype).name}{list(array.shape)}"


def is_of_devices(value: Any) -> bool:
    """Whether a value is of no use once its backend is gone."""
    if isinstance(value, jax.core.Tracer):
        return False
    if isinstance(value, jax.Array):
        return not value.is_deleted() and is_known(value.sharding)
    return isinstance(value, Mesh | jax.Device | jax.stages.Compiled) or is_known(value)


def is_known(sharding: Any) -> bool:
    """Whether a sharding is of a kind that can be made again on other devices."""
    return isinstance(sharding, SingleDeviceSharding) or (
        isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
    )


def put_away(value: Any) -> Kept:
    """Returns what stands for something of a backend while there is none.

    Raises:
        MemoryError: There is no room for the copy of an array.
    """
    if isinstance(value, jax.Array):
        try:
            return KeptArray(value)
        except MemoryError:
            raise
        except Exception:  # what JAX raised in the computation that was to give it
            return Unkept(f"{type_text(value)} (its computation was broken off; it is None now)")
    if isinstance(value, jax.stages.Compiled):
        return Unkept("what lower(...).compile() gave (compile it again; it is None now)")
    if isinstance(value, Mesh):
        return KeptMesh(value)
    if isinstance(value, jax.Device):
        return KeptDevice(value)
    return _kept_sharding(value)


def _kept_sharding(sharding: Any) -> Kept:
    if isinstance(sharding, NamedSharding):
        return _KeptNamedSharding(sharding)
    return _KeptSingleDeviceSharding(sharding)


def lost_with(array: jax.Array, dead: frozenset[int]) -> bool:
    """Whether dead processes had shards of an array that nobody else has."""
    if not dead or array.is_fully_addressable:
        return False
    found = shards_of(array.sharding, tuple(array.shape))
    gone = [shard for shard in found if shard.process_index in dead]
    if unreduced_axes(array.sharding):  # each device has a summand of its own
        return bool(gone)
    held = {shard.index for shard in found if shard.process_index not in dead}
    return any(g.index not in held and all(b > a for a, b in g.index) for g in gone)


class Kept:
    """Stands for something of a backend while there is none; refers to nothing of the old one."""

    def restore(self, devices: Devices) -> Any:
        """Returns the thing on the new devices."""
        raise NotImplementedError


class Unkept(Kept):
    """Something that cannot be kept: an array whose computation was broken off, say."""

    def __init__(self, text: str) -> None:
        self.text = text

    def restore(self, devices: Devices) -> None:
        """Returns None."""
        return


class KeptDevice(Kept):
    """A device, which has the same number in the next backend."""

    def __init__(self, device: Any) -> None:
        self._id = device.id

    def restore(self, devices: Devices) -> Any:
        """Returns the device of that number."""
        return devices[self._id]


class KeptMesh(Kept):
    """A mesh."""

    def __init__(self, mesh: Mesh) -> None:
        self._ids = [device.id for device in mesh.devices.flat]
        self._shape = mesh.devices.shape
        self._axis_names, self._axis_types = mesh.axis_names, mesh.axis_types

    def restore(self, devices: Devices) -> Mesh:
        """Returns the mesh of the new devices."""
        grid = np.empty(len(self._ids), dtype=object)
        grid[:] = [devices[i] for i in self._ids]
        return Mesh(grid.reshape(self._shape), self._axis_names, axis_types=self._axis_types)


class _KeptNamedSharding(Kept):
    def __init__(self, sharding: NamedSharding) -> None:
        assert isinstance(sharding.mesh, Mesh)
        self._mesh = KeptMesh(sharding.mesh)
        self._spec, self._memory_kind = sharding.spec, sharding.memory_kind

    def restore(self, devices: Devices) -> NamedSharding:
        mesh = self._mesh.restore(devices)
        return NamedSharding(mesh, self._spec, memory_kind=self._memory_kind)


class _KeptSingleDeviceSharding(Kept):
    def __init__(self, sharding: SingleDeviceSharding) -> None:
        device: Any = next(iter(sharding.device_set))
        self._id: int = device.id
        self._memory_kind = sharding.memory_kind

    def restore(self, devices: Devices) -> SingleDeviceSharding:
        return SingleDeviceSharding(devices[self._id], memory_kind=self._memory_kind)


class LostShards(Kept):
    """An array that lost shards with a process; the others' are kept to look at.

    Args:
        array: The array.
        name: Where it is, as a path; empty if it is under no name.
        dead: The processes that have died.
    """

    def __init__(self, array: jax.Array, name: str, dead: frozenset[int]) -> None:
        had = {s.process_index for s in shards_of(array.sharding, tuple(array.shape))}
        lost = ", ".join(map(str, sorted(had & dead)))
        processes = "process" if len(had & dead) == 1 else "processes"
        self.name = name or type_text(array)
        self._what = (
            f"`{self.name}` ({type_text(array)}) lost the shards of {processes} {lost}, which "
            "died and of which there was no replica"
        )
        self._shards: tuple[Any, ...] = ()
        try:
            self._shards = tuple(
                (shard.index, np.array(shards.host_view(shard.data)))
                for shard in array.addressable_shards
            )
        except Exception:  # what JAX raised in the computation that was to give it
            self._what += "; its computation was broken off"

    def restore(self, devices: Devices) -> LostArray:
        """Returns what raises at each use."""
        return LostArray(self._what, self._shards)


class KeptArray(Kept):
    """An array, its shards of this process copied to host memory.

    Copied, as the host's view of a CPU array would keep the old backend and its threads.
    """

    def __init__(self, array: jax.Array) -> None:
        self._shape, self._dtype = array.shape, array.dtype
        self._is_committed = array.committed
        self._sharding = _kept_sharding(array.sharding)
        self._key_impl = key_impl(array)
        self._origin = ORIGINS.of(array)
        self._data = {
            shard.device.id: np.array(shards.host_view(shard.data))
            for shard in array.addressable_shards
        }
        self.nbytes = sum(part.nbytes for part in self._data.values())

    def restore(self, devices: Devices) -> jax.Array:
        """Returns the array, made of its copied shards."""
        sharding = self._sharding.restore(devices)
        if not self._is_committed:
            (part,) = self._data.values()
            return uncommitted(part, sharding, self._key_impl)
        array = assembled(self._shape, self._dtype, sharding, self._data, self._key_impl)
        ORIGINS.carry(self._origin, array)
        return array


def key_impl(array: jax.Array) -> Any:
    """Returns which generator an array of PRNG keys is for; None for other arrays."""
    is_key = jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key)
    return jax.random.key_impl(array) if is_key else None


def uncommitted(part: Any, sharding: Any, impl: Any) -> jax.Array:
    """Returns an array that goes along to whatever devices it is used on."""
    with jax.default_device(next(iter(sharding.device_set))):
        array = jax.device_put(part)
    return array if impl is None else _as_keys(array, impl)


def assembled(
    shape: tuple[int, ...], dtype: Any, sharding: Any, data: Mapping[int, Any], impl: Any
) -> jax.Array:
    """Returns an array made of this process's shards, with no word to other processes.

    Args:
        shape: The whole array's.
        dtype: Its dtype.
        sharding: Its sharding, on devices that there are.
        data: This process's shards on the host, by device id.
        impl: See :func:`key_impl`.
    """
    devices = {device.id: device for device in sharding.addressable_devices}
    parts = [jax.device_put(part, devices[i]) for i, part in data.items()]
    if sharding.memory_kind is not None:
        parts = [
            jax.device_put(p, SingleDeviceSharding(d, memory_kind=sharding.memory_kind))
            for p, d in ((p, next(iter(p.devices()))) for p in parts)
        ]
    if impl is not None:
        parts = [_as_keys(part, impl) for part in parts]
    return jax.make_array_from_single_device_arrays(shape, sharding, parts, dtype=dtype)


def _as_keys(words: jax.Array, impl: Any) -> jax.Array:
    keys: jax.Array = jax.random.wrap_key_data(words, impl=impl)
    return keys
