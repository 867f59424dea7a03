"""Digests of what JAX takes as equal on all processes without looking."""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnb.engine._jax_internals import dispatch

MAX_ARRAY_BYTES = 4 << 10
"""A larger array of JAX's on this process alone is not looked at: it would have to be waited for,
and on a GPU copied."""

SAMPLED_BYTES = 1 << 20
"""Of a larger NumPy array so much is looked at, spread over it: JAX itself copies all of it."""

_SAMPLES = 256


def digest(arguments: Iterable[Any]) -> int:
    """Returns a digest of the numbers, NumPy arrays and small local arrays among arguments.

    Arrays that span processes are not looked at: the processes' replicas may differ all the same
    (a pull compares them).

    Returns:
        A checksum, 0 if there is none of these. It is for accidents, not against malice.
    """
    found = 0
    for argument in arguments:
        if isinstance(argument, jax.Array):
            if (words := _small_and_local(argument)) is not None:
                # A replica on each local device, or one device: any of them will do.
                found = _of_host_array(np.asarray(words), found)
        elif isinstance(argument, int | float | complex):
            found = zlib.crc32(repr(argument).encode(), found) or 1
        else:
            found = _of_host_array(np.asarray(argument), found)
    return found


def may_differ(argument: Any) -> bool:
    """Whether arguments of this kind (type and sharding) are looked at."""
    return not isinstance(argument, jax.Array) or argument.is_fully_addressable


def _small_and_local(array: jax.Array) -> jax.Array | None:
    """Returns what is to be looked at of an array, of keys their words; None for nothing."""
    if not array.is_fully_addressable or array.is_deleted():
        return None
    is_key = jnp.issubdtype(array.dtype, jax.dtypes.prng_key)
    words: jax.Array | None = dispatch.key_words(array) if is_key else array
    if words is None or words.nbytes > MAX_ARRAY_BYTES:
        return None
    return words if next(iter(words.devices())).platform == "cpu" else None


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
