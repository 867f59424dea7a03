"""Pure: reads the text of a partition spec."""

from __future__ import annotations

import ast
from collections import Counter
from math import prod

from jaxnb.model.arrays import ArrayInfo

_MAX_CHARS = 2_000

Axes = tuple[str, ...]


def split_axes(spec: str | None, ndim: int) -> tuple[Axes, ...] | None:
    """Returns for each dimension the mesh axes that split it; None if the text does not say.

    Args:
        spec: ``"P('data', None)"``, as in :attr:`jaxnb.model.ArrayInfo.spec`.
        ndim: Number of dimensions; those that the spec leaves out are not split.
    """
    if spec is None or len(spec) > _MAX_CHARS or not (spec[:2] == "P(" and spec[-1] == ")"):
        return None
    inner = spec[2:-1].strip().removesuffix(",")
    try:
        entries = ast.literal_eval(f"({inner},)") if inner else ()
    # UNCONSTRAINED, or whatever a later JAX writes there.
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    if len(entries) > ndim:
        return None
    axes = [_axes(entry) for entry in entries]
    return (*axes, *((),) * (ndim - len(axes)))


def _axes(entry: object) -> Axes:
    if entry is None:
        return ()
    if isinstance(entry, tuple | list):
        return tuple(str(name) for name in entry)
    return (str(entry),)


def replicating_axes(array: ArrayInfo) -> Axes:
    """Returns the mesh axes over which each part is replicated; none where that is not known."""
    by_dimension = split_axes(array.spec, len(array.shape))
    if by_dimension is None or array.mesh is None:
        return ()
    used = {name for axes in by_dimension for name in axes}
    sizes = dict(zip(array.mesh.axis_names, array.mesh.shape, strict=True))
    unused = tuple(name for name, size in sizes.items() if name not in used and size > 1)
    # Uneven or unreduced arrays, or a name that is printed otherwise: then say nothing.
    copies = set(Counter(shard.index for shard in array.shards).values())
    return unused if copies == {prod(sizes[name] for name in unused)} else ()


def replicas_label(array: ArrayInfo) -> str:
    """Returns what devices hold of the same part: ``"replicas"``; ``"summands"`` if unreduced."""
    if "unreduced={" in (array.spec or ""):
        return "summands"
    return "copies" if array.fully_addressable else "replicas"


def dimension_label(array: ArrayInfo, dimension: int) -> str:
    """Returns ``"dim 0 · 8 over data"``; without the axis where none splits it."""
    label = f"dim {dimension} · {array.shape[dimension]}"
    by_dimension = split_axes(array.spec, len(array.shape))
    axes = by_dimension[dimension] if by_dimension else ()
    return f"{label} over {' × '.join(axes)}" if axes else label
