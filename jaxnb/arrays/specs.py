"""Partition specs as plain data.

Here a spec is a tuple with one entry for each dimension: None, the name of a mesh axis, or a
tuple of names. jax is not needed.
"""

from __future__ import annotations

import ast
from collections import Counter
from math import prod
from typing import Any, NoReturn

from jaxnb.errors import UsageError
from jaxnb.model.arrays import ArrayInfo

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
        entries = tuple(spec)
    except (TypeError, ValueError):  # JAX's own do not iterate with unreduced axes
        _refuse(spec)
    return tuple(_entry(entry, spec) for entry in entries)


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


def _entry(entry: Any, spec: Any) -> _Entry:
    """One entry of a spec; a tuple of one name is that name, of none is None, as in JAX."""
    if entry is None or isinstance(entry, str):
        return entry
    if not isinstance(entry, tuple | list) or not all(isinstance(name, str) for name in entry):
        _refuse(spec)
    names = tuple(entry)
    return names if len(names) > 1 else (names[0] if names else None)


def _names(entry: _Entry) -> tuple[str, ...]:
    """The axes that an entry names."""
    if entry is None:
        return ()
    return (entry,) if isinstance(entry, str) else entry


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
