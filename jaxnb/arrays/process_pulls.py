"""A process's side of a pull: values described, and parts of arrays opened to the notebook."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxnb.arrays import process_describe
from jaxnb.arrays.lost import LostArray, text_of
from jaxnb.arrays.process_describe import NotATreeError, require_tree, unreduced_axes
from jaxnb.arrays.process_held import Exposures, GoneError, HeldArrays, as_bytes
from jaxnb.arrays.process_packing import Package, is_array, is_spread
from jaxnb.arrays.regions import Path, Region, Step, parse_path, pieces
from jaxnb.compat.jax_arrays import array_of_ref_now
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.model.arrays import (
    ArrayInfo,
    Exposed,
    ExposeRequest,
    Gone,
    LayoutReply,
    NotFound,
    Packed,
    PartRequest,
)
from jaxnb.options import suggest


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
            value = _follow(value, step)
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


def _follow(value: Any, step: Step) -> Any:
    return getattr(value, step.key) if step.kind == "attribute" else value[step.key]


def pack(
    value: Any,
    subscripts: Sequence[Any],
    *,
    transfer: str,
    eager_bytes: int,
    process_index: int,
    exposures: Exposures,
    held: HeldArrays,
    cell: str = "",
) -> Packed:
    """Describes a value; its arrays stay, and can be asked for under the transfer's name.

    Args:
        value: Any value that can be pickled.
        subscripts: What it is to be a slice of, for an array; left to the notebook.
        transfer: The transfer.
        eager_bytes: The data of arrays that together have no more go along, or of a slice.
        process_index: This process.
        exposures: Keeps what is not in the pickle.
        held: Remembers the arrays.
        cell: Names the cell whose value it is. Then arrays that a process holds whole come as
            NumPy, and the others can be asked for under this name too.

    Raises:
        Exception: It cannot be pickled.
    """
    package = Package(value, refers=is_spread if cell else lambda array: True, whole=bool(cell))
    # When the cell ran, a large value was not looked through to its end.
    held.hold(cell or transfer, package.arrays)
    return Packed(
        process_index=process_index,
        transfer=transfer,
        type_name=type(value).__qualname__,
        digest=package.digest(),
        array_digests=package.array_digests(),
        skeleton=package.skeleton,
        buffers=exposures.expose(transfer, package.buffers),
        arrays=package.infos,
        access=exposures.access,
        subscripts=len(subscripts),
        data=_small_data(package, process_index, eager_bytes, subscripts),
        origins=tuple(map(ORIGINS.of, package.arrays)),
        left=package.left,
        is_array=is_array(value) or array_of_ref_now(value) is not None,
    )


def _small_data(
    package: Package, process_index: int, eager_bytes: int, subscripts: Sequence[Any]
) -> tuple[tuple[int, int, Any], ...] | None:
    """Returns the bytes of this process's first replicas, if the arrays are small together.

    Of a slice of an array, those that it takes.
    """
    pairs = list(zip(package.arrays, package.infos, strict=True))
    readable = all(not (i.deleted or unreduced_axes(a.sharding)) for a, i in pairs)
    if readable and subscripts:
        return _small_slice(*pairs[0], process_index, eager_bytes, subscripts)
    if not readable or sum(process_describe.host_bytes(a) for a, _ in pairs) > eager_bytes:
        return None
    return tuple(
        (k, shard.device_id, pickle.PickleBuffer(as_bytes(_shard(array, shard.device_id)).data))
        for k, (array, info) in enumerate(pairs)
        for shard in info.shards
        if shard.process_index == process_index and shard.replica_id == 0
    )


def _small_slice(
    array: jax.Array,
    info: ArrayInfo,
    process_index: int,
    eager_bytes: int,
    subscripts: Sequence[Any],
) -> tuple[tuple[int, int, Any], ...] | None:
    try:
        region = Region.of(info.shape, subscripts)
    except (IndexError, TypeError):  # the notebook says what is wrong with it
        return None
    if math.prod(region.taken_shape) * process_describe.host_bytes(array) > eager_bytes * max(
        array.size, 1
    ):
        return None
    found, _ = pieces(region, info.shards)
    return tuple(
        (0, device, pickle.PickleBuffer(as_bytes(_shard(array, device)[piece.source]).data))
        for piece in found
        if piece.shard.process_index == process_index
        for device in [piece.shard.device_id]
    )


def _shard(array: jax.Array, device_id: int) -> np.ndarray[Any, Any]:
    return process_describe.host_view(process_describe.shard_of(array, device_id))


def expose(
    request: ExposeRequest, process_index: int, exposures: Exposures, held: HeldArrays
) -> Exposed | Gone:
    """Opens parts of arrays to the notebook until the transfer is released."""
    parts = []
    for part in request.parts:
        try:
            array = held.get(request.holder, part.array)
            _require_elements(array)
        except GoneError as error:
            return Gone(process_index, part.array, error.reason, error.axes)
        parts.append(_box(array, part))
    return Exposed(process_index, exposures.expose(request.transfer, parts), exposures.access)


def _require_elements(array: jax.Array) -> None:
    """Refuses an array whose elements no device has: they are sums over devices."""
    if axes := unreduced_axes(array.sharding):
        raise GoneError("unreduced", axes)


def _box(array: jax.Array, part: PartRequest) -> np.ndarray[Any, Any]:
    return _shard(array, part.device_id)[tuple(slice(*arguments) for arguments in part.slices)]


def not_found(process_index: int, error: NotFoundError) -> NotFound:
    """Returns the answer for a path that names nothing here."""
    return NotFound(process_index, str(error), isinstance(error, LostError))


def _flat(name: str, value: Any) -> list[tuple[Any, Any]]:
    try:
        require_tree(value)
        return jax.tree_util.tree_flatten_with_path(value)[0]
    except NotATreeError as error:
        raise NotFoundError(f"has `{name}`, and {error}. Lay out a part of it") from error
    except ValueError as error:
        raise NotFoundError(
            f"has `{name}`, which is not a pytree: JAX sorts the keys of dicts, and these cannot "
            "be "
            "sorted. Lay out a part of it"
        ) from error


def layout(name: str, process_index: int, namespace: Mapping[str, Any]) -> LayoutReply | NotFound:
    """Describes the arrays of a value."""
    try:
        path = parse_path(name)
        value, subscripts = find(path, namespace)
        if subscripts:
            whole = path.without(subscripts)
            raise NotFoundError(
                f"has `{path.text}` only as a slice, which has no layout of its own: lay out "
                f"`{whole}`"
            )
        flat = _flat(path.text, value)
    except NotFoundError as error:
        return not_found(process_index, error)
    leaves = [(name + jax.tree_util.keystr(path), leaf) for path, leaf in flat]
    refs = [(text + "[...]", array_of_ref_now(leaf)) for text, leaf in leaves]
    held = [
        (text, leaf) if array is None else (of_ref, array)
        for (text, leaf), (of_ref, array) in zip(leaves, refs, strict=True)
    ]
    arrays = [(text, leaf) for text, leaf in held if isinstance(leaf, jax.Array)]
    single = len(leaves) == 1
    entries = tuple((text, process_describe.describe(leaf, corner=single)) for text, leaf in arrays)
    lost = tuple(text for text, leaf in held if isinstance(leaf, LostArray))
    first = {id(leaf): k for k, (_, leaf) in reversed(list(enumerate(arrays)))}
    again = tuple(k for k, (_, leaf) in enumerate(arrays) if first[id(leaf)] != k)
    others = len(held) - len(arrays) - len(lost)
    return LayoutReply(process_index, entries, others, lost, again)
