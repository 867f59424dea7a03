"""Replacing objects wherever a namespace holds them: in containers, objects and closures."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import partial
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

import jax

from jaxnb.engine import _jax_internals

MAX_DEPTH = 200
"""Deeper structures (a linked list) are left alone below this."""

_ATOMS = (str, bytes, bytearray, int, float, complex, bool, type(None), ModuleType, range)


class Rebinder:
    """Walks what names are bound to and replaces what is to be replaced.

    Dicts, lists, sets, dataclasses, objects of classes that cells defined, those classes,
    partials and closures are changed in place, so that whoever shares them sees the change;
    tuples and other pytrees, and functions that were jitted with shardings, are made anew.

    Args:
        swap: Returns what stands for an object from now on; the object itself to leave it.
    """

    def __init__(self, swap: Callable[[Any], Any]) -> None:
        self._swap = swap
        self._done: dict[int, tuple[Any, Any]] = {}

    def rebind(self, namespace: dict[str, Any]) -> None:
        """Replaces objects in all values of a namespace."""
        for name, value in list(namespace.items()):
            new = self.visit(value)
            if new is not value:
                namespace[name] = new

    def visit(self, value: Any, depth: int = 0) -> Any:
        """Returns what stands for a value: itself, changed inside or not, or another one."""
        if isinstance(value, _ATOMS) or depth > MAX_DEPTH:
            return value
        if id(value) in self._done:
            return self._done[id(value)][1]
        new = self._swap(value)
        # The old one is kept too: else its id could become another object's.
        self._done[id(value)] = value, new
        if new is value:
            new = self._visit_inside(value, depth + 1)
            self._done[id(value)] = value, new
        return new

    def _visit_inside(self, value: Any, depth: int) -> Any:
        match value:
            case dict():
                self._visit_dict(value, depth)
            case list() | deque():
                self._change(list(enumerate(value)), value.__setitem__, depth)
            case set() | frozenset():
                return self._visit_set(value, depth)
            case type():
                if value.__module__ == "__main__":
                    self._change(list(vars(value).items()), partial(setattr, value), depth)
            case FunctionType():
                self._visit_function(value, depth)
            case staticmethod() | classmethod():
                self.visit(value.__func__, depth)
            case MethodType():
                owner = self.visit(value.__self__, depth)
                return value if owner is value.__self__ else MethodType(value.__func__, owner)
            case partial():
                self._visit_partial(value, depth)
            case _:
                return self._visit_other(value, depth)
        return value

    def _visit_other(self, value: Any, depth: int) -> Any:
        settings = _jax_internals.jit_settings(value)
        if settings is not None:
            self.visit(value.__wrapped__, depth)
            new = self.visit(settings, depth)
            return value if new is settings else _jax_internals.jit_again(value, new)
        of_cell = type(value).__module__ == "__main__"
        # A pytree's static fields are not among its leaves: in place, all fields are reached.
        if (of_cell or is_dataclass(value)) and not isinstance(value, tuple):
            self.visit(type(value), depth)
            self.visit(_dict_of(value), depth)
            self._change(list(_slots_of(value)), partial(object.__setattr__, value), depth)
            return value
        self.visit(_dict_of(value).get("__wrapped__"), depth)
        return self._visit_pytree(value, depth)

    def _change(
        self, items: list[tuple[Any, Any]], put: Callable[[Any, Any], object], depth: int
    ) -> None:
        for key, part in items:
            new = self.visit(part, depth)
            if new is not part:
                put(key, new)

    def _visit_dict(self, value: dict[Any, Any], depth: int) -> None:
        keys = list(value)
        new = [self.visit(key, depth) for key in keys]
        if any(a is not b for a, b in zip(keys, new, strict=True)):
            items = list(zip(new, value.values(), strict=True))
            value.clear()
            value.update(items)
        self._change(list(value.items()), value.__setitem__, depth)

    def _visit_set(self, value: Any, depth: int) -> Any:
        parts = list(value)
        new = [self.visit(part, depth) for part in parts]
        if all(a is b for a, b in zip(parts, new, strict=True)):
            return value
        if isinstance(value, frozenset):
            return type(value)(new)
        value.clear()
        value.update(new)
        return value

    def _visit_function(self, function: FunctionType, depth: int) -> None:
        cells: tuple[CellType, ...] = function.__closure__ or ()
        for cell in cells:
            with contextlib.suppress(ValueError):  # it is still empty
                new = self.visit(cell.cell_contents, depth)
                if new is not cell.cell_contents:
                    cell.cell_contents = new
        if function.__defaults__:
            function.__defaults__ = self.visit(function.__defaults__, depth)
        self.visit(function.__kwdefaults__, depth)
        self.visit(function.__dict__, depth)

    def _visit_partial(self, value: partial[Any], depth: int) -> None:
        parts = value.func, value.args, value.keywords
        new = tuple(self.visit(part, depth) for part in parts)
        if any(a is not b for a, b in zip(parts, new, strict=True)):
            value.__setstate__((*new, _dict_of(value)))  # type: ignore[attr-defined]

    def _visit_pytree(self, value: Any, depth: int) -> Any:
        try:
            leaves, structure = jax.tree.flatten(value, is_leaf=lambda part: part is not value)
            new = [self.visit(leaf, depth) for leaf in leaves]
            if all(a is b for a, b in zip(leaves, new, strict=True)):
                return value
            return jax.tree.unflatten(structure, new)
        except Exception:  # raised by the flattening or unflattening of the user's own class
            return value


def _dict_of(value: Any) -> dict[str, Any]:
    """Returns an object's attributes, past what its class makes of access to them."""
    try:
        found = object.__getattribute__(value, "__dict__")
    except Exception:  # it has none, or a property of the user's own class raised
        return {}
    return found if isinstance(found, dict) else {}


def _slots_of(value: Any) -> Iterator[tuple[str, Any]]:
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            with contextlib.suppress(AttributeError):  # it has not been set
                yield name, object.__getattribute__(value, name)


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

    Of what is inside an object that is no pytree, the name alone is known: ``"model.…"``.
    """
    left = {id(thing) for thing in wanted}
    found: dict[int, str] = {}

    def note(thing: Any, path: str) -> None:
        if id(thing) in left:
            left.discard(id(thing))
            found[id(thing)] = path

    names = sorted(namespace, key=lambda name: name.startswith("_") or name in ("In", "Out"))
    for name in names:
        note(namespace[name], name)
    for name in names:
        for path, leaf in _leaves(namespace[name]) if left else ():
            note(leaf, name + jax.tree_util.keystr(path))
    for name in names if left else ():
        for thing in objects_of({name: namespace[name]}, lambda value: id(value) in left):
            note(thing, f"{name}.…")
    return found


def _leaves(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, _ATOMS):
        return []
    try:
        return jax.tree_util.tree_leaves_with_path(value)
    except Exception:  # raised by the flattening of the user's own class
        return []
