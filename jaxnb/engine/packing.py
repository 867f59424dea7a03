"""Values to bytes for the notebook, which need not have jax: arrays are described beside them."""

from __future__ import annotations

import copyreg
import hashlib
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import FunctionType
from typing import Any

import jax
import numpy as np

from jaxnb.engine import shards
from jaxnb.engine.canonical import TooManyError, in_one_order
from jaxnb.engine.digests import digest
from jaxnb.engine.layouts import Layout, unreduced_axes
from jaxnb.model import MAX_DIGEST_BYTES, ArrayInfo, ArrayLeaf, NotMoved, Record
from jaxnb.pickling import OutOfBand, adjacent


class Pickler(pickle.Pickler):
    """Pickles values for a reader that need not have jax.

    Args:
        file: Where to write.
        refers: Whether an array is left here and an :class:`~jaxnb.model.ArrayLeaf` put in its
            place; others become NumPy arrays.
        buffer_callback: Takes buffers out of band; returns whether they stay in it.

    Attributes:
        arrays: Those that were left here.
    """

    def __init__(
        self,
        file: Any,
        refers: Callable[[jax.Array], bool],
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._refers = refers
        self.arrays: list[jax.Array] = []

    def reducer_override(self, value: Any) -> Any:
        """Tells how to pickle what needs care; pickle asks for each object that is not plain."""
        if isinstance(value, jax.core.Tracer):
            raise pickle.PicklingError("it is a tracer that left its transformation (jit, grad …)")
        if isinstance(value, jax.Array):
            if self._refers(value):
                self.arrays.append(value)
                return ArrayLeaf, (len(self.arrays) - 1,)
            # What is named here is imported by the notebook, so nothing that imports jax.
            return plain(value).__reduce_ex__(5)
        if isinstance(value, type | FunctionType) or "__qualname__" in _own(value):
            if _module(value) == "__main__":
                # Its pickle would be its name: equal for functions that are not, and in the
                # notebook the name of something else.
                raise pickle.PicklingError(
                    f"it refers to code defined in a cell: {value.__qualname__}"
                )
        elif type(value).__module__ == "__main__":
            parts = parts_of(value)
            if parts is not None:
                return Record, (type(value).__qualname__, parts)
        if _is_comparable_in_c_order(value):
            return np.ascontiguousarray(value).__reduce_ex__(5)
        return adjacent(value)


class LeavingPickler(Pickler):
    """Pickles what it can of a value, and leaves here what cannot be pickled.

    Args:
        value: What will be pickled: it is not left itself.
        settings: See :class:`Pickler`.

    Attributes:
        left: The parts that were left, each with the reason.
    """

    def __init__(self, value: Any, *settings: Any) -> None:
        super().__init__(*settings)
        self._value = value
        self.left: list[tuple[Any, str]] = []

    def reducer_override(self, value: Any) -> Any:
        """Tells how to pickle an object; one that cannot be is replaced by what names it."""
        try:
            reduced = super().reducer_override(value)
            return _reduced(value) if reduced is NotImplemented else reduced
        except Exception as error:  # a user's __reduce__ may raise anything; it is told
            if value is self._value:
                raise
            self.left.append((value, str(error) or type(error).__name__))
            return NotMoved, (_named(value),)


_OF_CLASSES = tuple(
    getattr(copyreg, name) for name in ("__newobj__", "__newobj_ex__", "_reconstructor")
)
"""What makes an object of the class that is their first argument."""


def _reduced(value: Any) -> Any:
    """Returns what pickle would ask an object for.

    Raises:
        Exception: It cannot be pickled.
    """
    if isinstance(value, type | FunctionType):
        if not is_found_by_name(value):
            raise pickle.PicklingError("it cannot be imported by its name")
        return NotImplemented
    reducer = copyreg.dispatch_table.get(type(value))
    reduced = reducer(value) if reducer is not None else value.__reduce_ex__(5)
    if isinstance(reduced, tuple):
        # What makes it cannot be left: then all of it is.
        maker = reduced[1][0] if reduced[0] in _OF_CLASSES else reduced[0]
        if isinstance(maker, type | FunctionType) and not is_found_by_name(maker):
            raise pickle.PicklingError(f"it refers to code defined in a cell: {maker.__qualname__}")
    return reduced


def _named(value: Any) -> str:
    """Returns what an object is, in words that are the same on all processes."""
    name = getattr(value, "__qualname__", None)
    return f"{type(value).__name__} {name}" if isinstance(name, str) else type(value).__qualname__


def is_found_by_name(value: type | FunctionType) -> bool:
    """Whether a function or class can be imported: then all processes have the same."""
    module = sys.modules.get(value.__module__ or "")
    if module is None or value.__module__ == "__main__":
        return False
    found: Any = module
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def _is_comparable_in_c_order(value: Any) -> bool:
    """Whether a value is an array of NumPy in Fortran's order, small enough to be copied.

    Pickles keep that order, so that equal arrays would have other bytes, and count as different.
    """
    return (
        type(value) is np.ndarray
        and value.flags.fnc
        and value.nbytes <= MAX_DIGEST_BYTES
        and not value.dtype.hasobject
    )


def _own(value: Any) -> dict[str, Any]:
    own = getattr(value, "__dict__", None)  # functools.wraps puts the names there
    return own if isinstance(own, dict) else {}


def _module(value: Any) -> Any:
    return value.__module__ if isinstance(value, type | FunctionType) else _own(value)["__module__"]


def parts_of(value: Any) -> dict[str, Any] | None:
    """Returns the parts of an object by name; None if it is neither a dataclass nor a pytree."""
    if is_dataclass(value):
        return {f.name: getattr(value, f.name) for f in fields(value) if hasattr(value, f.name)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return dict(zip(value._fields, value, strict=True))
    children = one_level(value)
    if len(children) == 1 and children[0][1] is value:
        return None
    return {jax.tree_util.keystr(path, simple=True): part for path, part in children}


def one_level(value: Any) -> list[tuple[Any, Any]]:
    """Returns the direct parts of a pytree, with their key paths; a leaf is its own only part."""
    parts: list[tuple[Any, Any]]
    parts, _ = jax.tree_util.tree_flatten_with_path(value, is_leaf=lambda part: part is not value)
    return parts


def plain(array: jax.Array) -> Any:
    """Returns an array that this process holds whole as NumPy; one that is deleted, described."""
    if array.is_deleted():
        return shards.describe(array, digests=False, corner=False)
    return shards.host_view(array if array.is_fully_addressable else array.addressable_data(0))


def is_array(value: Any) -> bool:
    """Whether a value is an array with data; a tracer passes for one, and has none."""
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)


def holds(value: Any, array: jax.Array) -> bool:
    """Whether an array is among those of a value, also inside objects that are no pytrees."""
    if any(leaf is array for leaf in jax.tree_util.tree_leaves(value)):
        return True
    found: list[jax.Array] = []

    def refers(other: jax.Array) -> bool:
        found.append(other)
        return True

    with suppress(Exception):  # what was pulled could be pickled, and may have changed since
        Pickler(_Nowhere(), refers, lambda _: None).dump(value)
    return any(other is array for other in found)


class _Nowhere:
    def write(self, data: Any) -> None:
        """Forgets it."""


def is_spread(array: jax.Array) -> bool:
    """Whether this process cannot tell all of the array's elements by itself."""
    if array.is_deleted():
        return False
    if unreduced_axes(array.sharding):  # the elements are sums over devices
        return True
    if array.is_fully_addressable:
        return False
    # A process whose devices are not in the mesh has no replica either.
    return not (array.is_fully_replicated and array.addressable_shards)


class Package:
    """A value, pickled, with what was left out of the pickle.

    Args:
        value: Any value.
        refers: See :class:`Pickler`.
        whole: Whether what cannot be pickled fails, or is left here.

    Raises:
        Exception: The value cannot be pickled; a user's ``__reduce__`` may raise anything.

    Attributes:
        skeleton: The pickle.
        buffers: What was left out of band, in order, as bytes.
        arrays: The arrays that were left out.
        infos: Their descriptions.
        left: What else was left: where it is in the value, or what it is, and why.
    """

    def __init__(self, value: Any, refers: Callable[[jax.Array], bool], *, whole: bool) -> None:
        self._value, self._refers, self._whole = value, refers, whole
        self.skeleton, self.buffers, pickler = self._pickled(value)
        self.arrays = pickler.arrays
        left = pickler.left if isinstance(pickler, LeavingPickler) else []
        self.left = _places(value, left) if left else ()
        known: dict[Any, Layout] = {}
        self.infos = tuple(shards.describe(a, corner=False, known=known) for a in self.arrays)

    def _pickled(self, value: Any) -> tuple[bytes, list[np.ndarray[Any, Any]], Pickler]:
        """Returns a value's pickle, what is out of band, and what has pickled it."""
        file, out_of_band = io.BytesIO(), OutOfBand()
        settings = (file, self._refers, out_of_band)
        pickler = Pickler(*settings) if self._whole else LeavingPickler(value, *settings)
        pickler.dump(value)
        return file.getvalue(), out_of_band.buffers, pickler

    def digest(self) -> bytes:
        """Returns what is equal on two processes only if the values are, but for their arrays.

        Of equal values it is equal, unless they have sets and too many parts to be sorted.
        """
        skeleton, buffers = self.skeleton, self.buffers
        with suppress(TooManyError):
            ordered = in_one_order(self._value)
            if ordered is not self._value:
                skeleton, buffers, _ = self._pickled(ordered)
        total = hashlib.blake2b(skeleton, digest_size=16)
        for buffer in buffers:
            total.update(buffer.data)
        return total.digest()

    def array_digests(self) -> tuple[tuple[bytes, bytes], ...]:
        """Returns for each array a digest of its layout, and one of its bytes.

        An array of devices that are all this process's may be one that others know too, or
        this process's own, equal to others'. Bytes of an array that is spread are not digested.
        """
        pairs = zip(self.arrays, self.infos, strict=True)
        return tuple((layout_digest(info), bytes_digest(array, info)) for array, info in pairs)


def _places(value: Any, left: Sequence[tuple[Any, str]]) -> tuple[tuple[str, str], ...]:
    """Returns where in a value parts are, or what they are where no path leads to them."""
    paths: dict[int, str] = {}
    with suppress(Exception):  # it holds itself, or the user's way to flatten it fails
        leaves, _ = jax.tree_util.tree_flatten_with_path(value)
        paths = {id(leaf): jax.tree_util.keystr(path) for path, leaf in leaves}
    return tuple((paths.get(id(part), f"({_named(part)})"), why) for part, why in left)


def array_digest(array: jax.Array, info: ArrayInfo) -> bytes:
    """Digests an array: its bytes where this process alone holds it, else its layout."""
    return bytes_digest(array, info) or layout_digest(info)


def bytes_digest(array: jax.Array, info: ArrayInfo) -> bytes:
    """Digests the elements of an array that this process alone holds; empty for others.

    Which device holds it differs by process and is not part of the value.
    """
    if not info.fully_addressable or info.deleted:
        return b""
    return _facts(info) + digest(shards.host_view(array))


def layout_digest(info: ArrayInfo) -> bytes:
    """Digests what an array is and which devices hold it: equal for one global array."""
    devices = info.mesh.device_ids if info.mesh else tuple(s.device_id for s in info.shards)
    return _facts(info) + f"{info.sharding} {info.memory_kind} {devices}".encode()


def _facts(info: ArrayInfo) -> bytes:
    return f"{info.dtype} {info.shape} {info.deleted}".encode()
