"""The last expression's value: described, digested, and pickled when it is small."""

from __future__ import annotations

import hashlib
import io
import pickle
from collections.abc import Mapping
from dataclasses import fields
from types import FunctionType
from typing import Any

import jax

from jaxnb.engine import shards
from jaxnb.model import MAX_DIGEST_BYTES, ArrayInfo, ValueInfo

TOO_LARGE = f"it is too large to be compared (over {MAX_DIGEST_BYTES >> 20} MiB)"
LAYOUT_ONLY = "arrays in it that are spread over processes compared by layout only"


class _Pickler(pickle.Pickler):
    """Pickles values for a reader that need not have jax: arrays become NumPy or a description."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=5)
        self.has_spread_arrays = False

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, jax.Array):
            plain = portable(value)
            # What is named here is imported by the notebook, so nothing that imports jax.
            if isinstance(plain, ArrayInfo):
                self.has_spread_arrays = True
                return ArrayInfo, tuple(getattr(plain, f.name) for f in fields(plain))
            return plain.__reduce_ex__(5)
        if _is_of_a_cell(value):
            # Its pickle would be its name: equal for functions that are not, and in the
            # notebook the name of something else.
            raise pickle.PicklingError(f"it refers to code defined in a cell: {value.__qualname__}")
        return NotImplemented


def _is_of_a_cell(value: Any) -> bool:
    if isinstance(value, type | FunctionType):
        return value.__module__ == "__main__"
    own = getattr(value, "__dict__", None)  # functools.wraps puts the names there
    if not isinstance(own, dict):
        return False
    return own.get("__module__") == "__main__" and "__qualname__" in own


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
    # Nothing that only this process knows: the others' must have the same bytes.
    return shards.describe(array, digests=False, corner=False)


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
    if isinstance(value, jax.Array):
        return _describe_array(value, mimebundle, max_payload_bytes)
    writer = _Writer(max_payload_bytes, MAX_DIGEST_BYTES)
    pickler = _Pickler(writer)
    try:
        pickler.dump(value)
    except _TooLongError:
        return ValueInfo(type_name, b"", None, "", mimebundle, digest_note=TOO_LARGE)
    except Exception as error:  # a user's __reduce__ may raise anything; the note carries it
        note = f"it cannot be pickled ({type(error).__name__}: {error})"
        return ValueInfo(type_name, b"", None, note, mimebundle)
    note = LAYOUT_ONLY if pickler.has_spread_arrays else ""
    return ValueInfo(type_name, writer.digest, writer.payload, "", mimebundle, digest_note=note)


def _describe_array(
    value: jax.Array, mimebundle: Mapping[str, Any], max_payload_bytes: int
) -> ValueInfo:
    array = shards.describe(value)
    if array.deleted or not (array.fully_addressable or array.fully_replicated):
        # Its description is all that travels; the digests are in the shards.
        note = "it was deleted" if array.deleted else "it is spread over processes"
        return ValueInfo("jax.Array", b"", None, note, mimebundle, array)
    size = shards.host_bytes(value)
    digest, note = b"", TOO_LARGE
    if size <= MAX_DIGEST_BYTES:
        mine = {s.device_id: s.digest for s in array.shards if s.digest}
        data = mine.get(_first_device(value)) if array.fully_replicated else None
        digest, note = shards.digest_of(value, data), ""
    payload = pickle.dumps(portable(value), protocol=5) if size <= max_payload_bytes else None
    return ValueInfo("jax.Array", digest, payload, "", mimebundle, array, note)


def _first_device(array: jax.Array) -> int:
    return int(array.addressable_shards[0].device.id)
