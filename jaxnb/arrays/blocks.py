"""Blocks of arrays on devices, and partition specs, as plain data."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NoReturn

from jaxnb.errors import UsageError
from jaxnb.labels import plural_word, processes_label, ranks_label
from jaxnb.model.arrays import ArrayInfo, ShardInfo

# Here a spec is a tuple with one entry for each dimension: None, the name of a mesh axis, or a
# tuple of names. jax is not needed.

_Entry = str | tuple[str, ...] | None
Spec = tuple[_Entry, ...]

EXAMPLE = "P('data', None)"
TREE_EXAMPLE = "{'w': P('data'), 'b': P()}"
_JAX_TYPES = ("PartitionSpec", "P")
_CALLS = ("P", "jax.P", "PartitionSpec", "jax.sharding.PartitionSpec")


def is_spec(value: Any) -> bool:
    """Tells one spec (None, a str, a tuple, a PartitionSpec) from a container of specs."""
    if value is None or isinstance(value, str) or type(value).__name__ in _JAX_TYPES:
        return True
    # A namedtuple is a container with names, as for JAX's pytrees.
    return isinstance(value, tuple) and not hasattr(value, "_fields")


def normalize(spec: Any) -> Spec:
    """Returns a spec as plain data, its entries as JAX has them.

    Args:
        spec: A tuple, or a ``PartitionSpec``, whose entries are None, names, or tuples or
            lists of names; a name (for the first dimension); None (all dimensions whole).

    Raises:
        UsageError: It is something else, or has unreduced or unconstrained parts.
    """
    if not is_spec(spec):
        _refuse(spec)
    if spec is None or isinstance(spec, str):
        return () if spec is None else (spec,)
    try:
        return tuple(_entry(entry, spec) for entry in spec)
    except (TypeError, ValueError):  # JAX's own do not iterate with unreduced axes
        _refuse(spec)


def parse(text: str) -> Any:
    """Reads specs as one writes them in Python; nothing is evaluated.

    Args:
        text: A spec (``"P('data', None)"``, ``"('data', None)"``, ``"'data'"``), or a dict or
            list of such, nested as the value is.

    Returns:
        The normalized spec, or the dict or list of them.

    Raises:
        UsageError: It is something else.
    """
    try:
        return _read(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        raise UsageError(
            f"{text!r} is not a partition spec. Write one as {EXAMPLE}, axis names in quotes, "
            "or a dict or list of them as "
            f"{TREE_EXAMPLE}. Nothing was moved."
        ) from None


def spec_text(spec: Spec) -> str:
    """Returns a spec as one writes it: ``"P('data', None)"``."""
    return f"P({', '.join(map(repr, spec))})"


def fitting(spec: Spec, shape: Sequence[int], sizes: Mapping[str, int]) -> Spec:
    """Returns the spec nearest to one that does not fit: an axis that does not is replaced.

    Args:
        spec: The spec.
        shape: Of the array.
        sizes: Name of each mesh axis to its size.
    """
    found: list[_Entry] = []
    for size, entry in zip(shape, spec, strict=False):
        wanted = _names(entry)
        later = {name for each in (*found, *spec[len(found) + 1 :]) for name in _names(each)}
        fits = [name for name, count in sizes.items() if name not in later and size % count == 0]
        taken = {name for each in found for name in _names(each)}
        is_known = set(wanted) <= sizes.keys() - taken
        is_fine = is_known and size % prod(sizes[name] for name in wanted) == 0
        best = max(fits, key=lambda name: sizes[name], default=None) if wanted else None
        found.append(entry if is_fine else best)
    return tuple(found)


def _names(entry: _Entry) -> tuple[str, ...]:
    return (entry,) if isinstance(entry, str) else entry or ()


def _entry(entry: Any, spec: Any) -> _Entry:
    """One entry of a spec; a tuple of one name is that name, of none is None, as in JAX."""
    if entry is None or isinstance(entry, str):
        return entry
    if not isinstance(entry, tuple | list) or not all(isinstance(name, str) for name in entry):
        _refuse(spec)
    names = tuple(entry)
    return names if len(names) > 1 else (names[0] if names else None)


def _read(node: ast.expr) -> Any:
    """The specs that a syntax tree spells; ValueError or TypeError if it spells others."""
    match node:
        case ast.Dict(keys=keys, values=values):
            # `{**other}` has the key None.
            named = [ast.literal_eval(key) for key in keys if key is not None]
            return dict(zip(named, map(_read, values), strict=True))
        case ast.List(elts=elements):
            return [_read(element) for element in elements]
        case ast.Call(func=func, args=args, keywords=[]) if ast.unparse(func) in _CALLS:
            return normalize(tuple(ast.literal_eval(arg) for arg in args))
        case _:
            return normalize(ast.literal_eval(node))


def _refuse(spec: Any) -> NoReturn:
    raise UsageError(
        f"{spec!r} is not a partition spec: it needs, for each dimension, None, the name of a "
        f"mesh axis, or a tuple of names, as in {EXAMPLE}. Nothing was moved."
    )


def replicating_axes(array: ArrayInfo) -> tuple[str, ...]:
    """Returns the mesh axes over which each part is replicated; none where that is not known."""
    if array.axes is None or array.mesh is None:
        return ()
    used = {name for axes in array.axes for name in axes}
    sizes = dict(zip(array.mesh.axis_names, array.mesh.shape, strict=True))
    unused = tuple(name for name, size in sizes.items() if name not in used and size > 1)
    # Uneven or unreduced arrays, or a name that is printed otherwise: then say nothing.
    copies = set(Counter(shard.index for shard in array.shards).values())
    return unused if copies == {prod(sizes[name] for name in unused)} else ()


def replicas_label(array: ArrayInfo) -> str:
    """Returns what devices hold of the same part: ``"replicas"``; ``"summands"`` if unreduced."""
    if array.unreduced:
        return "summands"
    return "copies" if array.fully_addressable else "replicas"


def dimension_label(array: ArrayInfo, dimension: int) -> str:
    """Returns ``"dim 0 · 8 over data"``; without the axis where none splits it."""
    label = f"dim {dimension} · {array.shape[dimension]}"
    axes = array.axes[dimension] if array.axes else ()
    return f"{label} over {' × '.join(axes)}" if axes else label


Interval = tuple[int, int]
Index = tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """One part of an array, with everyone who holds it.

    Attributes:
        index: For each dimension the half-open ``(start, stop)`` it covers.
        shards: Its holders: the one with ``replica_id`` 0 first.
    """

    index: Index
    shards: tuple[ShardInfo, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each dimension."""
        return tuple(stop - start for start, stop in self.index)

    @property
    def processes(self) -> tuple[int, ...]:
        """Processes that hold it, each once, in order."""
        return tuple(sorted({shard.process_index for shard in self.shards}))

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Devices that hold it, in order."""
        return tuple(sorted(shard.device_id for shard in self.shards))

    def by_digest(self) -> list[tuple[int, ...]]:
        """Groups the processes whose replicas are equal; see :func:`by_digest`.

        Shards without a digest are left out. More than one group means that replicas, which
        JAX takes to be equal, differ.
        """
        return self._groups[0]

    @property
    def is_uneven(self) -> bool:
        """Whether devices of one process hold other bytes."""
        return self._groups[1]

    @property
    def holders_label(self) -> str:
        """``"process 0 ≠ processes 1-3"``; devices, where those of one process differ."""
        groups, is_uneven = self._groups
        return " ≠ ".join(holders_text(group, by_device=is_uneven) for group in groups)

    @property
    def _groups(self) -> tuple[list[tuple[int, ...]], bool]:
        return by_digest((s.digest, s.process_index, s.device_id) for s in self.shards if s.digest)


def by_digest(
    held: Iterable[tuple[str | bytes, int, int]],
) -> tuple[list[tuple[int, ...]], bool]:
    """Groups the processes that hold equal bytes.

    Args:
        held: The digest of what a device holds, its process, and itself.

    Returns:
        The groups; and whether they are of devices instead, as devices of one process differ.
    """
    found: dict[str | bytes, list[tuple[int, int]]] = {}
    for digest, process, device in held:
        found.setdefault(digest, []).append((process, device))
    groups = [tuple(sorted({process for process, _ in each})) for each in found.values()]
    is_uneven = len(set().union(*groups)) < sum(map(len, groups))
    if is_uneven:
        groups = [tuple(sorted(device for _, device in each)) for each in found.values()]
    return sorted(groups), is_uneven


def holders_text(group: Sequence[int], *, by_device: bool) -> str:
    """Returns ``"processes 1-3"``, or ``"devices 2-3"``."""
    if by_device:
        return f"{plural_word(len(group), 'device')} {ranks_label(group)}"
    return processes_label(group)


def index_label(index: Index) -> str:
    """Returns ``"[0:4, 0:2]"``."""
    return f"[{', '.join(f'{start}:{stop}' for start, stop in index)}]"


def blocks(shards: Iterable[ShardInfo]) -> tuple[Block, ...]:
    """Groups shards that cover the same part of the array, in row-major order of the parts."""
    holders: dict[Index, list[ShardInfo]] = {}
    for shard in shards:
        holders.setdefault(shard.index, []).append(shard)
    return tuple(
        Block(index, tuple(sorted(held, key=lambda s: (s.replica_id, s.device_id))))
        for index, held in sorted(holders.items())
    )


def boundaries(parts: Iterable[Block], ndim: int) -> tuple[tuple[Interval, ...], ...]:
    """Returns for each dimension the intervals that the array is cut into, in order."""
    known = list(parts)
    return tuple(tuple(sorted({part.index[d] for part in known})) for d in range(ndim))


def elements_bytes(count: int, itemsize_bits: int) -> int:
    """Returns the size of ``count`` elements; those under a byte are taken as packed."""
    return -(-count * itemsize_bits // 8)


def total_bytes(array: ArrayInfo) -> int:
    """Returns the size of the whole array, each element counted once."""
    return elements_bytes(prod(array.shape), array.itemsize_bits)


def bytes_per_device(array: ArrayInfo) -> dict[int, int]:
    """Returns device id to the size of what it holds of the array."""
    sizes: dict[int, int] = {}
    for shard in array.shards:
        if shard.process_index in array.gone:
            continue
        count = prod(stop - start for start, stop in shard.index)
        size = elements_bytes(count, array.itemsize_bits)
        sizes[shard.device_id] = sizes.get(shard.device_id, 0) + size
    return sizes


def merged(arrays: Sequence[ArrayInfo]) -> ArrayInfo:
    """Returns all processes' descriptions of one global array as one.

    Each process knows the bytes of its own shards only: their digests, and the elements at the
    corners that it holds.
    """
    digests = {s.device_id: s.digest for a in arrays for s in a.shards if s.digest}
    shards = arrays[0].shards
    if digests:
        shards = tuple(replace(s, digest=digests.get(s.device_id, b"")) for s in shards)
    corner = dict(pair for a in arrays for pair in a.corner)
    if not (digests or corner):
        return arrays[0]
    return replace(arrays[0], shards=shards, corner=tuple(sorted(corner.items())))


def each_its_own(arrays: Sequence[ArrayInfo]) -> ArrayInfo:
    """Returns arrays that processes have each for itself, all of one shape, as one description.

    It has the shards of all, and is deleted if they are: give those that are, or those that are
    not. Without a mesh, as each has one of its own, and without a corner
    where that is not the same for all.
    """
    first = arrays[0]
    if len(arrays) == 1:
        return first
    return replace(
        first,
        sharding=first.sharding.partition("(")[0],
        mesh=None,
        shards=tuple(shard for array in arrays for shard in array.shards),
        corner=first.corner if len({array.corner for array in arrays}) == 1 else (),
    )


def lying(array: ArrayInfo) -> tuple[object, ...]:
    """Returns where an array's parts lie, however its sharding is written: `P()`, `P(None)`."""
    return array.memory_kind, array.unreduced, placing(array)


def placing(array: ArrayInfo) -> tuple[object, ...]:
    """Returns the array's shape, and which device has which part."""
    return array.shape, tuple((shard.device_id, shard.index) for shard in array.shards)


def differing(array: ArrayInfo) -> list[Block]:
    """Returns the parts of an array whose replicas are known to differ."""
    digests: dict[object, bytes] = {}
    if all(
        digests.setdefault(shard.index, shard.digest) == shard.digest
        for shard in array.shards
        if shard.digest
    ):
        return []  # the common case, without sorting
    return [
        part for part in blocks(array.shards) if len({s.digest for s in part.shards} - {b""}) > 1
    ]


EDGE_ITEMS = 3
"""How many elements of each end of a dimension a preview shows."""


def corner_edges(shape: Sequence[int]) -> list[tuple[int, ...]]:
    """Returns for each dimension the indices that a preview shows.

    They are both ends of the last two dimensions, and the first index of the others.
    """
    return [*[(0,)] * len(shape[:-2]), *map(_ends, shape[-2:])]


def _ends(size: int) -> tuple[int, ...]:
    # What would be left out must be worth the "…".
    if size <= 2 * EDGE_ITEMS + 2:
        return tuple(range(size))
    return (*range(EDGE_ITEMS), *range(size - EDGE_ITEMS, size))


def preview(
    shape: Sequence[int], corner: Iterable[tuple[tuple[int, ...], str]]
) -> list[tuple[str, ...]]:
    """Assembles the elements at an array's corners to the matrix that a person reads.

    Args:
        shape: Shape of the array.
        corner: Pairs of a global index and the element there, as in
            :attr:`jaxnb.model.ArrayInfo.corner`.

    Returns:
        The rows: the elements as text, ``…`` where some were left out, ``?`` where no process told.
        A vector is one row; a scalar is one row of one element. Nothing if the array is empty or no
        element is known.
    """
    known = dict(corner)
    if not known or 0 in shape:
        return []
    first = (0,) * len(shape[:-2])
    matrix = [_with_gap(size) for size in shape[-2:]]
    row_axis: list[int | None] = [0] if len(matrix) < 2 else matrix[0]
    column_axis: list[int | None] = matrix[-1] if matrix else [0]

    def element(row: int | None, column: int | None) -> str:
        if row is None or column is None:
            return "…"
        return known.get((*first, *(row, column)[2 - len(matrix) :]), "?")

    return [tuple(element(row, column) for column in column_axis) for row in row_axis]


def _with_gap(size: int) -> list[int | None]:
    """Indices of both ends, None between them if some are left out."""
    indices: list[int | None] = list(_ends(size))
    if len(indices) < size:
        indices.insert(EDGE_ITEMS, None)
    return indices
