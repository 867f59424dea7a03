"""A process's side of a pull: values described, and parts of arrays opened to the notebook."""

from __future__ import annotations

import math
import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnb.arrays import process_describe
from jaxnb.arrays.lost import LostArray, text_of
from jaxnb.arrays.process_describe import NotATreeError, require_tree, unreduced_axes
from jaxnb.arrays.process_held import HELD, as_bytes
from jaxnb.arrays.process_packing import Package, is_array, is_spread
from jaxnb.arrays.regions import Path, Region, parse_path, pieces, view
from jaxnb.compat.jax_arrays import array_of_ref_now
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.model.arrays import (
    Chunk,
    Exposed,
    ExposeRequest,
    Gone,
    LayoutReply,
    NotFound,
    Packed,
    PackRequest,
)
from jaxnb.options import suggest
from jaxnb.wire.process_sentinel import ThisProcess


class NotFoundError(LookupError):
    """A path names nothing here."""


class LostError(NotFoundError):
    """A path names an array that is lost."""


def find(path: Path, namespace: Mapping[str, Any]) -> tuple[Any, int]:
    """Returns what a path names, and how many subscripts at its end were left.

    Those of an array are left to the notebook: it fetches what they take, and nothing is
    computed here, where it would have to be computed on all processes.

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
        try:
            key = step.key
            value = getattr(value, key) if step.kind == "attribute" else value[key]
        except Exception as error:  # a user's __getitem__ may raise anything
            raise NotFoundError(
                f"has no `{path.text}` ({type(error).__name__}: {error})"
            ) from error
    if type(value) is LostArray:  # in a container it comes, beside what is not lost
        raise LostError(f"has lost `{path.text}`: {'. '.join(text_of(value)).rstrip('.')}")
    return value, 0


def _require_slices(path: Path, start: int) -> None:
    """Refuses what is no slice of an array."""
    for i, step in enumerate(path.steps[start:], start):
        if not step.slices:
            raise NotFoundError(
                f"would have to compute `{path.text}`; of an array only integers, slices and `...` "
                f"can be pulled. What `spmd.pull({path.texts[i]!r})` returns has its shape, dtype, "
                f"sharding and shards; for anything else type `%spmd {path.text}`, or "
                f"`spmd.run({path.text!r}).value`"
            )


def pack(process: ThisProcess, request: PackRequest) -> Packed | NotFound:
    """Describes a value; its arrays stay, and can be asked for under the transfer's name.

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
            value, left = find(path, process.shell.user_ns)
            subscripts = path.last_keys(left)
        except NotFoundError as error:
            return _not_found(process, error)
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
        data=_small_data(process, package, request.eager_bytes, subscripts),
        origins=tuple(map(ORIGINS.of, package.arrays)),
        left=package.left,
        is_array=is_array(value) or array_of_ref_now(value) is not None,
    )


def _small_data(
    process: ThisProcess, package: Package, eager_bytes: int, subscripts: Sequence[Any]
) -> tuple[tuple[int, int, Any], ...] | None:
    """Returns the bytes of this process's first replicas, if they are few.

    Of a slice of an array, those that it takes.
    """
    arrays, infos = package.arrays, package.infos
    if any(i.deleted or unreduced_axes(a.sharding) for a, i in zip(arrays, infos, strict=True)):
        return None
    try:
        regions = [Region.of(info.shape, subscripts) for info in infos]
    except (IndexError, TypeError):  # the notebook says what is wrong with it
        return None
    parts = list(zip(arrays, infos, regions, strict=True))
    size = sum(
        math.prod(region.taken_shape) * process_describe.host_bytes(array) / max(array.size, 1)
        for array, _, region in parts
    )
    if size > eager_bytes:
        return None
    return tuple(
        (k, device, pickle.PickleBuffer(as_bytes(_box(array, device, piece.source)).data))
        for k, (array, info, region) in enumerate(parts)
        for piece in pieces(region, info.shards)[0]
        if piece.shard.process_index == process.index
        for device in [piece.shard.device_id]
    )


def _box(array: jax.Array, device_id: int, box: Iterable[slice]) -> np.ndarray[Any, Any]:
    return view(process_describe.host_view(process_describe.shard_of(array, device_id)), box)


def expose(process: ThisProcess, request: ExposeRequest) -> Exposed | Gone:
    """Opens parts of arrays to the notebook, in host memory, until the transfer is released."""
    parts = []
    for part in request.parts:
        array = HELD.get(request.holder, part.array)
        if array is None or array.is_deleted():
            return Gone(process.index, part.array, "dropped" if array is None else "deleted")
        if axes := unreduced_axes(array.sharding):  # its elements are sums over devices
            return Gone(process.index, part.array, "unreduced", axes)
        parts.append(_box(array, part.device_id, (slice(*each) for each in part.slices)))
    buffers = process.exposures.expose(request.transfer, parts)
    return Exposed(process.index, buffers, process.exposures.access)


def read(process: ThisProcess, transfer: str, buffer: int, start: int, stop: int) -> Chunk:
    """Returns bytes of an exposed buffer, where the process's memory is out of reach."""
    # A buffer of the message's: it travels without a copy.
    return Chunk(pickle.PickleBuffer(process.exposures.buffer(transfer, buffer).data[start:stop]))


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


def layout(process: ThisProcess, name: str) -> LayoutReply | NotFound:
    """Returns how the arrays of a value lie over processes and devices.

    Args:
        process: This process.
        name: The value's name, with attributes and subscripts.
    """
    try:
        path = parse_path(name)
        value, subscripts = find(path, process.shell.user_ns)
        if subscripts:
            whole = path.without(subscripts)
            raise NotFoundError(
                f"has `{path.text}` only as a slice, which has no layout of its own: lay out "
                f"`{whole}`"
            )
        flat = _flat(path.text, value)
    except NotFoundError as error:
        return _not_found(process, error)
    held = []
    for keys, leaf in flat:
        text, array = name + jax.tree_util.keystr(keys), array_of_ref_now(leaf)
        held.append((text, leaf) if array is None else (f"{text}[...]", array))
    arrays = [(text, leaf) for text, leaf in held if isinstance(leaf, jax.Array)]
    single = len(held) == 1
    entries = tuple((text, process_describe.describe(leaf, corner=single)) for text, leaf in arrays)
    lost = tuple(text for text, leaf in held if isinstance(leaf, LostArray))
    first = {id(leaf): k for k, (_, leaf) in reversed(list(enumerate(arrays)))}
    again = tuple(k for k, (_, leaf) in enumerate(arrays) if first[id(leaf)] != k)
    others = len(held) - len(arrays) - len(lost)
    return LayoutReply(process.index, entries, others, lost, again)
