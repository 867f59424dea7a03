"""Functions and classes that cells defined, made again in another process.

A function comes back with its code, its defaults and what it closes over. Its global names are the
namespace of the new process, not copies: a cell that binds one of them anew changes the function,
as it did before.
"""

from __future__ import annotations

import functools
import importlib
import pickle
import sys
import weakref
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle
import jax

from jaxnb.engine import _jax_internals
from jaxnb.engine._jax_internals.pytrees import registration_of
from jaxnb.recovery.process_classes import reduced_class, statement_of

_ATTRIBUTES = [
    "__defaults__", "__kwdefaults__", "__doc__", "__module__", "__qualname__",
    # To read annotations may run code that fails, where they are worked out late.
    *(["__annotations__"] if sys.version_info < (3, 14) else ["__annotate__"]),
    *(["__type_params__"] if sys.version_info >= (3, 12) else []),
]  # fmt: skip


class CodePickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Pickles functions and classes that cannot be imported, by what they are made of."""

    def reducer_override(self, value: Any) -> Any:
        """Tells how to pickle a function, a class, or what wraps one."""
        kind = type(value)
        if kind is FunctionType:
            return self._function(value)
        if issubclass(kind, type):
            return self._class(value)
        if kind in _WRAPPERS:
            return _WRAPPERS[kind](value)
        if isinstance(value, jax.stages.Compiled):
            raise pickle.PicklingError("what lower(...).compile() gave: compile it again")
        if isinstance(value, jax.stages.Lowered):
            raise pickle.PicklingError("what lower(...) gave: lower it again")
        settings = _jax_internals.jit_settings(value)
        if settings is not None:
            return _jitted, (value.__wrapped__, settings)
        return super().reducer_override(value)

    def _function(self, function: FunctionType) -> Any:
        if is_found_by_name(function):
            return NotImplemented
        home: str = function.__globals__.get("__name__") or ""
        if _namespace(home) is not function.__globals__:  # of `exec`, of a module that is gone
            return super().reducer_override(function)
        closure = function.__closure__ or ()
        state = {
            "cells": [_contents(cell) for cell in closure],
            "attributes": dict(function.__dict__),
            **{name: getattr(function, name) for name in _ATTRIBUTES},
        }
        arguments = function.__code__, home, function.__name__, len(closure)
        return _make_function, arguments, state, None, None, _fill_function

    def _class(self, kind: type) -> Any:
        if is_found_by_name(kind):
            return NotImplemented
        statement = statement_of(kind)
        anew = reduced_class(kind, statement) if statement is not None else None
        if anew is not None:
            return anew
        reduced = super().reducer_override(kind)
        if not (isinstance(reduced, tuple) and len(reduced) == 6):  # the class of None
            return reduced
        registration = registration_of(kind)
        if registration is None:
            return reduced
        make, arguments, state, _, _, fill = reduced
        return make, arguments, (state, fill, registration), None, None, _fill_pytree


def is_found_by_name(value: Any) -> bool:
    """Whether a function or class can be imported: then the new process has the same."""
    module = sys.modules.get(getattr(value, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return False
    found: Any = module
    for part in value.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is value


def _namespace(home: str) -> Any:
    return getattr(sys.modules.get(home), "__dict__", None)


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is still empty
        return ()


def _cached(value: Any) -> Any:
    """What ``functools.cache`` wraps: its results are not carried."""
    if is_found_by_name(value):
        return NotImplemented
    settings = value.cache_parameters()
    return _make_cached, (value.__wrapped__, settings["maxsize"], settings["typed"]), vars(value)


def _cached_property(value: Any) -> Any:
    # It has a lock in Python 3.11.
    state = {"attrname": value.attrname, "__doc__": value.__doc__}
    return functools.cached_property, (value.func,), state


def _weak_reference(value: Any) -> Any:
    if value.__callback__ is not None:
        raise pickle.PicklingError("a weak reference that calls something")
    target = value()
    return (weakref.ref, (target,)) if target is not None else (_dead_reference, ())


def _weak_dictionary(value: Any) -> Any:
    return type(value), (dict(value.items()),)


def _custom_vjp(value: Any) -> Any:
    # Its __new__ wants a function, and plain pickle gives it none.
    return _bare, (type(value),), vars(value)


_WRAPPERS: dict[type, Any] = {
    jax.custom_vjp: _custom_vjp,
    functools._lru_cache_wrapper: _cached,
    functools.cached_property: _cached_property,
    weakref.ref: _weak_reference,
    weakref.WeakKeyDictionary: _weak_dictionary,
    weakref.WeakValueDictionary: _weak_dictionary,
}


# ------------------------------------------------------------------------- in the new process


class _Gone:
    """What a dead weak reference refers to."""


def _dead_reference() -> weakref.ref[Any]:
    return weakref.ref(_Gone())


def _bare(kind: type) -> Any:
    return object.__new__(kind)


def _make_cached(function: Any, maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(function)


def _jitted(function: Any, settings: Any) -> Any:
    return _jax_internals.jit_again(jax.jit(function), settings)


def _make_function(code: CodeType, home: str, name: str, cells: int) -> FunctionType:
    module: ModuleType = (
        sys.modules["__main__"] if home == "__main__" else importlib.import_module(home)
    )
    return FunctionType(code, vars(module), name, None, tuple(CellType() for _ in range(cells)))


def _fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    for cell, contents in zip(function.__closure__ or (), state.pop("cells"), strict=True):
        if contents:
            (cell.cell_contents,) = contents
    function.__dict__.update(state.pop("attributes"))
    for name, value in state.items():
        setattr(function, name, value)


def _fill_pytree(kind: type, state: tuple[Any, ...]) -> None:
    inner, fill, registration = state
    fill(kind, inner)
    registration.apply(kind)
