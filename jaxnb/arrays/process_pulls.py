"""A process's side of a pull: values described, and parts of arrays opened to the notebook."""

from __future__ import annotations

import math
import os
import pickle
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnb.arrays import process_describe
from jaxnb.arrays.lost import LostArray, LostValue, text_of
from jaxnb.arrays.process_describe import NotATreeError, require_tree, unreduced_axes
from jaxnb.arrays.process_packing import Package, is_array, is_spread
from jaxnb.arrays.regions import Path, Piece, Region, parse_path, pieces, view
from jaxnb.compat.jax_arrays import array_of_ref_now, data_of, is_deleted, is_of_ref
from jaxnb.errors import JaxnbError
from jaxnb.model.arrays import (
    ArrayInfo,
    Exposed,
    ExposeRequest,
    Exposure,
    Gone,
    GoneReason,
    LayoutReply,
    MemoryPass,
    NotFound,
    Packed,
    PackRequest,
    Part,
)
from jaxnb.options import suggest
from jaxnb.wire.pickling import is_plain
from jaxnb.wire.process_sentinel import ThisProcess


class NotFoundError(LookupError):
    """A path names nothing here."""


class LostError(NotFoundError):
    """A path names an array that is lost."""


def find(path: Path, namespace: Mapping[str, Any], *, only_plain: bool = False) -> tuple[Any, int]:
    """Returns what a path names, and how many subscripts at its end were left.

    Those of an array are left to the notebook: it fetches what they take, and nothing is
    computed here, where it would have to be computed on all processes.

    Args:
        path: The path.
        namespace: The variables.
        only_plain: Run no code of the user's: what only that leads to is not plain, whatever it is.

    Raises:
        NotFoundError: There is nothing there.
    """
    if path.name not in namespace:
        known = (name for name in namespace if not name.startswith("_"))
        near = suggest(path.name, known) if len(path.name) > 2 else ""  # `x` is like `jax`
        raise NotFoundError(f"has no `{path.name}`{near and f' ({near.strip()})'}")
    value = namespace[path.name]
    for i, step in enumerate(path.steps):
        if is_array(value):
            _require_slices(path, i)
            return value, len(path.steps) - i
        if only_plain and (step.kind == "attribute" or type(value) not in (dict, list, tuple)):
            return object(), 0
        try:
            key = step.key
            value = getattr(value, key) if step.kind == "attribute" else value[key]
        except Exception as error:  # a user's __getitem__ may raise anything
            raise NotFoundError(
                f"has no `{path.text}` ({type(error).__name__}: {error})"
            ) from error
    if issubclass(type(value), LostValue):  # in a container it comes, beside what is not lost
        raise LostError(f"has lost `{path.text}`: {'. '.join(text_of(value)).rstrip('.')}")
    return value, 0


def _require_slices(path: Path, start: int) -> None:
    """Raises NotFoundError unless the steps of a path from ``start`` on are slices."""
    for i, step in enumerate(path.steps[start:], start):
        if not step.slices:
            raise NotFoundError(
                f"would have to compute `{path.text}`; of an array only integers, slices and `...` "
                f"can be pulled. What `spmd.pull({path.texts[i]!r})` returns has its shape, dtype, "
                f"sharding and shards; for anything else type `%spmd {path.text}`, or "
                f"`spmd.run({path.text!r}).value`"
            )


def pack(process: ThisProcess, request: PackRequest) -> Packed | NotFound | None:
    """Describes a value; its arrays stay, and can be asked for under the transfer's name.

    Returns None, if only what is plain is asked for, where code of the user's would have to be run.
    That may compute over several processes, which have to be asked together then.

    Of the value of a cell, arrays that a process holds whole come as NumPy, and the others can be
    asked for under the cell's name.

    Raises:
        Exception: It cannot be pickled.
    """
    subscripts: list[Any] = []  # of an array; they are left to the notebook
    if request.cell:
        value = process.large_value(request)
    else:
        try:
            path = parse_path(request.path)
            value, left = find(path, process.shell.user_ns, only_plain=request.only_plain)
            subscripts = path.last_keys(left)
        except NotFoundError as error:
            return _not_found(process, error)
        if request.only_plain and not is_plain(value, jax.Array):
            return None
    whole = bool(request.cell)
    package = Package(value, refers=is_spread if whole else lambda array: True, whole=whole)
    # When the cell ran, a large value was not looked through to its end.
    HELD.hold(request.cell or request.transfer, package.arrays)
    return Packed(
        process_index=process.index,
        transfer=request.transfer,
        type_name=type(value).__qualname__,
        digest=package.digest(),
        array_digests=package.array_digests(),
        skeleton=package.skeleton,
        buffers=process.exposures.expose(request.transfer, package.buffers),
        arrays=package.infos,
        access=process.exposures.access,
        subscripts=len(subscripts),
        data=_data(process, package, request, subscripts),
        left=package.left,
        sources=package.sources,
        is_array=is_array(value) or array_of_ref_now(value) is not None,
    )


def _data(
    process: ThisProcess, package: Package, request: PackRequest, subscripts: Sequence[Any]
) -> tuple[tuple[int, int, Part], ...] | None:
    """Returns what this process's first replicas give, unless that is much.

    Of a slice of an array, those that it takes.
    """
    once = {id(info): info for info in package.infos}  # arrays that lie alike have one
    if any(info.deleted or info.unreduced for info in once.values()):
        return None
    try:
        regions = {key: Region.of(info.shape, subscripts) for key, info in once.items()}
    except (IndexError, TypeError):  # the notebook says what is wrong with it
        return None
    sizes = {
        key: math.prod(region.taken_shape) * max(8, once[key].itemsize_bits) // 8
        for key, region in regions.items()
    }
    if sum(sizes[id(info)] for info in package.infos) > request.eager_bytes:
        return None
    given: dict[int, list[Piece]] = {}
    for key, info in once.items():
        firsts = (each for each in info.shards if not each.replica_id)
        mine = [each for each in firsts if each.process_index == process.index]
        given[key] = pieces(regions[key], mine)[0]
    sources, boxes = [], []
    for k, (array, info) in enumerate(zip(package.arrays, package.infos, strict=True)):
        for piece in given[id(info)]:
            sources.append((k, piece.shard.device_id))
            boxes.append(_box(array, piece.shard.device_id, piece.source))
    return _opened(process, request, sources, boxes)


def _opened(
    process: ThisProcess,
    request: PackRequest | ExposeRequest,
    sources: Iterable[tuple[int, int]],
    boxes: Sequence[Any],
) -> tuple[tuple[int, int, Part], ...]:
    """Gives parts of arrays to the notebook: few bytes at once, more until they are released."""
    parts: Iterable[Part] = (pickle.PickleBuffer(as_bytes(box).data) for box in boxes)
    if sum(box.nbytes for box in boxes) > request.inline_bytes:
        parts = process.exposures.expose(request.transfer, boxes)
    return tuple((*source, part) for source, part in zip(sources, parts, strict=True))


def _box(array: jax.Array, device_id: int, box: Iterable[slice]) -> np.ndarray[Any, Any]:
    data, rest = process_describe.cut(process_describe.shard_of(array, device_id), tuple(box))
    return view(process_describe.host_view(data), rest)


def expose(process: ThisProcess, request: ExposeRequest) -> Exposed | Gone:
    """Opens parts of arrays to the notebook, in host memory, until the transfer is released."""
    sources, boxes = [], []
    for part in request.parts:
        array = HELD.get(request.holder, part.array)
        if array is None or is_deleted(array):
            why = HELD.why_gone(request.holder, part.array)
            return Gone(process.index, part.array, why if array is None else "deleted")
        if axes := unreduced_axes(array.sharding):  # its elements are sums over devices
            return Gone(process.index, part.array, "unreduced", axes)
        sources.append((part.array, part.device_id))
        boxes.append(_box(array, part.device_id, (slice(*each) for each in part.slices)))
    data = _opened(process, request, sources, boxes)
    return Exposed(process.index, request.transfer, data, process.exposures.access)


def read(process: ThisProcess, transfer: str, buffer: int, start: int, stop: int) -> Any:
    """Returns bytes of an exposed buffer, where the process's memory is out of reach."""
    # A buffer of the message's: it travels without a copy.
    return pickle.PickleBuffer(process.exposures.buffer(transfer, buffer).data[start:stop])


def _not_found(process: ThisProcess, error: NotFoundError) -> NotFound:
    return NotFound(process.index, str(error), isinstance(error, LostError))


def _flat(name: str, value: Any) -> list[tuple[Any, Any]]:
    try:
        require_tree(value)
        return jax.tree_util.tree_flatten_with_path(value)[0]
    except NotATreeError as error:
        raise NotFoundError(f"has `{name}`, and {error}. Lay out a part of it") from error
    except ValueError as error:
        raise NotFoundError(
            f"has `{name}`, which is not a pytree: JAX sorts the keys of dicts, and these cannot "
            "be sorted. Lay out a part of it"
        ) from error


def layouts(process: ThisProcess, names: Sequence[str]) -> list[LayoutReply | NotFound]:
    """Returns for each name how the arrays of its value lie over processes and devices.

    Args:
        process: This process.
        names: Names, with attributes and subscripts. An array of several counts for the first.
    """
    seen: dict[int, Any] = {}
    return [_layout(process, name, seen) for name in names]


def _layout(process: ThisProcess, name: str, seen: dict[int, Any]) -> LayoutReply | NotFound:
    try:
        path = parse_path(name)
        value, subscripts = find(path, process.shell.user_ns)
        if subscripts:
            whole = path.without(subscripts)
            raise NotFoundError(
                f"has `{path.text}` only as a slice, which has no layout of its own: lay out "
                f"`{whole}`"
            )
        return layout_of_value(process.index, name, value, seen)
    except NotFoundError as error:
        return _not_found(process, error)


def layout_of_value(
    index: int,
    name: str,
    value: Any,
    seen: dict[int, Any],
    known: Mapping[int, ArrayInfo] | None = None,
) -> LayoutReply:
    """Returns how the arrays of a value lie over processes and devices.

    Args:
        index: This process.
        name: What the paths of its arrays begin with.
        value: It.
        seen: The id of each array that was laid out before, and the array; it gets these.
        known: The id of arrays, and their descriptions, of a value whose bytes were compared.

    Raises:
        NotFoundError: JAX cannot take it apart.
    """
    held = []
    for keys, leaf in _flat(name, value):
        text, array = name + jax.tree_util.keystr(keys), array_of_ref_now(leaf)
        held.append((text, leaf) if array is None else (f"{text}[...]", array))
    arrays = [(text, leaf) for text, leaf in held if isinstance(leaf, jax.Array)]
    entries, describe = [], process_describe.describe
    for text, leaf in arrays:
        corner = len(held) == 1 or not leaf.shape
        info = (known or {}).get(id(leaf))
        entries.append((text, info or describe(leaf, digests=known is None, corner=corner)))
    lost = tuple(text for text, leaf in held if isinstance(leaf, LostArray))
    again = []
    for k, (_, leaf) in enumerate(arrays):
        again += [k] if id(leaf) in seen else []
        seen[id(leaf)] = leaf
    others = len(held) - len(arrays) - len(lost)
    return LayoutReply(index, tuple(entries), others, lost, tuple(again))


def _nothing() -> None:
    """Refers to an array that is gone."""


def _written() -> None:
    """Refers to an array that may have been written to: nothing would tell."""


def _reference(array: jax.Array) -> Callable[[], jax.Array | None]:
    """Returns a weak reference to an array as long as its data are those of now.

    What is written to a ref is other data of the same array.
    """
    data = data_of(array)
    if data is None:
        return weakref.ref(array)
    if is_of_ref(array) and array.sharding.num_devices == 1:  # the data are the array itself
        return _written
    of_array, of_data = weakref.ref(array), weakref.ref(data)

    def get() -> jax.Array | None:
        array = of_array()
        is_same = array is None or array.is_deleted() or data_of(array) is of_data()
        return array if is_same else None

    return get


MAX_HOLDERS = 10_000
"""Pulls and cells whose arrays are remembered; each takes some 100 bytes."""


class HeldArrays:
    """Weak references to described arrays: being known to the notebook keeps none alive."""

    def __init__(self) -> None:
        self._holders: OrderedDict[str, tuple[Callable[[], jax.Array | None], ...]] = OrderedDict()

    def hold(self, holder: str, arrays: Sequence[jax.Array]) -> None:
        """Remembers the arrays of one pull or cell."""
        if not arrays:
            return
        self._holders[holder] = tuple(map(_reference, arrays))
        while len(self._holders) > MAX_HOLDERS:
            self._holders.popitem(last=False)

    def get(self, holder: str, index: int) -> jax.Array | None:
        """Returns an array, which may be deleted; None if the process has dropped it."""
        references = self._holders.get(holder, ())
        return references[index]() if index < len(references) else None

    def why_gone(self, holder: str, index: int) -> GoneReason:
        """Returns why :meth:`get` has returned None."""
        references = self._holders.get(holder, ())
        return "ref" if _written in references[index : index + 1] else "dropped"

    def alive(self) -> dict[str, tuple[jax.Array | None, ...]]:
        """Returns the arrays that the process still has, each in its place."""
        found = {h: tuple(each() for each in those) for h, those in [*self._holders.items()]}
        return {h: those for h, those in found.items() if any(x is not None for x in those)}

    def take(self, alive: Mapping[str, Sequence[jax.Array | None]]) -> None:
        """Remembers what :meth:`alive` has returned in a process that this one replaces.

        In the place of an array that could not be carried over there may be a stand-in.
        """
        for holder, arrays in alive.items():
            self._holders[holder] = tuple(
                _reference(each) if isinstance(each, jax.Array) else _nothing for each in arrays
            )


HELD = HeldArrays()
"""The arrays of this process that the notebook knows of."""

LARGE_VALUES: dict[int, str] = {}
"""Which values in ``Out`` were too large to travel with their results: a cell's number, and its
request. ``Out`` alone keeps them, so that a user can free them."""


Buffer = np.ndarray[Any, Any]

ALIGNMENT_BYTES = 4096
"""Whole pages are what the kernel copies best."""

XLA_ALIGNMENT_BYTES = 64
"""JAX's CPU backend takes memory that begins at a multiple as it is, and copies other."""

NUMPY_ALIGNMENT_BYTES = 16
"""What NumPy's dtypes need."""


class Exposures:
    """The open buffers of this process, by transfer.

    Attributes:
        access: How the notebook finds out whether it reaches this process's memory.
    """

    def __init__(self) -> None:
        self._open: dict[str, list[Buffer]] = {}
        self._nonce = np.frombuffer(os.urandom(16), dtype=np.uint8)
        self.access = MemoryPass(os.getpid(), self._nonce.ctypes.data, self._nonce.tobytes())

    def expose(self, transfer: str, arrays: Iterable[Any]) -> tuple[Exposure, ...]:
        """Keeps the bytes of arrays in place until the transfer is released.

        Args:
            transfer: The transfer.
            arrays: NumPy arrays; one that is not C-contiguous is copied.
        """
        return self._add(transfer, map(as_bytes, arrays))

    def allocate(
        self, transfer: str, sizes: Iterable[int], *, off: bool = False
    ) -> tuple[Exposure, ...]:
        """Makes room that the notebook fills.

        Args:
            transfer: The transfer.
            sizes: Sizes of the buffers in bytes.
            off: Place them so that JAX's CPU backend copies them: what stays the user's own
                array of NumPy may be written to, and no ``jax.Array`` made of it may change.

        Raises:
            MemoryError: There is not so much.
        """
        alignment, place = (
            (XLA_ALIGNMENT_BYTES, NUMPY_ALIGNMENT_BYTES) if off else (ALIGNMENT_BYTES, 0)
        )
        return self._add(transfer, (_room(size, alignment, place) for size in sizes))

    def _add(self, transfer: str, buffers: Iterable[Buffer]) -> tuple[Exposure, ...]:
        if not (added := [*buffers]):  # nobody releases a transfer that has none
            return ()
        kept = self._open.setdefault(transfer, [])
        first = len(kept)
        kept += added
        return tuple(
            Exposure(i, buffer.ctypes.data, buffer.nbytes)
            for i, buffer in enumerate(kept[first:], start=first)
        )

    def buffer(self, transfer: str, number: int) -> Buffer:
        """Returns a buffer's bytes.

        Raises:
            JaxnbError: The transfer has been released.
        """
        try:
            return self._open[transfer][number]
        except (KeyError, IndexError):
            raise JaxnbError("the transfer has ended") from None

    def release(self, transfer: str) -> None:
        """Drops the buffers of a transfer."""
        self._open.pop(transfer, None)


def _room(size: int, alignment: int, place: int) -> Buffer:
    """Returns room that begins ``place`` bytes after a multiple of ``alignment``.

    What is not written to takes no memory. JAX's CPU backend takes an aligned buffer as it is, and
    copies others: NumPy's large ones, which begin 16 bytes into a page, among them.
    """
    room = np.empty(size + alignment, dtype=np.uint8)
    start = (place - room.ctypes.data) % alignment
    return room[start : start + size]


def as_bytes(array: Any) -> Buffer:
    """Returns an array's bytes in C order, as a view where it is contiguous."""
    contiguous = np.ascontiguousarray(array)
    return contiguous.reshape(-1).view(np.uint8)
