"""Digests of what JAX takes as equal on all processes without looking."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnb.engine._jax_internals import dispatch
from jaxnb.engine._jax_internals.arrays import host_words

MAX_ARRAY_BYTES = 4 << 10
"""A larger array of JAX's on this process alone is not looked at: it would have to be waited for,
and on a GPU copied."""

SAMPLED_BYTES = 1 << 20
"""Of a larger NumPy array so much is looked at, spread over it: JAX itself copies all of it."""

_SAMPLES = 256


def digest(arguments: Iterable[Any], *, replicas: bool = False) -> int:
    """Returns a digest of the numbers, NumPy arrays and small local arrays among arguments.

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
                count = 1 if words.is_fully_replicated else words.sharding.num_devices
                for i in range(count):
                    found = _of_host_array(host_words(words.addressable_data(i)), found)
        elif isinstance(argument, int | float | complex):
            found = zlib.crc32(repr(argument).encode(), found) or 1
        elif _is_of_host(argument):
            found = _of_host_array(np.asarray(argument), found)
    return found


def may_differ(argument: Any) -> bool:
    """Whether an argument is looked at; so are all others of its type, shape and sharding."""
    if isinstance(argument, jax.Array):
        return _is_small_and_whole(argument)
    return isinstance(argument, int | float | complex) or _is_of_host(argument)


def _is_of_host(argument: Any) -> bool:
    """Whether NumPy can look at an argument without a dispatch: a ref would be read by one."""
    is_of_numpy = isinstance(argument, np.ndarray | np.generic)
    return is_of_numpy or type(argument).__name__ == "TypedNdArray"


def _is_key(array: jax.Array) -> bool:
    return bool(jnp.issubdtype(array.dtype, jax.dtypes.prng_key))


def _is_small_and_whole(array: jax.Array) -> bool:
    """Whether this process has all of an array, and may look at it."""
    # The most of JAX's own kinds of keys have 16 bytes.
    item_bytes = 16 if _is_key(array) else array.dtype.itemsize
    if array.size * item_bytes > MAX_ARRAY_BYTES:
        return False
    device: Any = next(iter(array.sharding.device_set))
    is_whole = array.is_fully_addressable or array.is_fully_replicated
    return is_whole and device.platform == "cpu"


def _looked_at(array: jax.Array, replicas: bool) -> jax.Array | None:
    """Returns what is to be looked at of an array, of keys their words; None for nothing."""
    if not (replicas or array.is_fully_addressable):
        return None  # first: what most dispatches are given needs no other question
    if not _is_small_and_whole(array) or array.is_deleted():
        return None
    words: jax.Array | None = dispatch.key_words(array) if _is_key(array) else array
    if words is None or words.is_fully_addressable:
        return words
    return words.addressable_data(0)


def _of_host_array(array: np.ndarray[Any, Any], before: int) -> int:
    if array.dtype.hasobject:
        return before
    if array.nbytes > SAMPLED_BYTES and array.flags.c_contiguous:
        flat = array.reshape(-1).view(np.uint8)
        step, width = len(flat) // _SAMPLES, SAMPLED_BYTES // _SAMPLES
        for start in range(0, len(flat) - width + 1, step):
            before = zlib.crc32(flat[start : start + width].data, before)
        return zlib.crc32(flat[-width:].data, before) or 1
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, before) or 1
