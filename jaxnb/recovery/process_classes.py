"""Classes that cells defined, made again by running their statement again.

So whatever is done when a class is made is done in the new process too: decorators, metaclasses,
``__init_subclass__``, and what these register elsewhere. What a class's own values are now is set
afterwards. A class that is not as its cell says (methods put in later, made by ``exec``) is carried
by what it is made of instead: see ``process_pickling_code``.
"""

from __future__ import annotations
import __future__

import ast
import enum
import inspect
import linecache
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from jaxnb.arrays.process_names import has_class, is_of_user

CELL = re.compile(r"<cell (\d+)(?:, loaded)?>")
"""The name that a cell's code has for its file."""

names_of_cells: dict[str, str] = {}
"""The names that cells have here whose own names are others' already."""


def sources_of_cells() -> dict[str, str]:
    """Returns the texts of cells, by the names that their code has."""
    names = [name for name in [*linecache.cache] if CELL.fullmatch(name)]
    return {name: "".join(linecache.getlines(name)) for name in names}


def set_sources_of_cells(sources: dict[str, str]) -> None:
    """Makes the texts of cells known; where another cell has the name, under another name."""
    known = sources_of_cells()
    names_of_cells.clear()
    for name, text in sources.items():
        if known.get(name, text) != text:
            names_of_cells[name] = f"{name[:-1].removesuffix(', loaded')}, loaded>"
        at = names_of_cells.get(name, name)
        linecache.cache[at] = len(text), None, text.splitlines(keepends=True), at


_FUTURE = sum(getattr(__future__, name).compiler_flag for name in __future__.all_feature_names)

_NOTHING = object()
"""Stands for no value."""


@dataclass(frozen=True, slots=True)
class Statement:
    """The statement that defines a class.

    Attributes:
        name: The class's.
        cell: The name of its cell: ``"<cell 3>"``.
        text: The whole cell.
        line: The first line of the statement's ``class``.
        flags: Of the compiler.
    """

    name: str
    cell: str
    text: str
    line: int
    flags: int

    @property
    def node(self) -> ast.ClassDef:
        """The statement, parsed."""
        return next(n for n in _definitions(self.text, self.name) if n.lineno == self.line)

    def compiled(self) -> CodeType:
        """Returns its code, which counts lines as the cell does."""
        module = ast.Module([self.node], [])
        code: CodeType = compile(module, self.cell, "exec", self.flags, dont_inherit=True)
        return code


def statement_of(kind: type) -> Statement | None:
    """Returns the statement of a cell that gives a class as it is; None if none is known.

    Its methods say which it is. Of a class without methods it is the last one that has no other
    names in it than the class.
    """
    if kind.__module__ != "__main__":
        return None
    codes = [function.__code__ for function in _functions(kind)]
    cells = list({code.co_filename for code in codes}) or [*sources_of_cells()]
    if codes and len(cells) != 1:  # a method was put in later
        return None
    flags = codes[0].co_flags & _FUTURE if codes else _flags_without_methods(kind)
    found = [
        Statement(node.name, cell, text, node.lineno, flags)
        for cell, text in ((cell, "".join(linecache.getlines(cell))) for cell in cells)
        for node in _definitions(text, kind.__qualname__)
        if _is_of(kind, node, codes)
    ]
    if not codes:
        found = found[-1:]
    if len(found) != 1 or not needs_statement(kind, found[0]):
        return None
    # Alone, as IPython compiles it, or in the whole cell, as where that awaits: what is imported in
    # the same text makes the compiler write other code.
    whole = compile(found[0].text, found[0].cell, "exec", flags, dont_inherit=True)
    known = {_made_of(each) for code in (found[0].compiled(), whole) for each in _inside(code)}
    return found[0] if {*map(_made_of, codes)} <= known else None


def _is_of(kind: type, node: ast.ClassDef, codes: list[CodeType]) -> bool:
    """Whether a statement may have made a class: its bases and its lines are those."""
    lines = range(node.lineno, (node.end_lineno or 0) + 1)
    if not all(code.co_firstlineno in lines for code in codes):
        return False
    if not codes and not _names_bound(node) <= {*vars(kind), *_annotations(kind)}:
        return False
    bases = getattr(kind, "__orig_bases__", kind.__bases__)
    names = [_named(base) for base in node.bases]
    return all(each is _NOTHING or each in bases for each in names)


def _names_bound(node: ast.ClassDef) -> set[str]:
    """Returns the names that the lines of a class assign or annotate."""
    targets = [target for line in node.body for target in getattr(line, "targets", ())]
    targets += [line.target for line in node.body if isinstance(line, ast.AnnAssign)]
    parts = (part for target in targets for part in ast.walk(target))
    return {part.id for part in parts if isinstance(part, ast.Name)}


def _annotations(kind: type) -> dict[str, Any]:
    try:
        return inspect.get_annotations(kind)
    except NameError:  # Python 3.14 looks names up now
        return {}


def _named(node: ast.expr) -> Any:
    """Returns what a name, or an attribute of one, stands for now; _NOTHING for what is neither."""
    match node:
        case ast.Name():
            return vars(sys.modules["__main__"]).get(node.id, _NOTHING)
        case ast.Attribute():
            return getattr(_named(node.value), node.attr, _NOTHING)
        case ast.Call():
            return _named(node.func)
    return _NOTHING


def needs_statement(kind: type, statement: Statement) -> bool:
    """Whether a library does something when a class is made, so that it has to be made again.

    That is: a metaclass, an ``__init_subclass__`` or a decorator of a library's. Other classes are
    carried by what they are made of, which is what they are now.
    """
    if not _is_plain(type(kind).__module__):
        return True
    owners = (owner for owner in kind.__mro__[1:] if "__init_subclass__" in vars(owner))
    if not all(_is_plain(owner.__module__) for owner in owners):
        return True
    return not all(
        each is _NOTHING or _is_plain(getattr(each, "__module__", None) or "builtins")
        for each in map(_named, statement.node.decorator_list)
    )


def _is_plain(module: str) -> bool:
    """Whether what a module does when a class is made is seen in the class, or the user's."""
    return is_of_user(module) or module.partition(".")[0] in (*sys.stdlib_module_names, "jax")


def _definitions(text: str, name: str) -> list[ast.ClassDef]:
    """Returns the statements of a cell that define a class of a name, the last first."""
    try:
        body = ast.parse(text).body
    except SyntaxError:  # a magic, `!command`
        return []
    found = [node for node in body if isinstance(node, ast.ClassDef) and node.name == name]
    return found[::-1]


def _functions(kind: type) -> Iterator[FunctionType]:
    """Yields the methods of a class that were written in cells."""
    for value in vars(kind).values():
        wrapped = [getattr(value, name, None) for name in ("__func__", "fget", "fset", "func")]
        for each in (value, *wrapped):
            function = each
            while isinstance(function, FunctionType) or hasattr(function, "__wrapped__"):
                code = getattr(function, "__code__", None)
                if code is not None and CELL.fullmatch(code.co_filename):
                    yield function
                function = getattr(function, "__wrapped__", None)


def _flags_without_methods(kind: type) -> int:
    is_text = any(isinstance(each, str) for each in _annotations(kind).values())
    return __future__.annotations.compiler_flag if is_text else 0


def _made_of(code: CodeType) -> Any:
    """Returns what is equal for equal code: code that has run may compare as different."""
    parts = (
        _made_of(each) if isinstance(each, CodeType) else repr(each) for each in code.co_consts
    )
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_name
    return code.co_firstlineno, code.co_code, names, tuple(parts)


def _inside(code: CodeType) -> Iterator[CodeType]:
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _inside(each)


def reduced_class(kind: type, statement: Statement) -> Any:
    """Tells pickle how a class is made again; None if it has to be carried by what it is made of.

    That is so if what its statement uses has the class in it: a registry object.
    """
    uses = _uses(kind, statement)
    if uses is None:
        return None
    arguments = statement.name, statement.cell, statement.text, statement.line, statement.flags
    defaults = [(each.__defaults__, each.__kwdefaults__) for each in _functions(kind)]
    state = own_values(kind), defaults
    return _define, (*arguments, uses), state, None, None, _set_state


def _uses(kind: type, statement: Statement) -> dict[str, Any] | None:
    """Returns the global names that the statement uses when it is run, and their values.

    Of a list, dictionary or set to which a decorator may add, and of one in which the class is by
    now, an empty one: what is in it is carried by itself.
    """
    namespace = vars(sys.modules["__main__"])
    code = statement.compiled()
    bodies = [code, *(each for each in code.co_consts if isinstance(each, CodeType))]
    left = [name for body in bodies for name in body.co_names]
    direct = {*left}
    found: dict[str, Any] = {}
    while left:
        name = left.pop(0)
        if name in found or name not in namespace or name == statement.name:
            continue
        value = found[name] = namespace[name]
        if isinstance(value, FunctionType) and value.__globals__ is namespace:
            # A decorator, which is called. Classes that it names it need not use.
            more = value.__code__.co_names
            left += [each for each in more if not isinstance(namespace.get(each), type)]
        is_inside = has_class(value, kind)
        if type(value) in (list, dict, set) and (is_inside or name not in direct):
            found[name] = type(value)()
        elif is_inside:
            return None
    return found


# ------------------------------------------------------------------------- in the new process


def _set_state(kind: type, state: tuple[dict[str, Any], list[tuple[Any, ...]]]) -> None:
    attributes, defaults = state
    assigned = _assigned(kind)
    for name, value in attributes.items():
        # What a metaclass or a decorator keeps is its own, and made again by it.
        is_internal = name.startswith("_") and name in vars(kind) and name not in assigned
        if not is_internal and vars(kind).get(name, _NOTHING) is not value:
            setattr(kind, name, value)
    # Those of the methods were worked out anew, of what the names in them stand for now.
    for function, values in zip(_functions(kind), defaults, strict=False):
        function.__defaults__, function.__kwdefaults__ = values


def _define(name: str, cell: str, text: str, line: int, flags: int, uses: dict[str, Any]) -> type:
    namespace = vars(sys.modules["__main__"])
    cell = names_of_cells.get(cell, cell)
    known = namespace.get(name)
    if isinstance(known, type) and statement_of(known) == Statement(name, cell, text, line, flags):
        return known
    code = Statement(name, cell, text, line, flags).compiled()
    before = {each: namespace.get(each, _NOTHING) for each in (name, *uses)}
    namespace.update(uses)
    try:
        exec(code, namespace)
        made: type = namespace[name]
        return made
    finally:
        for each, value in before.items():
            if value is _NOTHING:
                namespace.pop(each, None)
            else:
                namespace[each] = value


def _assigned(kind: type) -> set[str]:
    """Returns the names that the text of a class assigns to."""
    statement = statement_of(kind)
    if statement is None:
        return set()
    return {
        each.id
        for part in statement.node.body
        for each in ast.walk(part)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)
    }


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
