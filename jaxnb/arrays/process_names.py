"""How a process names what it holds, and finds what a name and a path mean."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import os
import site
import sys
import sysconfig
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import (
    CellType,
    FunctionType,
    MappingProxyType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import jax

from jaxnb.compat.jax_arrays import buffer_of, is_registered

# :class:`Names` runs no code of the user's: containers are recognised by their exact type, and
# attributes are read past ``__getattr__`` and properties. So it may run in any thread, whatever the
# main one does. (What the main thread drops meanwhile may be finalised here, as the garbage
# collector does it in any thread.)

_MRO = type.__dict__["__mro__"].__get__
_CLASS_DICT = type.__dict__["__dict__"].__get__


def _ids(*kinds: type) -> frozenset[int]:
    """Returns the ids of types: to compare or hash a type may run code of its metaclass."""
    return frozenset(map(id, kinds))


_DICTS = _ids(dict, OrderedDict, defaultdict)
_LISTS = _ids(list, tuple, deque)
_KEYS = _ids(str, int, bool, float, bytes, type(None))
_LEAVES = _KEYS | _ids(
    *(complex, bytearray, type, range, slice, ModuleType),
    *(FunctionType, types.BuiltinFunctionType, MethodType),
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
        for name, thing in self.walk(namespace, hidden, with_held=True) if missing else ():
            if id(thing) in missing:
                found[id(thing)] = name
                missing.discard(id(thing))
                if not missing:
                    break
        return found

    def walk(
        self,
        namespace: Mapping[str, Any],
        hidden: Collection[str],
        times: int = 1,
        *,
        with_held: bool = False,
    ) -> Steps:
        """Yields all that is reached from a namespace, with its shortest name, each object once.

        Args:
            namespace: The user's; it may change meanwhile.
            hidden: Names in it that are not the user's.
            times: By so many names at most, where it is held by several.
            with_held: Also the array in which a ref or an array of PRNG keys keeps its elements.
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
                held = _held_by(thing) if with_held else ()
                for step, child in itertools.chain(held, self._steps(thing)):
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
                for key, value in values.items() if type(values) is dict else ():
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
        return [
            (name, lambda thing, i=i: tuple.__getitem__(thing, i)) for i, name in enumerate(names)
        ]
    readers: list[tuple[str, Any]] = []
    for each in classes:
        for name, value in dict(_CLASS_DICT(each)).items():
            is_slot = type(value) is MemberDescriptorType and type(name) is str
            if is_slot or (name == "__dict__" and type(value) is types.GetSetDescriptorType):
                readers.append((name, value.__get__))
    return readers


def _has(classes: tuple[type, ...], kind: type) -> bool:
    return any(each is kind for each in classes)


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


_CONTAINERS = (
    dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict, MappingProxyType,
    functools.partial, FunctionType, MethodType, CellType, ModuleType, type,
)  # fmt: skip


_PLAIN = (str, bytes, int, float, type(None))


@dataclass(frozen=True, slots=True)
class Found:
    """An object, where it is.

    Attributes:
        path: As a cell would write it: ``"state['loader']"``.
        chain: The objects on the way: the name's value first, the object itself last.
    """

    path: str
    chain: tuple[Any, ...]

    @property
    def outermost_opaque(self) -> Any:
        """The first object on the way of which a part cannot be left out; None if there is none.

        Of containers, pytrees, dataclasses and objects of the user's own classes it can be.
        """
        return next((each for each in self.chain if is_opaque(each)), None)


def is_opaque(value: Any) -> bool:
    """Whether an object is a library's, whose parts belong together: a lock, a client, a pool."""
    kind = type(value)
    return not (
        issubclass(kind, _CONTAINERS)
        or is_of_user(kind.__module__)
        or dataclasses.is_dataclass(kind)
        or is_registered(kind)
    )


def paths_to(variables: Mapping[str, Any], wanted: set[int]) -> dict[int, Found]:
    """Finds objects in variables, by the shortest way.

    Args:
        variables: Names and values.
        wanted: The ids of the objects.

    Returns:
        What was found, by id: what no attribute, element or closure leads to is not.
    """
    found: dict[int, Found] = {}
    for each in _reached(variables) if wanted else ():
        key = id(each.chain[-1])
        if key in wanted:
            found[key] = each
            if len(found) == len(wanted):
                break
    return found


def _reached(variables: Mapping[str, Any]) -> Iterator[Found]:
    """Yields all that variables lead to, each object once, by the shortest way."""
    seen: set[int] = set()
    left = deque(Found(name, (value,)) for name, value in variables.items())
    while left:
        each = left.popleft()
        value = each.chain[-1]
        if id(value) in seen:
            continue
        seen.add(id(value))
        yield each
        left += [
            Found(each.path + step, (*each.chain, part))
            for step, part in _parts(value)
            if id(part) not in seen
        ]


def holders_of(variables: Mapping[str, Any], wanted: Iterable[int]) -> dict[int, list[str]]:
    """Returns which variables hold objects, by the ids of these."""
    found: dict[int, list[str]] = {key: [] for key in wanted}
    for name, value in variables.items():
        for key in paths_to({name: value}, set(found)):
            found[key].append(name)
    return found


def has_class(value: Any, kind: type) -> bool:
    """Whether a class, or an object of it, is in a value."""
    met = (each.chain[-1] for each in _reached({"": value}))
    return any(each is kind or type(each) is kind for each in met)


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Returns what :func:`parts_of` yields, but plain values; what cannot be looked into has none.

    Another thread may change it meanwhile: then it is looked at once more.
    """
    for _ in range(MOST_LOOKS):
        try:
            parts = list(parts_of(value))
            return [each for each in parts if not issubclass(type(each[1]), _PLAIN)]
        except RuntimeError:
            continue
        except Exception:  # of code of the user's: a dict's own `items`
            break
    return []


MOST_LOOKS = 5


def parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the parts of an object, with what leads to each."""
    kind = type(value)
    if issubclass(kind, dict | MappingProxyType):
        yield from ((f"[{_text(key)}]", part) for key, part in value.items())
    elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
        yield from ((f".{name}", part) for name, part in zip(kind._fields, value, strict=False))
    elif issubclass(kind, list | tuple | deque):
        yield from ((f"[{i}]", part) for i, part in enumerate(value))
    elif issubclass(kind, set | frozenset):
        yield from ((f" element {_text(part)}", part) for part in value)
    elif kind is FunctionType:
        yield from _closed_over(value)
    elif kind is MethodType:
        yield ".__self__", value.__self__
    elif kind is functools.partial:
        yield ".func", value.func
        yield from ((f".args[{i}]", part) for i, part in enumerate(value.args))
        yield from ((f".keywords[{key!r}]", part) for key, part in value.keywords.items())
    if kind is ModuleType or (issubclass(kind, type) and not is_of_user(value.__module__)):
        return
    if kind.__module__.partition(".")[0] in _OF_THE_SHELL:
        return
    attributes = _attributes(value)
    wrapped = attributes.get("__wrapped__")
    if wrapped is not None:  # what was jitted, or cached: it is known by the same name
        yield "", wrapped
    yield from ((f".{name}", part) for name, part in attributes.items() if part is not wrapped)


_OF_THE_SHELL = frozenset(("ipykernel", "IPython", "ipyparallel", "zmq"))
"""What runs cells holds all their variables: a thread, or a logger, by its standard output."""


def _closed_over(function: FunctionType) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            yield f"'s variable {name}", cell.cell_contents
        except ValueError:  # it is still empty
            continue
    yield from ((f"'s default [{i}]", part) for i, part in enumerate(function.__defaults__ or ()))
    for name, part in (function.__kwdefaults__ or {}).items():
        yield f"'s default {name}", part


def _attributes(value: Any) -> Mapping[str, Any]:
    """Returns the attributes of an object; no property of the user's is run."""
    found: dict[str, Any] = {}
    if "__getattribute__" not in getattr(type(value), "__dict__", {}):
        with contextlib.suppress(AttributeError):  # it has none
            inside = object.__getattribute__(value, "__dict__")
            found = dict(inside) if isinstance(inside, dict | MappingProxyType) else {}
    for kind in type(value).__mro__:
        if is_of_user(kind.__module__):
            for name, slot in vars(kind).items():
                if type(slot) is MemberDescriptorType:
                    with contextlib.suppress(AttributeError):  # it has not been set
                        found[name] = slot.__get__(value)
    return found


def _text(key: Any) -> str:
    is_plain = isinstance(key, str | int | float | tuple | None)
    return repr(key) if is_plain else type(key).__qualname__


@functools.cache
def library_places() -> tuple[str, ...]:
    """Returns the folders that hold Python's own modules, and what is installed beside them."""
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    places |= {*site.getsitepackages(), site.getusersitepackages(), _OWN}
    return tuple(f"{place}{os.sep}" for place in places)


@functools.cache
def is_of_user(module: str) -> bool:
    """Whether a module is one that the user wrote: a cell, or a file beside the notebook."""
    if module == "__main__":
        return True
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return False
    if file.startswith(library_places()):
        return False
    # What pip has installed elsewhere (`--target`) has its records beside it.
    top = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or file
    folder = Path(top).parent.parent if Path(top).name == "__init__.py" else Path(top).parent
    return not any(folder.glob("*.dist-info"))


_OWN = str(Path(__file__).resolve().parents[1])
