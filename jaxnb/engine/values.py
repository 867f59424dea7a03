"""The last expression's value: described, digested, and pickled when it is small."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping
from typing import Any

import jax

from jaxnb.engine import shards
from jaxnb.model import ArrayInfo, ValueInfo

MAX_DIGEST_BYTES = 64 << 20
"""Values whose pickle is longer are not compared across processes."""


class _Pickler(pickle.Pickler):
    """Pickles values for a reader that need not have jax: arrays become NumPy or a description."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, jax.Array):
            plain = portable(value)
            return (_same, (plain,))
        return NotImplemented


def _same(value: Any) -> Any:
    return value


class _TooLongError(Exception):
    pass


class _Writer(io.RawIOBase):
    """Digests what is written, and keeps it as long as it is short enough to travel."""

    def __init__(self, max_kept: int, max_digested: int) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._kept: list[bytes] | None = []
        self._size = 0
        self._max_kept = max_kept
        self._max_digested = max_digested

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        self._size += view.nbytes
        if self._size > self._max_digested and self._size > self._max_kept:
            raise _TooLongError
        self._hash.update(view)
        if self._kept is not None and self._size <= self._max_kept:
            self._kept.append(bytes(view))
        else:
            self._kept = None
        return view.nbytes

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    @property
    def payload(self) -> bytes | None:
        return None if self._kept is None else b"".join(self._kept)


def portable(array: jax.Array) -> Any:
    """Returns an array as something that needs no jax to read.

    Returns:
        A NumPy array if this process holds the whole, else an
        :class:`~jaxnb.model.ArrayInfo`.
    """
    if array.is_deleted():
        return shards.describe(array, digests=False, corner=False)
    if array.is_fully_addressable:
        return shards.to_numpy(array)
    if array.is_fully_replicated:
        return shards.to_numpy(array.addressable_data(0))
    return shards.describe(array, digests=False)


def describe(value: Any, mimebundle: Mapping[str, Any], max_payload_bytes: int) -> ValueInfo:
    """Describes a value for the notebook; it stays in the process.

    Nothing here raises for a value that cannot be pickled: the description says so.

    Args:
        value: Any object.
        mimebundle: What IPython would display for it.
        max_payload_bytes: A longer pickle does not travel; the notebook fetches it on demand.
    """
    kind = type(value)
    type_name = (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else (f"{kind.__module__}.{kind.__qualname__}")
    )
    array: ArrayInfo | None = None
    if isinstance(value, jax.Array):
        array = shards.describe(value)
        type_name = "jax.Array"
        if array.deleted or not (array.fully_addressable or array.fully_replicated):
            # Its description is all that travels; the digests are in the shards.
            return ValueInfo(type_name, b"", None, "it is spread over processes", mimebundle, array)
    writer = _Writer(max_payload_bytes, MAX_DIGEST_BYTES)
    try:
        _Pickler(writer, protocol=5).dump(value)
    except _TooLongError:
        return ValueInfo(type_name, b"", None, "", mimebundle, array)
    except Exception as error:  # a user's __reduce__ may raise anything; the note carries it
        note = f"it cannot be pickled ({type(error).__name__}: {error})"
        return ValueInfo(type_name, b"", None, note, mimebundle, array)
    return ValueInfo(type_name, writer.digest, writer.payload, "", mimebundle, array)
