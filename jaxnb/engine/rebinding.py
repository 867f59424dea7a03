"""Replacing objects wherever others hold them: in containers, objects, closures, generators.

Nothing of a user's runs meanwhile: attributes are read and set past properties, ``__setattr__``
and ``__setitem__``, and no object is rebuilt through its ``__init__`` or its ``tree_unflatten``.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from functools import lru_cache, partial
from types import (
    AsyncGeneratorType,
    BuiltinFunctionType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import jax
import numpy as np

from jaxnb.engine import _jax_internals
from jaxnb.engine._jax_internals.arrays import buffer_of
from jaxnb.engine.modules import is_code_of_user

MAX_DEPTH = 200
"""What lies deeper is visited when the way to it has been left again."""

MAX_TUPLES = 2 * MAX_DEPTH
"""Tuples that are nested deeper are left alone below this."""

_ATOMS = (
    str, bytes, bytearray, int, float, complex, bool, type(None), range, ModuleType, CodeType,
    BuiltinFunctionType, threading.Thread, type(threading.Lock()), type(threading.RLock()),
)  # fmt: skip
_ATOM_TYPES = frozenset(_ATOMS)
_SUSPENDED = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}
CACHE_TYPE: Any = type(lru_cache(len))
"""The class of functions with ``functools.lru_cache`` or ``functools.cache``."""

_TUPLE_ITERATOR = type(iter(()))
_IS_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class statement made it


INSIDE = ".…"
"""What follows the name of an object that holds something where no path is known."""

_OF_IPYTHON = ("In", "Out", "get_ipython", "exit", "quit")


class Rebinder:
    """Walks what is reachable and replaces what is to be replaced.

    All that can be changed is changed in place, so that whoever shares it sees the change, and
    identities stay: containers, objects of any class, classes of users' code, closures, partials,
    suspended generators, object arrays of NumPy. Only tuples, frozensets, bound methods, weak
    references, and functions that were jitted with shardings are made anew.

    Args:
        swap: Returns what stands for an object from now on; the object itself to leave it.
    """

    def __init__(self, swap: Callable[[Any], Any]) -> None:
        self._swap = swap
        self._done: dict[int, tuple[Any, Any]] = {}
        self._later: list[Any] = []
        self._open: set[int] = set()
        self._met_open = False
        self.failed: dict[str, None] = {}
        """What could not be changed, in words; the rest was changed all the same."""

    def rebind(self, namespace: dict[Any, Any]) -> None:
        """Replaces objects in all that a namespace leads to."""
        self._visit_all(namespace)
        if self._met_open:
            # A tuple led back to itself before its successor was there: that takes its places now.
            made = {key: pair for key, pair in self._done.items() if pair[0] is not pair[1]}
            again = Rebinder(lambda value: made[id(value)][1] if id(value) in made else value)
            again._visit_all(namespace)

    def _visit_all(self, namespace: dict[Any, Any]) -> None:
        self._visit_inside(namespace, 0)
        while self._later:
            self._visit_guarded(self._later.pop(), 0)

    def visit(self, value: Any, depth: int = 0) -> Any:
        """Returns what stands for a value: itself, changed inside or not, or another one."""
        kind = type(value)
        if kind in _ATOM_TYPES:
            return value
        key = id(value)
        if key in self._done:
            self._met_open = self._met_open or key in self._open
            return self._done[key][1]
        new = self._swap(value)
        # The old one is kept too: else its id could become another object's.
        self._done[key] = value, new
        if new is not value or issubclass(kind, _ATOMS):
            return new
        if issubclass(kind, tuple | frozenset):
            if depth <= MAX_TUPLES:
                self._open.add(key)
                new = self._visit_frozen(value, depth + 1)
                self._open.discard(key)
        elif depth > MAX_DEPTH:
            self._later.append(value)
        else:
            new = self._visit_guarded(value, depth + 1)
        self._done[key] = value, new
        return new

    def _visit_guarded(self, value: Any, depth: int) -> Any:
        try:
            return self._visit_inside(value, depth)
        except Exception as error:  # one odd object must not end a recovery
            what = f"what is in a {type(value).__name__}"
            self.failed[f"{what} ({type(error).__name__}: {error})"] = None
            return value

    def _visit_inside(self, value: Any, depth: int) -> Any:
        kind = type(value)
        if issubclass(kind, dict):
            self._visit_dict(value, depth)
        elif issubclass(kind, list):
            self._change(list(enumerate(value)), partial(list.__setitem__, value), depth)
        elif issubclass(kind, deque):
            self._change(list(enumerate(value)), partial(deque.__setitem__, value), depth)
        elif issubclass(kind, set):
            self._visit_set(value, depth)
        elif issubclass(kind, type):
            if is_code_of_user(value.__module__):
                self._change(list(vars(value).items()), partial(type.__setattr__, value), depth)
            return value
        elif issubclass(kind, FunctionType):
            self._visit_function(value, depth)
            return value
        elif issubclass(kind, np.ndarray):
            if value.dtype == object:
                self._visit_object_array(value, depth)
        elif kind in _SUSPENDED:
            frame = getattr(value, _SUSPENDED[kind])
            if frame is not None:
                self.visit_frame(frame, depth)
        elif issubclass(kind, FrameType):
            self.visit_frame(value, depth)
            return value
        elif kind is MethodType:
            owner = self.visit(value.__self__, depth)
            return value if owner is value.__self__ else MethodType(value.__func__, owner)
        elif kind is _TUPLE_ITERATOR:
            return self._visit_tuple_iterator(value, depth)
        elif kind is weakref.ref:
            return self._visit_weak_reference(value, depth)
        elif issubclass(kind, partial):
            self._visit_partial(value, depth)
        elif issubclass(kind, CellType):
            self._visit_cell(value, depth)
            return value
        elif issubclass(kind, ContextVar):
            self._visit_context_variable(value, depth)
            return value
        elif issubclass(kind, CACHE_TYPE):
            self._visit_cache(value, depth)
        else:
            return self._visit_other(value, depth)
        self._visit_attributes(value, depth)
        return value

    def _visit_other(self, value: Any, depth: int) -> Any:
        settings = _jax_internals.jit_settings(value)
        if settings is not None:
            self.visit(value.__wrapped__, depth)
            new = self.visit(settings, depth)
            return value if new is settings else _jax_internals.jit_again(value, new)
        kind = type(value)
        if issubclass(kind, weakref.WeakValueDictionary | weakref.WeakKeyDictionary):
            items = list(value.items())
            for key, part in items:
                new_key, new_part = self.visit(key, depth), self.visit(part, depth)
                if new_key is not key:
                    del value[key]
                if new_key is not key or new_part is not part:
                    value[new_key] = new_part
            return value
        if issubclass(kind, weakref.WeakSet):
            for part in list(value):
                new = self.visit(part, depth)
                if new is not part:
                    value.discard(part)
                    value.add(new)
            return value
        self.visit(kind, depth)
        self._visit_attributes(value, depth)
        if _is_partly_of_c(kind):  # an iterator, say: what it holds may be changed in place
            for part in gc.get_referents(value):
                self.visit(part, depth)
        return value

    def _visit_attributes(self, value: Any, depth: int) -> None:
        attributes = _dict_of(value)
        if attributes:
            self.visit(attributes, depth)
        for slot in _slots_of(type(value)):
            with contextlib.suppress(AttributeError, TypeError):  # not set, or cannot be set
                part = slot.__get__(value)
                new = self.visit(part, depth)
                if new is not part:
                    slot.__set__(value, new)

    def _change(
        self, items: list[tuple[Any, Any]], put: Callable[[Any, Any], object], depth: int
    ) -> None:
        for key, part in items:
            if type(part) in _ATOM_TYPES:
                continue
            new = self.visit(part, depth)
            if new is not part:
                put(key, new)

    def _visit_dict(self, value: dict[Any, Any], depth: int) -> None:
        kind = OrderedDict if isinstance(value, OrderedDict) else dict
        keys = list(kind.keys(value))
        new = [self.visit(key, depth) for key in keys]
        if any(a is not b for a, b in zip(keys, new, strict=True)):
            parts = list(kind.values(value))
            kind.clear(value)
            for key, part in zip(new, parts, strict=True):
                kind.__setitem__(value, key, part)
        self._change(list(kind.items(value)), partial(kind.__setitem__, value), depth)

    def _visit_set(self, value: set[Any], depth: int) -> None:
        parts = list(set.__iter__(value))
        new = [self.visit(part, depth) for part in parts]
        if any(a is not b for a, b in zip(parts, new, strict=True)):
            set.clear(value)
            set.update(value, new)

    def _visit_frozen(self, value: Any, depth: int) -> Any:
        base: Any = tuple if isinstance(value, tuple) else frozenset
        parts = list(base.__iter__(value))
        new = [self.visit(part, depth) for part in parts]
        if all(a is b for a, b in zip(parts, new, strict=True)):
            self._visit_attributes(value, depth)
            return value
        try:
            made = base.__new__(type(value), new)
        except TypeError:  # a tuple of C's, such as what os.stat returns
            return value
        attributes = _dict_of(value)
        if attributes:
            _dict_of(made).update(attributes)
            self._visit_attributes(made, depth)
        return made

    def _visit_object_array(self, value: np.ndarray[Any, Any], depth: int) -> None:
        parts = [self.visit(part, depth) for part in value.flat]
        if all(a is b for a, b in zip(value.flat, parts, strict=True)):
            return
        fixed = not value.flags.writeable
        try:
            value.flags.writeable = True
            for place, part in zip(np.ndindex(value.shape), parts, strict=True):
                value[place] = part
        finally:
            if fixed:
                value.flags.writeable = False

    def visit_frame(self, frame: FrameType, depth: int = 0) -> None:
        """Replaces objects in the variables of a call that is suspended, or that still runs."""
        variables = frame.f_locals
        found = {name: (part, self.visit(part, depth)) for name, part in variables.items()}
        changed = {name: new for name, (part, new) in found.items() if new is not part}
        if changed:
            variables.update(changed)
            _write_to_frame(frame)

    def _visit_tuple_iterator(self, value: Any, depth: int) -> Any:
        _, (held,), *place = value.__reduce__()
        new = self.visit(held, depth)
        if new is held:
            return value
        made: Any = iter(new)
        made.__setstate__(*place)
        return made

    def _visit_weak_reference(self, value: Any, depth: int) -> Any:
        target = value()
        new = None if target is None else self.visit(target, depth)
        return value if new is target or value.__callback__ else weakref.ref(new)

    def _visit_cell(self, cell: CellType, depth: int) -> None:
        with contextlib.suppress(ValueError):  # it is still empty
            new = self.visit(cell.cell_contents, depth)
            if new is not cell.cell_contents:
                cell.cell_contents = new

    def _visit_context_variable(self, variable: ContextVar[Any], depth: int) -> None:
        value = variable.get(None)
        new = self.visit(value, depth)
        if new is not value:
            variable.set(new)

    def _visit_cache(self, cache: Any, depth: int) -> None:
        """Replaces what ``functools.lru_cache`` keeps; where that cannot be done, it is cleared."""
        contents = gc.get_referents(cache)
        if cache.cache_parameters()["maxsize"] is not None:  # the dict is not all that has them
            contents = [part for part in contents if type(part) is not dict]
        new = [self.visit(part, depth) for part in contents]
        if any(a is not b for a, b in zip(contents, new, strict=True)):
            cache.cache_clear()

    def _visit_function(self, function: FunctionType, depth: int) -> None:
        for cell in function.__closure__ or ():
            self._visit_cell(cell, depth)
        if function.__defaults__:
            new = self.visit(function.__defaults__, depth)
            if new is not function.__defaults__:
                function.__defaults__ = new
        self.visit(function.__kwdefaults__, depth)
        self.visit(function.__dict__, depth)

    def _visit_partial(self, value: partial[Any], depth: int) -> None:
        parts = value.func, value.args, value.keywords
        new = tuple(self.visit(part, depth) for part in parts)
        if any(a is not b for a, b in zip(parts, new, strict=True)):
            value.__setstate__((*new, _dict_of(value)))  # type: ignore[attr-defined]


class DirectRebinder(Rebinder):
    """Replaces objects in one holder only, and goes no further."""

    def visit(self, value: Any, depth: int = 0) -> Any:
        """Returns what stands for a value."""
        return self._swap(value)

    def replace_in(self, holder: Any) -> Any:
        """Returns the holder, in which objects were replaced, or its successor if it is a tuple."""
        if issubclass(type(holder), tuple | frozenset):
            return self._visit_frozen(holder, 0)
        return self._visit_inside(holder, 0)


def _write_to_frame(frame: FrameType) -> None:
    """Takes over what was written into ``f_locals``; from Python 3.13 on that writes through."""
    write = getattr(ctypes.pythonapi, "PyFrame_LocalsToFast", None)
    if write is not None:
        write(ctypes.py_object(frame), ctypes.c_int(0))


def _is_partly_of_c(kind: type) -> bool:
    return any(not base.__flags__ & _IS_HEAP_TYPE for base in kind.__mro__[:-1])


def _dict_of(value: Any) -> dict[str, Any]:
    """Returns an object's attributes, past what its class makes of access to them."""
    try:
        if issubclass(type(value), threading.local):
            own: dict[str, Any] = vars(value)  # this thread's
            return own
        found = object.__getattribute__(value, "__dict__")
    except Exception:  # it has none, or a property of the user's own class raised
        return {}
    return found if type(found) is dict else {}


_SLOTS: weakref.WeakKeyDictionary[type, tuple[Any, ...]] = weakref.WeakKeyDictionary()


def _slots_of(kind: type) -> tuple[Any, ...]:
    """Returns what reads and sets the slots of a class, and of those that it inherits from."""
    found = _SLOTS.get(kind)
    if found is None:
        found = _SLOTS[kind] = tuple(
            part
            for base in kind.__mro__
            if base.__flags__ & _IS_HEAP_TYPE
            for part in vars(base).values()
            if type(part) is MemberDescriptorType
        )
    return found


def objects_of(namespace: dict[str, Any], wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """Yields the objects that :class:`Rebinder` would find, each once; nothing is changed."""
    found: list[Any] = []

    def look(value: Any) -> Any:
        if wanted(value):
            found.append(value)
        return value

    Rebinder(look).rebind(namespace)
    yield from found


def paths_of(namespace: dict[str, Any], wanted: Sequence[Any]) -> dict[int, str]:
    """Returns where things are, by their ids: ``"x"``, ``"state['mu']"``; the plainest of paths.

    The array in which a ref, or a PRNG key array, keeps its elements is where that is. Of what is
    inside an object that is not a pytree, the name alone is known: ``"model.…"``.
    """
    left = {id(thing) for thing in wanted}
    found: dict[int, str] = {}

    def note(thing: Any, path: str) -> None:
        for each in (thing, buffer_of(thing)):
            if id(each) in left:
                left.discard(id(each))
                found[id(each)] = path

    hidden = [name for name in namespace if name.startswith("_") or name in _OF_IPYTHON]
    own = [name for name in namespace if name not in hidden]
    for names in (own, hidden):
        for name in names:
            note(namespace[name], name)
        for name in names:
            for path, leaf in _leaves(namespace[name]) if left else ():
                note(leaf, name + jax.tree_util.keystr(path))
        for name in names if left else ():
            for thing in objects_of({name: namespace[name]}, lambda value: id(value) in left):
                note(thing, name + INSIDE)
    return found


def _leaves(value: Any) -> list[tuple[Any, Any]]:
    if type(value) in _ATOM_TYPES:
        return []
    try:
        return jax.tree_util.tree_leaves_with_path(value)
    except Exception:  # raised by the flattening of the user's own class
        return []
