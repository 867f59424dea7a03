"""Digests of what JAX takes as equal on all processes without looking."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
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


def is_watched(value: Any) -> bool:
    """Whether a value goes into the digest: a number, a NumPy array, a small local array.

    Arrays that span processes do not: the processes' replicas may differ all the same (a pull
    compares them).
    """
    if not isinstance(value, jax.Array):
        return True
    if not value.is_fully_addressable or value.is_deleted():
        return False
    is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
    words = dispatch.key_words(value) if is_key else value
    if words is None or words.nbytes > MAX_ARRAY_BYTES:
        return False
    return bool(next(iter(words.devices())).platform == "cpu")


def digest(values: Sequence[Any]) -> int:
    """Returns a digest of values that are watched.

    Returns:
        A checksum, 0 if there is none of these. It is for accidents, not against malice.
    """
    found = 0
    for value in values:
        if isinstance(value, jax.Array):
            is_key = jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
            words = dispatch.key_words(value) if is_key else value
            # A replica on each local device, or one device: any of them will do.
            found = _of_host_array(np.asarray(words), found)
        elif isinstance(value, int | float | complex):
            found = zlib.crc32(repr(value).encode(), found) or 1
        else:
            found = _of_host_array(np.asarray(value), found)
    return found


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
