"""Functions and classes that cells defined, made again in another process.

A function comes back with its code, its defaults and what it closes over. Its global names are the
namespace of the new process, not copies: a cell that binds one of them anew changes the function,
as it did before.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pickle
import sys
import typing
import weakref
from types import CellType, CodeType, FunctionType
from typing import Any

import cloudpickle
import jax

from jaxnb.arrays import process_packing
from jaxnb.arrays.process_names import is_of_user
from jaxnb.compat import jax_runtime
from jaxnb.compat.jax_arrays import is_registered, registration_of
from jaxnb.recovery.process_classes import names_of_cells, reduced_class, statement_of

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
        if kind is typing.TypeVar:
            reduced = self.dispatch_table[kind](value)
            return self._with_own_id(reduced, -1) if len(reduced[1]) > 2 else reduced
        if issubclass(type(value), jax.stages.Compiled):
            raise pickle.PicklingError("what lower(...).compile() gave: compile it again")
        if issubclass(type(value), jax.stages.Lowered):
            raise pickle.PicklingError("what lower(...) gave: lower it again")
        settings = jax_runtime.jit_settings(value)
        if settings is not None:
            return _jitted, (value.__wrapped__, settings)
        return super().reducer_override(value)

    def _function(self, function: FunctionType) -> Any:
        if is_found_by_name(function):
            return NotImplemented
        home: str = function.__globals__.get("__name__") or ""
        namespace = getattr(sys.modules.get(home), "__dict__", None)
        if namespace is not function.__globals__:  # of `exec`, of a module that is gone
            return super().reducer_override(function)
        state = {
            "attributes": dict(function.__dict__),
            **{name: getattr(function, name) for name in _ATTRIBUTES},
        }
        # Cells as they are: what functions close over together they go on to share.
        arguments = function.__code__, home, function.__name__, function.__closure__
        return _make_function, arguments, state, None, None, _fill_function

    def _class(self, kind: type) -> Any:
        if is_found_by_name(kind):
            return NotImplemented
        statement = statement_of(kind)
        reduced = reduced_class(kind, statement) if statement is not None else None
        if reduced is None:
            reduced = super().reducer_override(kind)
            if not (isinstance(reduced, tuple) and len(reduced) == 6):  # the class of None
                return reduced
            make, arguments, *_ = reduced = self._with_own_id(reduced, -2)
            if slots := vars(kind).get("__slots__"):  # cloudpickle makes the class without
                arguments[3]["__slots__"] = slots
            if isinstance(arguments[0], type):  # its metaclass; of enumerations it stands nowhere
                reduced = _make_class, (make, *arguments), *reduced[2:]
        make, arguments, state, _, _, fill = reduced
        state = state, fill, registration_of(kind)
        return make, arguments, state, None, None, _fill_class

    def _with_own_id(self, reduced: Any, place: int) -> Any:
        make, arguments, *rest = reduced
        before, after = arguments[:place], arguments[place:]
        return make, (*before, self.tracked(after[0]), *after[1:]), *rest

    def tracked(self, class_id: str) -> Any:
        """Returns what stands for the id by which cloudpickle knows a class again."""
        return class_id


def is_found_by_name(value: Any) -> bool:
    """Whether a function or class can be imported: then the new process has the same."""
    home = getattr(value, "__module__", None) or ""
    if home not in sys.modules and home.partition(".")[0] in sys.modules:
        with contextlib.suppress(ImportError):  # `numpy.rec`, which nobody has imported yet
            importlib.import_module(home)
    return process_packing.is_found_by_name(value)


_CODE_FIELDS = (
    "argcount", "posonlyargcount", "kwonlyargcount", "nlocals", "stacksize", "flags", "code",
    "consts", "names", "varnames", "filename", "name", "qualname", "firstlineno", "linetable",
    "exceptiontable", "freevars", "cellvars",
)  # fmt: skip
"""What ``CodeType`` is made of, in its order."""


def _code(code: CodeType) -> Any:
    # With its file's name, which cloudpickle leaves out: a traceback shows the cell's line.
    return _make_code, tuple(getattr(code, f"co_{field}") for field in _CODE_FIELDS)


def _cell(cell: CellType) -> Any:
    try:
        contents = (cell.cell_contents,)
    except ValueError:  # it is still empty
        return _make_cell, ()
    return _make_cell, (), contents, None, None, _fill_cell


def _view_of_memory(value: Any) -> Any:
    raise pickle.PicklingError("a view of memory")


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


_WRAPPERS: dict[type, Any] = {
    CellType: _cell,
    CodeType: _code,
    typing.NewType: lambda each: (typing.NewType, (each.__name__, each.__supertype__)),
    memoryview: _view_of_memory,
    # Its __new__ wants a function, and plain pickle gives it none.
    jax.custom_vjp: lambda each: (_bare, (type(each),), vars(each)),
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
    return jax_runtime.jit_again(jax.jit(function), settings)


def _make_function(
    code: CodeType, home: str, name: str, closure: tuple[CellType, ...] | None
) -> FunctionType:
    return FunctionType(code, vars(importlib.import_module(home)), name, None, closure)


def _make_code(*fields: Any) -> CodeType:
    at = _CODE_FIELDS.index("filename")
    name = names_of_cells.get(fields[at], fields[at])
    make: Any = CodeType
    made: CodeType = make(*fields[:at], name, *fields[at + 1 :])
    return made


def _make_cell() -> CellType:
    return CellType()


def _fill_cell(cell: CellType, contents: tuple[Any, ...]) -> None:
    (cell.cell_contents,) = contents


def _fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    function.__dict__.update(state.pop("attributes"))
    for name, value in state.items():
        setattr(function, name, value)


def _make_class(make: Any, metaclass: Any, name: str, bases: Any, *rest: Any) -> Any:
    """Makes a class that has nothing in it yet: what the user's classes do for it was done before.

    Their ``__init_subclass__``, and their metaclass's ``__new__`` and ``__init__``, would find
    nothing of what they look for, and count or register it again.
    """
    owners = {owner for base in bases for owner in getattr(base, "__mro__", ())}
    hooks = [(owner, "__init_subclass__") for owner in owners]
    hooks += [(owner, each) for owner in metaclass.__mro__ for each in ("__new__", "__init__")]
    taken = [
        (owner, each, vars(owner)[each])
        for owner, each in hooks
        if each in vars(owner) and is_of_user(owner.__module__)
    ]
    for owner, each, _ in taken:
        delattr(owner, each)
    try:
        return make(metaclass, name, bases, *rest)
    finally:
        for owner, each, value in taken:
            setattr(owner, each, value)


def _fill_class(kind: type, state: tuple[Any, ...]) -> None:
    inner, fill, registration = state
    fill(kind, inner)
    if registration is None or is_registered(kind):  # by a metaclass, or a base class
        return
    if hasattr(kind, "tree_flatten_with_keys"):
        jax.tree_util.register_pytree_with_keys_class(kind)
    else:
        jax.tree_util.register_pytree_node(kind, *registration)
