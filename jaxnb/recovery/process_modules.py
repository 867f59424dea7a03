"""What cells have bound in modules that the user wrote: a mesh in a file beside the notebook.

Such a module is imported again in the new process, and then given the data that it had. What else
is in it (functions and classes, locks, clients, sentinels) is as the import makes it.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, Sharding

from jaxnb.arrays.process_value_paths import is_of_user, parts_of

_OF_JAX = (jax.Array, Mesh, Sharding, jax.Device)

_DATA = (
    str, bytes, bytearray, int, float, complex, type(None), np.ndarray, np.generic,
    np.random.Generator, np.random.RandomState,
)  # fmt: skip

_CONTAINERS = (dict, list, tuple, set, frozenset)

MAX_WRAPPED = 100
"""A function that was wrapped more often is not looked for."""

MAX_PARTS = 10_000
"""So many parts of a value are looked at to tell whether it is data."""


def values_of_modules() -> dict[str, Any]:
    """Returns the data of the user's modules by their names in these: ``"model.mesh"``."""
    return {
        f"{name}.{attribute}": value
        for name, module in sorted(sys.modules.items())
        if type(module) is ModuleType and name != "__main__" and is_of_user(name)
        for attribute, value in vars(module).items()
        if not attribute.startswith("__") and is_data(value)
    }


def bind(path: str, value: Any) -> None:
    """Gives a module a value.

    Args:
        path: From :func:`values_of_modules`.
        value: The value.

    Raises:
        Exception: What the import of the module raises.
    """
    name, _, attribute = path.rpartition(".")
    setattr(importlib.import_module(name), attribute, value)


def has(path: str) -> bool:
    """Whether a module has such a value when it has just been imported."""
    name, _, attribute = path.rpartition(".")
    return hasattr(importlib.import_module(name), attribute)


def is_data(value: Any) -> bool:
    """Whether a value is carried: plain data, NumPy's, JAX's, or an object of the user's."""
    kind = type(value)
    if issubclass(kind, ModuleType | type) or _is_code(value):
        return False
    if issubclass(kind, (*_DATA, *_OF_JAX)) or is_of_user(kind.__module__):
        return True
    parts = [part for _, part in zip(range(MAX_PARTS), _inside(value), strict=False)]
    if issubclass(kind, _CONTAINERS):
        return all(
            issubclass(type(part), (*_DATA, *_CONTAINERS, *_OF_JAX))
            or is_of_user(type(part).__module__)
            for part in parts
        )
    return any(issubclass(type(part), _OF_JAX) for part in parts)


def _is_code(value: Any) -> bool:
    """Whether a value is a function, or wraps one."""
    found = unwrapped(value)
    return isinstance(found[-1], FunctionType) or len(found) == MAX_WRAPPED


def unwrapped(value: Any) -> list[Any]:
    """Returns a value, what it wraps (what was jitted, or cached), what that wraps, and so on.

    The last is a function, if there is one; of a value that wraps itself it is that.
    """
    found = [value]
    while len(found) < MAX_WRAPPED and not isinstance(found[-1], FunctionType):
        inside = getattr(found[-1], "__dict__", {})
        wrapped = inside.get("__wrapped__") if isinstance(inside, dict) else None
        if wrapped is None:
            break
        found.append(wrapped)
    return found


def _inside(value: Any) -> Iterator[Any]:
    seen, left = {id(value)}, [value]
    while left:
        for _, part in parts_of(left.pop()):
            if id(part) not in seen:
                seen.add(id(part))
                left.append(part)
                yield part
