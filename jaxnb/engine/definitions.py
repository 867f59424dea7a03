"""Classes that cells defined, made again in a new process from the text of their cells."""

from __future__ import annotations

import ast
import collections
import enum
import linecache
import pickle
import re
import sys
from types import FunctionType
from typing import Any

_CELL = re.compile(r"<cell (\d+)>")


def reduced_class(kind: type) -> Any:
    """Tells how to pickle a class of a cell.

    Its statement is run again, decorators included: what they register, they register there
    too.

    Raises:
        pickle.PicklingError: No cell is known to define it by a statement of its own.
    """
    found = _statement(kind)
    if found is not None:
        if vars(sys.modules["__main__"]).get(kind.__name__, kind) is not kind:
            raise pickle.PicklingError(
                f"needs a class {kind.__qualname__} whose name has been bound anew since"
            )
        arguments = kind.__name__, *found, _codes(kind)
        return _define, arguments, own_values(kind), None, None, _set_attributes
    fields = getattr(kind, "_fields", None)
    if kind.__bases__ == (tuple,) and fields is not None:
        defaults = tuple(getattr(kind, "_field_defaults", {}).values())
        return _named_tuple, (kind.__name__, fields, defaults)
    raise pickle.PicklingError(
        f"needs the class {kind.__qualname__}: run the cell again that defines it"
    )


def _statement(kind: type) -> tuple[str, str, str] | None:
    """Returns the cell that defines a class, and the text of it up to the class's end."""
    names = [name for name in list(linecache.cache) if _CELL.fullmatch(name)]
    for name in sorted(names, key=lambda name: -int(_CELL.findall(name)[0])):
        lines = linecache.getlines(name)
        try:
            body = ast.parse("".join(lines)).body
        except SyntaxError:  # a magic, `!command`
            continue
        for node in reversed(body):
            if isinstance(node, ast.ClassDef) and node.name == kind.__qualname__:
                start = min([node.lineno, *(d.lineno for d in node.decorator_list)])
                blank = "\n" * (start - 1)  # so that its lines count as the cell's do
                return name, blank + "".join(lines[start - 1 : node.end_lineno]), "".join(lines)
    return None


def _codes(kind: type) -> dict[str, Any]:
    """Returns the code of a class's methods, to tell whether a text gives the same class."""
    found = {}
    for name, value in vars(kind).items():
        for part in (getattr(value, "__func__", None), getattr(value, "fget", None), value):
            if isinstance(part, FunctionType) and _CELL.fullmatch(part.__code__.co_filename):
                found[name] = part.__code__
    return found


def own_values(kind: type) -> dict[str, Any]:
    """Returns a class's own values; a cell may have changed them since it was defined."""
    if isinstance(kind, enum.EnumMeta):
        return {}
    return {
        name: value
        for name, value in vars(kind).items()
        if not (name.startswith("__") and name.endswith("__"))
        and name != "_abc_impl"
        and not hasattr(type(value), "__get__")
    }


def _set_attributes(kind: type, attributes: dict[str, Any]) -> None:
    for name, value in attributes.items():
        setattr(kind, name, value)


def _define(name: str, cell: str, text: str, whole: str, codes: dict[str, Any]) -> Any:
    namespace = vars(sys.modules["__main__"])
    lines = whole.splitlines(keepends=True)
    linecache.cache.setdefault(cell, (len(whole), None, lines, cell))
    exec(compile(text, cell, "exec", dont_inherit=True), namespace)
    made = namespace[name]
    if _codes(made) != codes:
        raise TypeError(f"the class {name} is not what its cell says: run that cell again")
    return made


def _named_tuple(name: str, fields: tuple[str, ...], defaults: tuple[Any, ...]) -> Any:
    return collections.namedtuple(name, fields, defaults=defaults, module="__main__")
