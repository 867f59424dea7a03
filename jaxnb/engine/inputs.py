"""Digests of what JAX takes as equal on all processes without looking."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnb.engine import digests
from jaxnb.engine._jax_internals import dispatch
from jaxnb.engine._jax_internals.arrays import host_words

MAX_REPLICA_BYTES = 4 << 10
"""Larger replicas that a recorded dispatch has computed are not looked at in strict mode."""

_SMALL_BYTES = 4 << 10
"""Up to here zlib is faster, which takes half a microsecond to be called."""

_DIGEST = "_jaxnb_input"


def digest(arguments: Iterable[Any], *, replicas: bool = False) -> int:
    """Returns a digest of the numbers, NumPy arrays and local arrays among arguments.

    NumPy arrays are read each time, as JAX copies them each time. Arrays of JAX's on this process
    alone are waited for and read once; on an accelerator they are not looked at: to copy each to
    the host would stop what is queued there.

    Args:
        arguments: What is given to a computation.
        replicas: Whether this process's replica counts too, of small arrays of which every
            device has one. It is waited for.

    Returns:
        A checksum, 0 if there is none of these. It is for accidents, not against malice.
    """
    found = 0
    for argument in arguments:
        if isinstance(argument, jax.Array):
            if (words := _looked_at(argument, replicas)) is not None:
                # A replica on each local device, or one device: any of them will do.
                found = _of_array(words, found)
        elif isinstance(argument, int | float | complex):
            found = zlib.crc32(repr(argument).encode(), found & 0xFFFFFFFF) or 1
        elif _is_of_host(argument):
            found = _of_host_array(np.asarray(argument), found)
    return found


def may_differ(argument: Any) -> bool:
    """Whether an argument is looked at; so are all others of its type, shape and sharding."""
    if isinstance(argument, jax.Array):
        return _is_whole(argument)
    return isinstance(argument, int | float | complex) or _is_of_host(argument)


def _is_of_host(argument: Any) -> bool:
    """Whether NumPy can look at an argument without a dispatch: a ref would be read by one."""
    is_of_numpy = isinstance(argument, np.ndarray | np.generic)
    return is_of_numpy or type(argument).__name__ == "TypedNdArray"


def _is_key(array: jax.Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def _is_whole(array: jax.Array) -> bool:
    """Whether this process has all of an array, and may look at it."""
    device: Any = next(iter(array.sharding.device_set))
    if device.platform != "cpu":
        return False
    return array.is_fully_addressable or (array.is_fully_replicated and _is_small(array))


def _is_small(array: jax.Array) -> bool:
    # The most of JAX's own kinds of keys have 16 bytes.
    item_bytes = 16 if _is_key(array) else array.dtype.itemsize
    return array.size * item_bytes <= MAX_REPLICA_BYTES


def _looked_at(array: jax.Array, replicas: bool) -> jax.Array | None:
    """Returns what is to be looked at of an array, of keys their words; None for nothing."""
    if not (replicas or array.is_fully_addressable):
        return None  # first: what most dispatches are given needs no other question
    if not _is_whole(array) or array.is_deleted():
        return None
    words: jax.Array | None = dispatch.key_words(array) if _is_key(array) else array
    if words is None or words.is_fully_addressable:
        return words
    return words.addressable_data(0)


def _of_array(array: jax.Array, before: int) -> int:
    if array.size * array.dtype.itemsize <= _SMALL_BYTES:
        return _of_parts(array, before)
    known = array.__dict__.get(_DIGEST)
    if known is None:  # JAX's arrays do not change
        known = array.__dict__[_DIGEST] = _of_parts(array, 0)
    return hash((before, known))


def _of_parts(array: jax.Array, before: int) -> int:
    count = 1 if array.is_fully_replicated else array.sharding.num_devices
    for i in range(count):
        before = _of_host_array(host_words(array.addressable_data(i)), before)
    return before


def _of_host_array(array: np.ndarray[Any, Any], before: int) -> int:
    if array.dtype.hasobject:
        return before
    if array.nbytes > _SMALL_BYTES:
        seed = before & 0xFFFFFFFFFFFFFFFF
        return int.from_bytes(digests.digest(array, seed)[:7], "big") or 1
    words = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return zlib.crc32(words.data, before & 0xFFFFFFFF) or 1
