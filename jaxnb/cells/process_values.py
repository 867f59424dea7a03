"""The last expression's value: described, digested, and pickled when it is small."""

from __future__ import annotations

import contextlib
import hashlib
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from jaxnb.arrays import process_describe, process_packing
from jaxnb.arrays.blocks import differing
from jaxnb.arrays.lost import LostArray
from jaxnb.arrays.process_canonical import MAX_VISITED, TooManyError, in_one_order
from jaxnb.arrays.process_pulls import NotFoundError, layout_of_value
from jaxnb.labels import LOST, class_label
from jaxnb.model.arrays import MAX_DIGEST_BYTES
from jaxnb.model.cells import ValueInfo

TOO_LARGE = f"it is too large to be compared (over {MAX_DIGEST_BYTES >> 20} MiB)"
TOO_MANY = f"it has sets, and over {MAX_VISITED} parts"
LOST_IN_IT = "arrays in it that are lost were not compared"
PARTS = "a part of it cannot be pickled, so nothing of it was compared"
DELETED_IN_IT = "arrays in it are deleted"
LAYOUT_ONLY = "arrays in it that are spread over processes compared by layout, the rest by bytes"


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

    def digest_more(self, data: bytes) -> None:
        self._hash.update(data)

    @property
    def digest(self) -> bytes:
        return self._hash.digest()

    @property
    def payload(self) -> bytes | None:
        return None if self._kept is None else b"".join(self._kept)


def describe(
    value: Any,
    mimebundle: Mapping[str, Any],
    max_payload_bytes: int,
    hold: Callable[[Sequence[jax.Array]], None] = lambda arrays: None,
) -> ValueInfo:
    """Describes a value for the notebook; it stays in the process.

    Nothing here raises for a value that cannot be pickled: the description says so.

    Args:
        value: Any object.
        mimebundle: What IPython would display for it.
        max_payload_bytes: A longer pickle does not travel; the notebook fetches it on demand.
        hold: Takes the arrays that the notebook may ask for later.
    """
    type_name = class_label(type(value))
    if process_packing.is_array(value):
        hold([value])
        return _describe_array(value, mimebundle, max_payload_bytes)
    writer = _Writer(max_payload_bytes, MAX_DIGEST_BYTES)
    pickler = process_packing.Pickler(writer, refers=process_packing.is_spread)
    try:
        pickler.dump(value)
    except _TooLongError:
        return ValueInfo(type_name, b"", None, "", mimebundle, digest_note=TOO_LARGE)
    except Exception as error:  # a user's __reduce__ may raise anything; the note carries it
        note = f"it cannot be pickled ({type(error).__name__}: {error})"
        has_parts = isinstance(value, dict | list | tuple)
        told = DELETED_IN_IT if pickler.has_deleted else PARTS * has_parts
        return ValueInfo(type_name, b"", None, note, mimebundle, digest_note=told)
    hold(pickler.arrays)
    arrays = tuple(process_describe.describe(array, corner=False) for array in pickler.arrays)
    notes = [LAYOUT_ONLY] if arrays else []
    layout = None
    with contextlib.suppress(NotFoundError):  # it is not a pytree
        known = {id(array): info for array, info in zip(pickler.arrays, arrays, strict=True)}
        layout = layout_of_value(jax.process_index(), "", value, {}, known) if arrays else None
    digester = None if type(value) is LostArray else _digester(value, writer)
    if pickler.has_lost:
        notes = [LOST if digester is None else LOST_IN_IT]
    elif digester is None:
        notes = [TOO_MANY]
    notes += [DELETED_IN_IT] if pickler.has_deleted else []
    if digester is not None:
        for array, info in zip(pickler.arrays, arrays, strict=True):
            digester.digest_more(process_packing.array_digest(array, info))
        for array in pickler.whole:
            digester.digest_more(_odd_replicas(array))
    return ValueInfo(
        type_name,
        b"" if digester is None else digester.digest,
        writer.payload,
        "",
        mimebundle,
        digest_note="; ".join(notes),
        has_lost=pickler.has_lost,
        arrays=arrays,
        layout=layout,
    )


def arrays_in(value: Any) -> list[Any]:
    """Returns the arrays in a value: itself, or what plain containers hold.

    Not by ``jax.tree.leaves`` with a function for the leaves: of a value that holds itself, that
    leaves Python without a stack, and the process ends.
    """
    arrays, parts, known = [], [value], set()
    while parts:
        part = parts.pop()
        if process_packing.is_array(part):
            arrays.append(part)
        elif type(part) in (dict, list, tuple) and id(part) not in known:
            known.add(id(part))
            parts += part.values() if isinstance(part, dict) else part
    return arrays


def _odd_replicas(array: jax.Array) -> bytes:
    """Returns what tells a process whose devices hold different replicas; empty if they do not."""
    info = process_describe.describe(array, corner=False)
    return b"".join(shard.digest for shard in info.shards) if differing(info) else b""


def _digester(value: Any, writer: _Writer) -> _Writer | None:
    """Returns what has digested a value with its sets in one order; None if they are too large."""
    try:
        ordered = in_one_order(value)
    except TooManyError:
        return None
    if ordered is value:
        return writer
    digester = _Writer(0, 2 * MAX_DIGEST_BYTES)
    process_packing.Pickler(digester, refers=process_packing.is_spread).dump(ordered)
    return digester


def _describe_array(
    value: jax.Array, mimebundle: Mapping[str, Any], max_payload_bytes: int
) -> ValueInfo:
    array = process_describe.describe(value)
    if array.deleted or process_packing.is_spread(value):
        # Its description is all that travels; the digests are in the shards.
        note = "it was deleted" if array.deleted else "it is spread over processes"
        return ValueInfo("jax.Array", b"", None, note, mimebundle, array)
    size = process_describe.host_bytes(value)
    digest, note = b"", TOO_LARGE
    if process_describe.is_digested(value):
        mine = {s.device_id: s.digest for s in array.shards if s.digest}
        first = int(value.addressable_shards[0].device.id)
        data = mine.get(first) if array.fully_replicated else None
        digest, note = process_describe.digest_of(value, data), ""
    payload = (
        pickle.dumps(process_packing.plain(value), protocol=5)
        if size <= max_payload_bytes
        else None
    )
    return ValueInfo("jax.Array", digest, payload, "", mimebundle, array, note)
