"""Digests of arrays' bytes, as fast as memory is read.

The hash is xxHash's XXH3 of 128 bits: on two cores it reads 22–32 GB/s where a copy into fresh
memory makes 11 GB/s, ``zlib.crc32`` 6.7, ``zlib.adler32`` 3.9 and BLAKE2b 1.3. It is for accidents,
not against malice. It runs without the interpreter's lock, so other threads go on meanwhile.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash

MAX_COPY_BYTES = 8 << 20
"""Arrays that are not contiguous are copied in pieces of about this size."""


def digest(array: np.ndarray[Any, Any], seed: int = 0) -> bytes:
    """Digests an array's elements in C order; its shape and dtype are not in it.

    Bits count, not values: 0.0 and -0.0 differ, and so do two NaNs of other bits.

    Args:
        array: Of any dtype without Python objects, any size, contiguous or not. Contiguous ones
            are not copied.
        seed: Goes into the digest.

    Returns:
        16 bytes.
    """
    if array.flags.c_contiguous:
        return xxhash.xxh3_128_digest(_bytes(array), seed)
    total = xxhash.xxh3_128(seed=seed)
    for piece in _pieces(array):
        total.update(_bytes(piece))
    return total.digest()


def _bytes(array: np.ndarray[Any, Any]) -> memoryview:
    # NumPy's own view: dtypes such as bfloat16 have no buffer that Python knows.
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _pieces(array: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    """Returns parts of an array along its first dimension that are small, or contiguous."""
    if array.nbytes <= MAX_COPY_BYTES or array.ndim == 0 or array.flags.c_contiguous:
        return [array]
    if len(array) == 1:
        return _pieces(array[0])
    step = max(1, MAX_COPY_BYTES * len(array) // array.nbytes)
    parts = [array[start : start + step] for start in range(0, len(array), step)]
    return [piece for part in parts for piece in _pieces(part)]
