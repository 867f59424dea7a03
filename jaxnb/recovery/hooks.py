"""What processes call after a recovery."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from jaxnb.callers import levels_to_caller

Hook = TypeVar("Hook", bound=Callable[[], Any])

_functions: dict[Any, Callable[[], Any]] = {}
_is_in_process = False


def begin() -> None:
    """Notes that this is a process of a group: what is given from now on is called."""
    global _is_in_process
    _is_in_process = True


def is_in_process() -> bool:
    """Whether this is a process of a group, not the notebook's own."""
    return _is_in_process


def add(function: Hook) -> Hook:
    """Has a function called after each recovery; see :func:`jaxnb.on_recover`."""
    if not callable(function):
        raise TypeError(f"jaxnb.on_recover() takes a function, not {function!r}")
    if not _is_in_process:
        name = getattr(function, "__qualname__", repr(function))
        warnings.warn(
            f"`{name}` will never be called: jaxnb.on_recover() was called in the notebook's own "
            "process, which stays. Call it in a %%spmd cell.",
            UserWarning,
            stacklevel=levels_to_caller(),
        )
        return function
    _functions[_key(function)] = function
    return function


def _key(function: Any) -> Any:
    """Returns what is the same when the cell that makes a function is run again."""
    name = getattr(function, "__qualname__", "")
    if not name or "<" in name:  # a lambda, or a function in a function: its code tells
        return getattr(function, "__code__", id(function))
    return getattr(function, "__module__", ""), name


def functions() -> list[Callable[[], Any]]:
    """Returns the functions, in the order in which they were first given."""
    return list(_functions.values())


def set_functions(given: list[Callable[[], Any]]) -> None:
    """Takes the place of all functions: for a process that is new in its group."""
    _functions.clear()
    for function in given:
        add(function)
