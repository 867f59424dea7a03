"""Forming the group anew in living processes, with their variables.

After a collective has gone wrong the clique of the processes stays broken, and what is still
pending would pair with the wrong one later. So each process copies its shards to host memory,
drops its backends and its client, joins the others at a new coordination service, and puts the
arrays back on the new devices, wherever the old ones were: under names, in containers, in
closures.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jaxnb.engine import bootstrap, shards
from jaxnb.engine.layouts import dtype_facts
from jaxnb.engine.rebinding import Rebinder, objects_of
from jaxnb.model import Reformed, ReformRequest

Devices = Mapping[int, jax.Device]


def reform(request: ReformRequest, process_index: int, namespace: dict[str, Any]) -> Reformed:
    """Takes this process out of its group and into a new one; its variables are kept.

    Blocks until every process of the group has joined. Functions are compiled anew when they
    are next called.

    Args:
        request: Where the new coordination service is.
        process_index: This process.
        namespace: The variables.

    Raises:
        MemoryError: There is no room for the copies; nothing has changed.
    """
    started = time.perf_counter()
    kept = {id(thing): _put_away(thing) for thing in objects_of(namespace, _is_of_devices)}
    arrays = [thing for thing in kept.values() if isinstance(thing, _KeptArray)]
    failed = [thing.text for thing in kept.values() if isinstance(thing, _Lost)]
    Rebinder(lambda value: kept.get(id(value), value)).rebind(namespace)
    kept.clear()
    ambient = _put_away_ambient()
    lost = [*failed, *_left_behind()]
    left_service = bootstrap.leave()
    bootstrap.join_again(request.coordinator_address, request.timeout_seconds)
    devices = {device.id: device for device in jax.devices()}

    def restore(value: Any) -> Any:
        return value.restore(devices) if isinstance(value, _Kept) else value

    Rebinder(restore).rebind(namespace)
    for choose, thing in ambient:
        choose(thing.restore(devices))
    return Reformed(
        process_index=process_index,
        arrays=len(arrays),
        nbytes=sum(array.nbytes for array in arrays),
        lost=tuple(lost),
        collective_ports=bootstrap.collective_ports(),
        left_service=left_service,
        seconds=time.perf_counter() - started,
    )


def _put_away_ambient() -> list[tuple[Callable[[Any], object], _Kept]]:
    """Takes back what the user has set for all calls; returns how to set each again, and to what.

    That is the mesh of ``jax.set_mesh`` and the default device.
    """
    found: list[tuple[Callable[[Any], object], _Kept]] = []
    mesh = jax.sharding.get_mesh()
    if not mesh.empty:
        found.append((jax.set_mesh, _KeptMesh(mesh)))
        jax.set_mesh(None)
    device: Any = getattr(jax.config, "jax_default_device", None)
    if isinstance(device, jax.Device):
        found.append((partial(jax.config.update, "jax_default_device"), _KeptDevice(device)))
        jax.config.update("jax_default_device", None)
    return found


def _left_behind() -> list[str]:
    """Returns the arrays that something holds which was not looked into."""
    # The frames of the error that ended the cell hold what it was about, for %debug.
    for name in ("last_exc", "last_value", "last_traceback"):
        setattr(sys, name, None)
    _clear_finished_frames()
    jax.clear_caches()
    gc.collect()
    return [_type_text(array) for array in jax.live_arrays() if not array.is_deleted()]


def _clear_finished_frames() -> None:
    """Drops the local variables of calls that have ended but are still in a traceback.

    IPython keeps the traceback of the last error, users keep exceptions.
    """
    suspendable = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    for thing in gc.get_objects():
        if type(thing) is TracebackType and not thing.tb_frame.f_code.co_flags & suspendable:
            with contextlib.suppress(RuntimeError):  # it has not ended
                thing.tb_frame.clear()
                # Who has read this has left a copy (up to Python 3.12), which is renewed.
                _ = thing.tb_frame.f_locals


def _type_text(array: jax.Array) -> str:
    return f"{dtype_facts(array.dtype).name}{list(array.shape)}"


def _is_of_devices(value: Any) -> bool:
    """Whether a value is of no use once its backend is gone."""
    if isinstance(value, jax.core.Tracer):
        return False
    if isinstance(value, jax.Array):
        return not value.is_deleted() and _is_known(value.sharding)
    return isinstance(value, Mesh | jax.Device | jax.stages.Compiled) or _is_known(value)


def _is_known(sharding: Any) -> bool:
    return isinstance(sharding, SingleDeviceSharding) or (
        isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
    )


def _put_away(value: Any) -> _Kept:
    if isinstance(value, jax.Array):
        try:
            return _KeptArray(value)
        except MemoryError:
            raise
        except Exception:  # what JAX raised in the computation that was to give it
            return _Lost(f"{_type_text(value)} (its computation was broken off; it is None now)")
    if isinstance(value, jax.stages.Compiled):
        return _Lost("what lower(...).compile() gave (compile it again; it is None now)")
    if isinstance(value, Mesh):
        return _KeptMesh(value)
    if isinstance(value, jax.Device):
        return _KeptDevice(value)
    return _kept_sharding(value)


def _kept_sharding(sharding: Any) -> _Kept:
    if isinstance(sharding, NamedSharding):
        return _KeptNamedSharding(sharding)
    return _KeptSingleDeviceSharding(sharding)


class _Kept:
    """Stands for something of a backend while there is none; refers to nothing of the old one."""

    def restore(self, devices: Devices) -> Any:
        """Returns the thing on the new devices."""
        raise NotImplementedError


class _Lost(_Kept):
    """Something that cannot be kept: an array whose computation was broken off, say."""

    def __init__(self, text: str) -> None:
        self.text = text

    def restore(self, devices: Devices) -> None:
        return None


class _KeptDevice(_Kept):
    def __init__(self, device: Any) -> None:
        self._id = device.id

    def restore(self, devices: Devices) -> Any:
        return devices[self._id]


class _KeptMesh(_Kept):
    def __init__(self, mesh: Mesh) -> None:
        self._ids = [device.id for device in mesh.devices.flat]
        self._shape = mesh.devices.shape
        self._axis_names, self._axis_types = mesh.axis_names, mesh.axis_types

    def restore(self, devices: Devices) -> Mesh:
        grid = np.empty(len(self._ids), dtype=object)
        grid[:] = [devices[i] for i in self._ids]
        return Mesh(grid.reshape(self._shape), self._axis_names, axis_types=self._axis_types)


class _KeptNamedSharding(_Kept):
    def __init__(self, sharding: NamedSharding) -> None:
        assert isinstance(sharding.mesh, Mesh)
        self._mesh = _KeptMesh(sharding.mesh)
        self._spec, self._memory_kind = sharding.spec, sharding.memory_kind

    def restore(self, devices: Devices) -> NamedSharding:
        mesh = self._mesh.restore(devices)
        return NamedSharding(mesh, self._spec, memory_kind=self._memory_kind)


class _KeptSingleDeviceSharding(_Kept):
    def __init__(self, sharding: SingleDeviceSharding) -> None:
        device: Any = next(iter(sharding.device_set))
        self._id: int = device.id
        self._memory_kind = sharding.memory_kind

    def restore(self, devices: Devices) -> SingleDeviceSharding:
        return SingleDeviceSharding(devices[self._id], memory_kind=self._memory_kind)


class _KeptArray(_Kept):
    """An array, its shards of this process copied to host memory.

    Copied, as the host's view of a CPU array would keep the old backend and its threads.
    """

    def __init__(self, array: jax.Array) -> None:
        self._shape, self._dtype = array.shape, array.dtype
        self._is_committed = array.committed
        self._sharding = _kept_sharding(array.sharding)
        self._key_impl = None
        if jax.numpy.issubdtype(array.dtype, jax.dtypes.prng_key):
            self._key_impl = jax.random.key_impl(array)
        self._data = {
            shard.device.id: np.array(shards.host_view(shard.data))
            for shard in array.addressable_shards
        }
        self.nbytes = sum(part.nbytes for part in self._data.values())

    def restore(self, devices: Devices) -> jax.Array:
        sharding = self._sharding.restore(devices)
        if not self._is_committed:  # it goes along to whatever devices it is used on
            with jax.default_device(next(iter(sharding.device_set))):
                (part,) = (jax.device_put(part) for part in self._data.values())
            return part if self._key_impl is None else self._as_keys(part)
        parts = [jax.device_put(part, devices[i]) for i, part in self._data.items()]
        if sharding.memory_kind is not None:
            parts = [
                jax.device_put(p, SingleDeviceSharding(d, memory_kind=sharding.memory_kind))
                for p, d in ((p, next(iter(p.devices()))) for p in parts)
            ]
        if self._key_impl is not None:
            parts = [self._as_keys(part) for part in parts]
        return jax.make_array_from_single_device_arrays(
            self._shape, sharding, parts, dtype=self._dtype
        )

    def _as_keys(self, words: jax.Array) -> jax.Array:
        keys: jax.Array = jax.random.wrap_key_data(words, impl=self._key_impl)
        return keys
