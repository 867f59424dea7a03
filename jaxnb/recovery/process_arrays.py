"""Arrays, refs and devices, made again in another process: each process carries its own shards."""

from __future__ import annotations

import functools
import pickle
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.experimental.layout import Format
from jax.sharding import SingleDeviceSharding

from jaxnb.arrays.dtypes import numpy_dtype
from jaxnb.engine._jax_internals import exact_arrays as exact
from jaxnb.engine._jax_internals.arrays import (
    array_of_ref_now,
    buffer_of,
    device_arrays,
    host_words,
    is_deleted,
)
from jaxnb.engine.exposures import as_bytes
from jaxnb.engine.keeping import added_attributes, special_layout
from jaxnb.engine.layouts import dtype_facts

IsReady = Callable[[jax.Array], bool]
"""Whether the elements of an array may be read: it may wait for them, or not."""


def reduced(value: Any, is_ready: IsReady) -> Any:
    """Tells pickle how an array, a ref or a device is made again.

    An array comes back with its own shards of this process: dtype, weak type, layout, memory kind,
    sharding, and whether it is committed and deleted; with attributes that were added to it.

    Args:
        value: Anything.
        is_ready: See :data:`IsReady`.

    Returns:
        What a ``reducer_override`` returns; NotImplemented for whatever else.

    Raises:
        pickle.PicklingError: It cannot be made again; the message says why.
        Exception: What JAX raised in the computation that was to give it.
    """
    if isinstance(value, jax.core.Tracer):
        raise pickle.PicklingError("a tracer that left its transformation (jit, grad …)")
    if isinstance(value, jax.Device):
        return _device, (value.platform, *_place_of(value))
    held = array_of_ref_now(value)
    if held is not None:
        return exact.make_ref, (held,)
    if not isinstance(value, jax.Array):
        return NotImplemented
    if jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
        return _keys, (buffer_of(value), jax.random.key_impl(value))
    return _reduced_array(value, is_ready)


def _reduced_array(array: jax.Array, is_ready: IsReady) -> Any:
    parts = None
    if not is_deleted(array):
        if not is_ready(array):
            raise pickle.PicklingError("its computation has not ended")
        parts = [_part(each) for each in device_arrays(array)]
    facts = tuple(array.shape), dtype_facts(array.dtype).name, bool(array.weak_type)
    arguments = *facts, array.sharding, bool(array.committed), special_layout(array), parts
    return _array, arguments, _added_attributes(array) or None


def _part(array: jax.Array) -> tuple[Any, ...]:
    """Returns what one device holds: the device, and its elements in host memory."""
    (device,) = array.sharding.device_set
    words = host_words(array)
    return device, words.dtype.name, words.shape, pickle.PickleBuffer(as_bytes(words).data)


def _added_attributes(array: jax.Array) -> dict[str, Any]:
    """Returns what the user has added to an array: not what JAX and jaxnb keep there."""
    added = added_attributes(array)
    return {name: value for name, value in added.items() if not name.startswith("_jaxnb")}


# ------------------------------------------------------------------------- in the new process


@functools.cache
def _devices(platform: str) -> dict[tuple[int, int], jax.Device]:
    devices = jax.devices(platform)
    return {_place_of(device): device for device in devices}


def _place_of(device: jax.Device) -> tuple[int, int]:
    """Returns a device's process, and its place among that process's devices."""
    own = [d for d in jax.devices(device.platform) if d.process_index == device.process_index]
    return device.process_index, own.index(device)


def _device(platform: str, process_index: int, place: int) -> jax.Device:
    found = _devices(platform).get((process_index, place))
    if found is None:
        raise LookupError(f"process {process_index} has no {platform} device {place} here")
    return found


def _keys(words: jax.Array, impl: Any) -> jax.Array:
    keys: jax.Array = jax.random.wrap_key_data(words, impl=impl)
    return keys


def _array(
    shape: tuple[int, ...],
    dtype: str,
    weak: bool,
    sharding: Any,
    committed: bool,
    layout: Any,
    parts: list[tuple[Any, ...]] | None,
) -> jax.Array:
    kind = jax.numpy.dtype(dtype)
    if parts is None:
        deleted: jax.Array = _deleted(shape, kind, weak, sharding, committed)
        return deleted
    put = [_put(part, sharding.memory_kind, layout) for part in parts]
    made = jax.make_array_from_single_device_arrays(shape, sharding, put, dtype=kind)
    if committed and not weak:
        return made
    aval: Any = made.aval
    return exact.make_array(aval.update(weak_type=weak), sharding, put, committed=committed)


def _put(part: tuple[Any, ...], memory_kind: str | None, layout: Any) -> jax.Array:
    device, dtype, shape, data = part
    elements = np.frombuffer(data, dtype=np.uint8).view(numpy_dtype(dtype)).reshape(shape)
    place: Any = SingleDeviceSharding(device, memory_kind=memory_kind)
    put: jax.Array = jax.device_put(elements, place if layout is None else Format(layout, place))
    return put


def _deleted(shape: Any, dtype: Any, weak: bool, sharding: Any, committed: bool) -> Any:
    aval = jax.core.ShapedArray(shape, dtype, weak_type=weak)
    devices = sharding.addressable_devices_indices_map(shape)  # in order
    empty = np.empty((0,), dtype)
    kind = sharding.memory_kind
    parts = [jax.device_put(empty, SingleDeviceSharding(d, memory_kind=kind)) for d in devices]
    made = exact.make_deleted_array(aval, sharding, parts, committed=committed)
    if made is None:
        raise LookupError("this JAX has no way to make an array that has been deleted")
    return made
