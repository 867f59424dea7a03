"""Brings arrays to a sharding; those that are there stay as they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxnb.compiled.process_variants import Given
from jaxnb.errors import UsageError
from jaxnb.labels import plural


def require_devices(call: Given, mesh: Mesh) -> None:
    """Returns if the arrays of a call can be brought to a mesh.

    Raises:
        UsageError: JAX moves global arrays among their own devices only.
    """
    wanted = set(mesh.devices.flat)
    for place in call.places:
        leaf = call.leaves[place]
        if _is_global(leaf) and leaf.sharding.device_set != wanted:
            raise UsageError(
                f"`{call.paths[place]}` is on {plural(len(leaf.sharding.device_set), 'device')}, "
                f"and this mesh has {len(wanted)}; JAX moves "
                "an array over processes among its own devices only. Give a NumPy array."
            )


def _is_global(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and not leaf.is_fully_addressable


def placed(leaf: Any, sharding: NamedSharding) -> jax.Array:
    """Returns an array under a sharding; the one there is stays as it is.

    A global array is moved by a computation of all its processes. Of what each process holds
    for itself every process takes its own parts: the processes must hold the same.
    """
    if _is_global(leaf) or (isinstance(leaf, jax.Array) and jax.process_count() == 1):
        if leaf.sharding == sharding:
            return cast(jax.Array, leaf)
        if _in_order(leaf.sharding) == _in_order(sharding):
            # device_put is not recorded, so processes that part in it would not be told.
            moved = jax.jit(_same, out_shardings=sharding)(leaf)
        else:
            moved = jax.device_put(leaf, sharding)
        return cast(jax.Array, moved)
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        words = placed(np.asarray(jax.random.key_data(leaf)), sharding)
        kind = jax.random.key_impl(leaf)
        wrap = jax.jit(lambda data: jax.random.wrap_key_data(data, impl=kind),
                       out_shardings=sharding)  # fmt: skip
        return cast(jax.Array, wrap(words))
    # Never device_put: of a host array it gathers all processes' copies to compare them.
    host = np.asarray(leaf)
    dtype = jax.dtypes.canonicalize_dtype(host.dtype)
    return jax.make_array_from_callback(
        host.shape, sharding, lambda index: host[index].astype(dtype, copy=False)
    )


def _same(array: Any) -> Any:
    return array


def _in_order(sharding: Any) -> Sequence[int]:
    if isinstance(sharding, NamedSharding):
        return [device.id for device in sharding.mesh.devices.flat]
    return sorted(device.id for device in sharding.device_set)
