"""Classes that cells defined, made again in a new process from the text of their cells."""

from __future__ import annotations

import ast
import collections
import linecache
import pickle
import re
import sys
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
        return _define, (kind.__name__, *found)
    fields = getattr(kind, "_fields", None)
    if kind.__bases__ == (tuple,) and fields is not None:
        defaults = tuple(getattr(kind, "_field_defaults", {}).values())
        return _named_tuple, (kind.__name__, fields, defaults)
    raise pickle.PicklingError(
        f"needs the class {kind.__qualname__}: run the cell again that defines it"
    )


def _statement(kind: type) -> tuple[str, str] | None:
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
                return name, blank + "".join(lines[start - 1 : node.end_lineno])
    return None


def _define(name: str, cell: str, text: str) -> Any:
    namespace = vars(sys.modules["__main__"])
    lines = text.splitlines(keepends=True)
    linecache.cache.setdefault(cell, (len(text), None, lines, cell))
    exec(compile(text, cell, "exec"), namespace)
    return namespace[name]


def _named_tuple(name: str, fields: tuple[str, ...], defaults: tuple[Any, ...]) -> Any:
    return collections.namedtuple(name, fields, defaults=defaults, module="__main__")
