"""Private names of JAX about its registry of pytrees: how a class was registered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax


@dataclass(frozen=True, slots=True)
class Registration:
    """How a class was registered as a pytree.

    Attributes:
        flatten: Takes an object apart.
        unflatten: Puts one together.
        with_keys: Takes one apart with the keys of its parts; None if that is not known. Then paths
            have indices in the place of names, and nothing else changes.
        fields: The names of the data fields and of the others, of a class that
            ``register_dataclass`` has registered; empty for other classes.
    """

    flatten: Callable[..., Any]
    unflatten: Callable[..., Any]
    with_keys: Callable[..., Any] | None = None
    fields: tuple[tuple[str, ...], ...] = ()

    def apply(self, kind: type) -> None:
        """Registers a class in this way, unless it is registered already."""
        if is_registered(kind):  # by a metaclass, or a base class, when it was made
            return
        if self.fields:
            data, meta = self.fields
            jax.tree_util.register_dataclass(kind, data, meta)
        elif self.with_keys is not None:
            register = jax.tree_util.register_pytree_with_keys
            register(kind, self.with_keys, self.unflatten, self.flatten)
        else:
            jax.tree_util.register_pytree_node(kind, self.flatten, self.unflatten)


def is_registered(kind: type) -> bool:
    """Whether a class is one of pytrees' nodes; False where this JAX does not tell."""
    from jax._src import tree_util

    return kind in getattr(tree_util, "_registry", {})


def registration_of(kind: type) -> Registration | None:
    """Returns how a class was registered as a pytree.

    None for a class that is none, and where this JAX has no such registry: then a class of a cell
    that a decorator registers is no pytree in the process that it is carried to.
    """
    from jax._src import tree_util

    entry = getattr(tree_util, "_registry", {}).get(kind)
    if entry is None:
        return None
    inside = _closed_over(entry.to_iter)
    fields: tuple[tuple[str, ...], ...] = ()
    if "data_fields" in inside and "meta_fields" in inside:
        fields = tuple(inside["data_fields"]), tuple(inside["meta_fields"])
    with_keys = inside.get("flatten_with_keys")
    if with_keys is None and hasattr(kind, "tree_flatten_with_keys"):
        with_keys = kind.tree_flatten_with_keys
    return Registration(entry.to_iter, entry.from_iter, with_keys, fields)


def _closed_over(function: Any) -> dict[str, Any]:
    code = getattr(function, "__code__", None)
    if code is None:
        return {}
    names = code.co_freevars
    return {
        name: cell.cell_contents
        for name, cell in zip(names, function.__closure__ or (), strict=True)
        if cell.cell_contents is not None
    }
