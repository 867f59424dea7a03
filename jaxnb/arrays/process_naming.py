"""By which names a user reaches objects: ``x``, ``state['opt'][0]``, ``model.layers[1].w``.

No code of the user's runs: containers are told by their exact type, and attributes are read past
``__getattr__`` and properties. So it may be done in any thread, whatever the main one does. (What
the main thread drops meanwhile may be finalised here, as the garbage collector does it in any.)
"""

from __future__ import annotations

import contextlib
import itertools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import jax

from jaxnb.compat.jax_arrays import buffer_of

_MRO = type.__dict__["__mro__"].__get__
_CLASS_DICT = type.__dict__["__dict__"].__get__


def _ids(*kinds: type) -> frozenset[int]:
    """Returns the ids of types: to compare or hash a type may run code of its metaclass."""
    return frozenset(map(id, kinds))


_DICTS = _ids(dict, OrderedDict, defaultdict)
_LISTS = _ids(list, tuple, deque)
_KEYS = _ids(str, int, bool, float, bytes, type(None))
_LEAVES = _KEYS | _ids(
    *(complex, bytearray, type, range, slice, types.ModuleType),
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType),
)
KEY_WORDS = " (key words)"
"""Behind the name of a PRNG key array for the array of its words: of another shape and dtype."""

MAX_KEY_CHARS = 60
"""A longer key is not written out."""

# Of their modules: JAX's own objects lead to all of JAX.
_OPAQUE = ("jax", "jaxlib", "numpy", "builtins", "IPython", "ipykernel", "jaxnb", "threading")

Steps = Iterator[tuple[str, Any]]


class Names:
    """Looks for objects from a namespace on, shortest names first.

    Args:
        most: How many objects are looked at before the search is given up.
    """

    def __init__(self, most: int) -> None:
        self._left = most
        self._types: dict[int, tuple[type, list[Any]]] = {}

    @property
    def gave_up(self) -> bool:
        """Whether there was more to look at."""
        return self._left <= 0

    def find(
        self, namespace: Mapping[str, Any], hidden: Collection[str], wanted: Collection[int]
    ) -> dict[int, str]:
        """Returns the id of each object that was found, and its name.

        The array in which a ref keeps its elements has that one's name; that of the words of a PRNG
        key array says that it is.

        Args:
            namespace: The user's; it may change meanwhile.
            hidden: Names in it that are not the user's.
            wanted: The ids of objects that are alive.
        """
        missing, found = set(wanted), dict[int, str]()
        queue: deque[tuple[str, Any]] = deque(_variables(namespace, hidden))
        seen: set[int] = set()
        while queue and missing and self._left > 0:
            name, thing = queue.popleft()
            if id(thing) in missing:
                found[id(thing)] = name
                missing.discard(id(thing))
            if id(thing) in seen:
                continue
            seen.add(id(thing))
            try:
                for step, child in itertools.chain(_held_by(thing), self._steps(thing)):
                    self._left -= 1
                    if id(type(child)) not in _LEAVES:
                        queue.append((name + step, child))
                    if self._left <= 0:
                        break
            except RuntimeError:  # it is being changed
                continue
        return found

    def walk(self, namespace: Mapping[str, Any], hidden: Collection[str], times: int = 1) -> Steps:
        """Yields all that is reached from a namespace, with its shortest name, each object once.

        Args:
            namespace: The user's; it may change meanwhile.
            hidden: Names in it that are not the user's.
            times: By so many names at most, where it is held by several.
        """
        queue: deque[tuple[str, Any]] = deque(_variables(namespace, hidden))
        seen: dict[int, tuple[Any, int]] = {}  # held, so that ids stay their own
        while queue and self._left > 0:
            name, thing = queue.popleft()
            _, count = seen.get(id(thing), (None, 0))
            if count >= times:
                continue
            seen[id(thing)] = thing, count + 1
            yield name, thing
            with contextlib.suppress(RuntimeError):  # it is being changed
                for step, child in self._steps(thing):
                    self._left -= 1
                    if id(type(child)) not in _LEAVES:
                        queue.append((name + step, child))
                    if self._left <= 0:
                        break

    def _steps(self, thing: Any) -> Steps:
        kind = type(thing)
        if id(kind) in _DICTS:
            return ((f"[{_key(key)}]", value) for key, value in kind.items(thing))
        if id(kind) in _LISTS:
            return ((f"[{i}]", value) for i, value in enumerate(thing))
        return self._attributes(thing)

    def _attributes(self, thing: Any) -> Steps:
        kind = type(thing)
        if id(kind) not in self._types:
            self._types[id(kind)] = kind, _readers(kind)  # held, so that the id stays its own
        for name, read in self._types[id(kind)][1]:
            if name == "__dict__":
                values = read(thing)
                if type(values) is dict:
                    for key, value in values.items():
                        if type(key) is str:
                            yield (f".{key}" if key.isidentifier() else "", value)
            elif name:
                try:
                    yield f".{name}", read(thing)
                except AttributeError:  # a slot without a value
                    continue


def _held_by(thing: Any) -> Steps:
    if _module(type(thing)) == "jax" and (held := buffer_of(thing)) is not None:
        yield (KEY_WORDS if isinstance(thing, jax.Array) else ""), held


def _variables(namespace: Mapping[str, Any], hidden: Collection[str]) -> list[tuple[str, Any]]:
    own = [
        (name, value)
        for name, value in dict(namespace).items()
        if type(name) is str and not name.startswith("_") and name not in hidden
    ]
    outputs = namespace.get("Out")
    return own + ([("Out", outputs)] if type(outputs) is dict else [])


def _readers(kind: type) -> list[tuple[str, Any]]:
    """Returns what reads the attributes that objects of a class have, by name."""
    classes = _MRO(kind)
    if _has(classes, type) or _module(kind) in _OPAQUE:
        return []
    if _has(classes, tuple):
        fields = next((d["_fields"] for d in map(_CLASS_DICT, classes) if "_fields" in d), ())
        names = fields if type(fields) is tuple and all(type(f) is str for f in fields) else ()
        return [(name, _item_reader(i)) for i, name in enumerate(names)]
    readers: list[tuple[str, Any]] = []
    for each in classes:
        for name, value in dict(_CLASS_DICT(each)).items():
            is_slot = type(value) is types.MemberDescriptorType and type(name) is str
            if is_slot or (name == "__dict__" and type(value) is types.GetSetDescriptorType):
                readers.append((name, value.__get__))
    return readers


def _has(classes: tuple[type, ...], kind: type) -> bool:
    return any(each is kind for each in classes)


def _item_reader(index: int) -> Any:
    return lambda thing: tuple.__getitem__(thing, index)


def _module(kind: type) -> str:
    module = _CLASS_DICT(kind).get("__module__")
    return module.partition(".")[0] if type(module) is str else "builtins"


def _key(key: Any) -> str:
    is_plain = id(type(key)) in _KEYS or (
        type(key) is tuple and all(id(type(part)) in _KEYS for part in key)
    )
    text = repr(key) if is_plain else "…"
    return text if len(text) <= MAX_KEY_CHARS else "…"


def first_of(things: Collection[Any], names: Mapping[int, str]) -> str | None:
    """Returns the shortest name that any of some objects has."""
    known = [names[id(thing)] for thing in things if id(thing) in names]
    return min(known, key=len, default=None)


def ids_of(groups: Collection[Collection[Any]]) -> set[int]:
    """Returns the ids of all objects of all groups."""
    return {id(thing) for thing in itertools.chain.from_iterable(groups)}
