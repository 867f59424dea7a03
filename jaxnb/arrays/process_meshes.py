"""Meshes of the namespace, and the shardings that partition specs mean on them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxnb.arrays import specs
from jaxnb.arrays.process_packing import one_level
from jaxnb.errors import UsageError
from jaxnb.options import suggest

MAX_EXAMPLE = 200
"""Characters of an error's example."""

_EXAMPLE = "`%spmd mesh = jax.make_mesh((jax.device_count(),), ('x',))`"


def find_mesh(namespace: Mapping[str, Any], name: str | None) -> Mesh:
    """Returns the mesh of a name; without one, the mesh that there is.

    That is the one set by ``jax.set_mesh``, else the only one that has a name.

    Raises:
        UsageError: There is none, or more than one.
    """
    # Of the type: `isinstance` also asks the object, and a dead weak proxy raises then.
    found: dict[str, Mesh] = {k: m for k, m in namespace.items() if issubclass(type(m), Mesh)}
    meshes = {key: m for key, m in found.items() if key[0] != "_"}
    if name is not None:
        if name in found:
            return found[name]
        raise UsageError(_no_such_mesh(namespace, name, meshes))
    active = jax.sharding.get_mesh()
    if not active.empty:
        return active
    if not meshes:
        raise UsageError(
            f"There is no mesh on the processes. Nothing was moved. Make one, e.g. {_EXAMPLE}."
        )
    if len(set(meshes.values())) > 1:
        raise UsageError(
            f"There is more than one mesh: {', '.join(sorted(meshes))}. Nothing was moved. "
            "Name one of them: `--mesh NAME`, in Python `mesh=`."
        )
    return next(iter(meshes.values()))


def _no_such_mesh(namespace: Mapping[str, Any], name: str, meshes: Mapping[str, Mesh]) -> str:
    if name in namespace:
        what = f"`{name}` is not a mesh but a {type(namespace[name]).__name__}"
    else:
        what = f"There is no `{name}` on the processes"
    known = f" Meshes: {', '.join(sorted(meshes))}." if meshes else f" Make one: {_EXAMPLE}."
    return f"{what}. Nothing was moved.{suggest(name, meshes)}{known}"


def shardings(name: str, value: Any, mesh: Mesh, spec: Any) -> list[NamedSharding]:
    """Returns the sharding of each leaf of a pytree, in JAX's order of the leaves.

    Args:
        name: What the user calls the value, for messages.
        value: The pytree. A leaf's ``shape`` counts; one without is a scalar.
        mesh: The mesh.
        spec: One spec for all leaves, or dicts and lists of specs by the value's parts.

    Raises:
        UsageError: A spec does not fit a leaf, or the containers do not fit the value's.
    """
    axes = {str(axis): size for axis, size in mesh.shape.items()}
    several = specs.is_spec(spec) and len(jax.tree.leaves(value)) > 1
    by_part = _by_part(value, spec or ()) if several else ""
    by_part = by_part if len(by_part) <= MAX_EXAMPLE else specs.TREE_EXAMPLE
    found = []
    for path, leaf, leaf_spec in _pairs(name, value, spec):
        shape = tuple(getattr(leaf, "shape", ()))
        specs.check(leaf_spec, shape, axes, path, by_part)
        found.append(NamedSharding(mesh, jax.P(*leaf_spec)))
    return found


def _by_part(value: Any, spec: specs.Spec) -> str:
    """Returns the specs by part that fit where one spec has too many entries for some."""
    leaves = jax.tree.leaves(value)
    ndim = min((len(getattr(leaf, "shape", ())) for leaf in leaves), default=len(spec))
    if ndim >= len(spec):
        return specs.spec_text(spec)
    children = one_level(value)
    if len(children) == 1 and children[0][1] is value:
        return specs.spec_text(spec[:ndim])
    parts = [_by_part(part, spec) for _, part in children]
    keys = [getattr(path[0], "key", getattr(path[0], "name", None)) for path, _ in children]
    if None in keys:
        return f"[{', '.join(parts)}]"
    return f"{{{', '.join(f'{k!r}: {part}' for k, part in zip(keys, parts, strict=True))}}}"


def _pairs(path: str, value: Any, spec: Any) -> Iterator[tuple[str, Any, specs.Spec]]:
    if specs.is_spec(spec):
        for key, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            yield path + jax.tree_util.keystr(key), leaf, spec or ()
        return
    children = one_level(value)
    if len(children) == 1 and children[0][1] is value:
        raise UsageError(
            f"`{path}` is a single value and has no parts, so it takes one spec, not specs for "
            "parts. Nothing was moved. Values with specs of their own must be pushed one at a "
            "time, or as one dict."
        )
    keys = [jax.tree_util.keystr(key, simple=True) for key, _ in children]
    given = spec if isinstance(spec, Mapping) else dict(enumerate(spec))
    by_name = {str(key): part for key, part in given.items()}
    if set(by_name) != set(keys):
        raise UsageError(
            f"The specs of `{path}` are for {_listed(by_name)}, the value has {_listed(keys)}. "
            "Nothing was moved. Give one spec for each part, or one for all."
        )
    for name, (key_path, part) in zip(keys, children, strict=True):
        yield from _pairs(path + jax.tree_util.keystr(key_path), part, by_name[name])


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"
