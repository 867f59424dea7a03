"""Whether JAX can take a value apart and live."""

from __future__ import annotations

from typing import Any

import jax

MOST_DEPTH = 300
"""A third of what Python allows by default: user code has called us, and JAX is called in turn."""


class NotATreeError(ValueError):
    """A value holds itself, or is nested too deep."""


def require_tree(value: Any) -> None:
    """Raises where JAX would take a value apart without end.

    Its C++ code runs into Python's limit of recursion there, and never gives back what it has taken
    of that: nothing can be called in the process any more (jaxlib 0.10 and 0.11).

    Raises:
        NotATreeError: It holds itself, or is nested too deep.
    """
    flatten = jax.tree_util.default_registry.flatten_one_level
    path: list[int] = []  # from the value to where we are
    left: list[Any] = [[value]]
    while left:
        if not left[-1]:
            left.pop()
            if path:
                path.pop()
            continue
        node = left[-1].pop()
        found = flatten(node)
        if found is None:
            continue
        if id(node) in path:
            raise NotATreeError("it holds itself")
        if len(path) >= MOST_DEPTH:
            raise NotATreeError(f"it is nested over {MOST_DEPTH} deep")
        path.append(id(node))
        left.append([*found[0]])
