"""Values to bytes for the notebook, which need not have jax: arrays are described beside them."""

from __future__ import annotations

import hashlib
import io
import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from types import FunctionType, MethodType
from typing import Any

import jax
import numpy as np

from jaxnb.arrays import process_describe
from jaxnb.arrays.lost import LostArray, NotMoved, Record
from jaxnb.arrays.process_canonical import TooManyError, canonical_digest, in_one_order
from jaxnb.arrays.process_describe import unreduced_axes
from jaxnb.compat.jax_arrays import array_of_ref_now
from jaxnb.lockstep.process_inputs import digest
from jaxnb.lockstep.process_origins import ORIGINS, origin_of
from jaxnb.model.arrays import MAX_DIGEST_BYTES, ArrayInfo, ArrayLeaf
from jaxnb.wire.pickling import OutOfBand, adjacent


class Pickler(pickle.Pickler):
    """Pickles values for a reader that need not have jax.

    Args:
        file: Where to write.
        refers: Whether an array is left here and an :class:`~jaxnb.model.ArrayLeaf` put in its
            place; others become NumPy arrays.
        buffer_callback: Takes buffers out of band; returns whether they stay in it.
        leaves_code: Whether functions and classes that a cell defined, functions within functions,
            and objects of a cell's classes are left here. A :class:`~jaxnb.arrays.lost.NotMoved`
            stands for each. If not, they cannot be pickled.

    Attributes:
        arrays: Those that were left here.
        whole: Those that went whole, and that several devices of this process hold.
        has_lost: Whether it has arrays that are lost.
        has_deleted: Whether it has arrays that were deleted, or donated.
        left: What code was left here.
    """

    def __init__(
        self,
        file: Any,
        refers: Callable[[jax.Array], bool],
        buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None,
        *,
        leaves_code: bool = False,
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self._refers, self._leaves_code = refers, leaves_code
        self.left: list[str] = []
        self.arrays: list[jax.Array] = []
        self.whole: list[jax.Array] = []
        self.has_lost = self.has_deleted = False

    def reducer_override(self, value: Any) -> Any:
        """Tells how to pickle what needs care; pickle asks for each object that is not plain.

        Of a ref the array comes that it is to.
        """
        if (held := array_of_ref_now(value)) is not None:
            value = held
        if isinstance(value, jax.core.Tracer):
            raise pickle.PicklingError(
                "it is a tracer that escaped its transformation (jit, grad …)"
            )
        if isinstance(value, jax.Array):
            self.has_deleted = self.has_deleted or value.is_deleted()
            if self._refers(value):
                self.arrays.append(value)
                return ArrayLeaf, (len(self.arrays) - 1,)
            if len(value.sharding.addressable_devices) > 1 and not value.is_deleted():
                self.whole.append(value)
            # What is named here is imported by the notebook, so nothing that imports jax.
            return plain(value).__reduce_ex__(5)
        if _is_code(value):
            if is_found_by_name(value):  # jax.nn.relu is an object that does not say so itself
                return value.__qualname__
            is_of_cell = value.__module__ == "__main__"
            if self._leaves_code and (is_of_cell or not isinstance(value, type)):
                return self._leave(f"{type(value).__name__} {value.__qualname__}")
            if is_of_cell:
                # Its pickle would be its name: equal for functions that are not, and in the
                # notebook the name of something else.
                raise pickle.PicklingError(
                    f"it refers to code defined in a cell: {value.__qualname__}"
                )
        elif type(value).__module__ == "__main__":
            if (parts := parts_of(value)) is not None:
                return Record, (type(value).__qualname__, parts)
            if self._leaves_code:
                return self._leave(f"{type(value).__qualname__} object")
        self.has_lost = self.has_lost or type(value) is LostArray
        if _is_comparable_in_c_order(value):
            return np.ascontiguousarray(value).__reduce_ex__(5)
        return adjacent(value)

    def _leave(self, what: str) -> Any:
        self.left.append(what)
        return NotMoved, (what,)


def _is_code(value: Any) -> bool:
    # The pickle of a method looks it up in its object: in the notebook that would be a Record.
    is_method = isinstance(value, MethodType) and type(value.__self__).__module__ == "__main__"
    return is_method or isinstance(value, type | FunctionType) or "__qualname__" in _own(value)


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


def parts_of(value: Any) -> dict[str, Any] | None:
    """Returns the parts of an object by name; None if it is neither a dataclass nor a pytree."""
    if is_dataclass(value) and not isinstance(value, type):
        known = {f.name: getattr(value, f.name) for f in fields(value) if hasattr(value, f.name)}
        return known | getattr(value, "__dict__", {})
    if (children := one_level(value)) is None:
        return None
    return {jax.tree_util.keystr(path, simple=True): part for path, part in children}


def one_level(value: Any) -> list[tuple[Any, Any]] | None:
    """Returns the direct parts of a pytree, with their key paths; None for a leaf."""
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # jaxlib 0.10 has one key for all
        fields_of = map(jax.tree_util.GetAttrKey, value._fields)
        return [((key,), part) for key, part in zip(fields_of, value, strict=True)]
    # Not by a function for the leaves: a value may hold itself.
    found = jax.tree_util.default_registry.flatten_one_level_with_keys(value)
    return None if found is None else [((key,), part) for key, part in found[0]]


def plain(array: jax.Array) -> Any:
    """Returns an array that this process holds whole as NumPy; one that is deleted, described."""
    if array.is_deleted():
        return process_describe.describe(array, digests=False, corner=False)
    return process_describe.host_view(
        array if array.is_fully_addressable else array.addressable_data(0)
    )


def is_array(value: Any) -> bool:
    """Whether a value is an array with data; a tracer passes for one, and has none."""
    return isinstance(value, jax.Array) and not isinstance(value, jax.core.Tracer)


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
        whole: Whether code of a cell cannot be pickled, or is left here.

    Raises:
        Exception: The value cannot be pickled; a user's ``__reduce__`` may raise anything.

    Attributes:
        skeleton: The pickle.
        buffers: What was left out of band, in order, as bytes.
        arrays: The arrays that were left out.
        sources: Where they came from, pickled.
        infos: Their descriptions, without where they came from.
        left: What code was left.
    """

    def __init__(self, value: Any, refers: Callable[[jax.Array], bool], *, whole: bool) -> None:
        self._value, self._refers = value, refers
        is_part_of_cell = type(value).__module__ == "__main__" and parts_of(value) is None
        self._leaves_code = not (whole or is_part_of_cell or _is_code(value))
        self.skeleton, self.buffers, pickler = self._pickled(value)
        self.arrays, self.left = pickler.arrays, tuple(pickler.left)
        self.infos = tuple(
            process_describe.describe(each, corner=False, source=False) for each in self.arrays
        )
        origins = [origin_of(ORIGINS.array_of(each)) for each in self.arrays]
        # Plain tuples are pickled several times as fast.
        self.sources = pickle.dumps([(o[0], tuple(o[1])) if o else (0, ()) for o in origins])

    def _pickled(self, value: Any) -> tuple[bytes, list[np.ndarray[Any, Any]], Pickler]:
        """Returns a value's pickle, what is out of band, and what has pickled it."""
        file, out_of_band = io.BytesIO(), OutOfBand()
        pickler = Pickler(file, self._refers, out_of_band, leaves_code=self._leaves_code)
        pickler.dump(value)
        return file.getvalue(), out_of_band.buffers, pickler

    def _element(self, value: Any) -> bytes:
        skeleton, buffers, _ = self._pickled(value)
        return b"".join([canonical_digest(skeleton), *(buffer.data for buffer in buffers)])

    def digest(self) -> bytes:
        """Returns what is equal on two processes only if the values are, but for their arrays.

        Of equal values it is equal, unless they have sets and too many parts to be sorted.
        """
        skeleton, buffers = self.skeleton, self.buffers
        with suppress(TooManyError):
            ordered = in_one_order(self._value, self._element)
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
        once = {id(info): info for info in self.infos}
        layouts = {key: layout_digest(info) for key, info in once.items()}
        pairs = zip(self.arrays, self.infos, strict=True)
        return tuple((layouts[id(info)], bytes_digest(array, info)) for array, info in pairs)


def array_digest(array: jax.Array, info: ArrayInfo) -> bytes:
    """Digests an array: its bytes where this process alone holds it, else its layout."""
    return bytes_digest(array, info) or layout_digest(info)


def bytes_digest(array: jax.Array, info: ArrayInfo) -> bytes:
    """Digests the elements of an array that this process alone holds; empty for others.

    Which device holds it differs by process and is not part of the value.
    """
    if not info.fully_addressable or info.deleted:
        return b""
    return _facts(info) + digest(process_describe.host_view(array))


def layout_digest(info: ArrayInfo) -> bytes:
    """Digests what an array is and which devices hold it: equal for one global array."""
    devices = info.mesh.device_ids if info.mesh else tuple(s.device_id for s in info.shards)
    return _facts(info) + f"{info.sharding} {info.memory_kind} {devices}".encode()


def _facts(info: ArrayInfo) -> bytes:
    return f"{info.dtype} {info.shape} {info.deleted}".encode()
