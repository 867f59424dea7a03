"""Where in the variables an object is: the path by which a cell reaches it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import site
import sys
import sysconfig
from collections import OrderedDict, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
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

from jaxnb.compat.jax_pytrees import is_registered

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
    seen: set[int] = set()
    level = [Found(name, (value,)) for name, value in variables.items()]
    while level and len(found) < len(wanted):
        below = []
        for each in level:
            value = each.chain[-1]
            if id(value) in seen:
                continue
            seen.add(id(value))
            if id(value) in wanted:
                found[id(value)] = each
            below += [
                Found(each.path + step, (*each.chain, part))
                for step, part in _parts(value)
                if id(part) not in seen and not issubclass(type(part), _PLAIN)
            ]
        level = below
    return found


def holders_of(variables: Mapping[str, Any], wanted: Iterable[int]) -> dict[int, list[str]]:
    """Returns which variables hold objects, by the ids of these; all are looked through once."""
    parents: dict[int, list[int]] = {}
    seen: set[int] = set()
    left = list(variables.values())
    while left:
        value = left.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        for _, part in _parts(value):
            if not issubclass(type(part), _PLAIN):
                parents.setdefault(id(part), []).append(id(value))
                left.append(part)
    found = {}
    for key in wanted:
        above, todo = {key}, [key]
        while todo:
            new = set(parents.get(todo.pop(), ())) - above
            above |= new
            todo += new
        found[key] = [name for name, value in variables.items() if id(value) in above]
    return found


def has_class(value: Any, kind: type) -> bool:
    """Whether a class, or an object of it, is in a value."""
    seen: set[int] = set()
    left = [value]
    while left:
        each = left.pop()
        if each is kind or type(each) is kind:
            return True
        if id(each) not in seen:
            seen.add(id(each))
            left += [part for _, part in _parts(each) if not issubclass(type(part), _PLAIN)]
    return False


def _parts(value: Any) -> list[tuple[str, Any]]:
    """Returns what :func:`parts_of` yields; what cannot be looked into has no parts.

    Another thread may change it meanwhile: then it is looked at once more.
    """
    for _ in range(MOST_LOOKS):
        try:
            return list(parts_of(value))
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
    attributes = _attributes(value)
    wrapped = attributes.get("__wrapped__")
    if wrapped is not None:  # what was jitted, or cached: it is known by the same name
        yield "", wrapped
    yield from ((f".{name}", part) for name, part in attributes.items() if part is not wrapped)


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
    own = getattr(type(value), "__dict__", {}).get("__getattribute__")
    found: dict[str, Any] = {}
    if own is None:
        inside = object.__getattribute__(value, "__dict__") if _has_dict(value) else {}
        found = dict(inside) if isinstance(inside, dict | MappingProxyType) else {}
    for kind in type(value).__mro__:
        if is_of_user(kind.__module__):
            slots = {n: s for n, s in vars(kind).items() if type(s) is MemberDescriptorType}
            for name, slot in slots.items():
                with contextlib.suppress(AttributeError):  # it has not been set
                    found[name] = slot.__get__(value)
    return found


def _has_dict(value: Any) -> bool:
    try:
        object.__getattribute__(value, "__dict__")
    except AttributeError:
        return False
    return True


def _text(key: Any) -> str:
    return (
        repr(key) if isinstance(key, str | int | float | tuple | None) else type(key).__qualname__
    )


@functools.cache
def _places() -> tuple[str, ...]:
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
    if file.startswith(_places()):
        return False
    # What pip has installed elsewhere (`--target`) has its records beside it.
    top = getattr(sys.modules.get(module.partition(".")[0]), "__file__", None) or file
    folder = Path(top).parent.parent if Path(top).name == "__init__.py" else Path(top).parent
    return not any(folder.glob("*.dist-info"))


_OWN = str(Path(__file__).resolve().parents[1])
