"""Which statements of cells a plan runs first: definitions, and assignments of plain values.

A cell's functions, classes and imports are run again by their text. So are assignments that
compute nothing, of literals, lambdas, and functions made of functions (``step = jax.jit(step)``),
and what changes such a value or a setting (``layers.append(64)``, ``jax.config.update(…)``). What
other statements bind was made for the group's devices: those names are taken away.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from jaxnb.model.cells import CellRequest
from jaxnb.model.compiled import PlanPiece

_MAKERS = frozenset(
    {
        "jit", "grad", "value_and_grad", "vmap", "checkpoint", "remat", "shard_map", "partial",
        "custom_vjp", "custom_jvp", "P", "PartitionSpec", "NamedSharding", "ShapeDtypeStruct",
        "dtype", "int", "float", "bool", "str", "len", "range", "tuple", "list", "dict", "set",
    }
)  # fmt: skip
"""Last words of what may be called in an assignment: it makes functions, describes arrays, or
makes plain values of plain values."""

_CHANGES = frozenset({"append", "extend", "insert", "add", "update", "setdefault", "pop", "remove"})
"""Methods that change a container, or a setting, in place."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_INNER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def pieces_of(cells: Iterable[CellRequest]) -> Iterator[PlanPiece]:
    """Returns the statements of cells, each with whether a plan runs it, and what it binds.

    Args:
        cells: The cells, in the order in which they have run.
    """
    for cell in cells:
        # Magics and `!commands` are no Python; the lines count on.
        lines = ["" if re.match(r"\s*[%!]", line) else line for line in cell.code.splitlines()]
        text = "\n" * (cell.first_line - 1) + "\n".join(lines)
        try:
            body = ast.parse(text).body
        except (SyntaxError, ValueError):
            continue
        for node in body:
            yield piece_of(f"<cell {cell.cell}>", text, node)


def piece_of(name: str, text: str, node: ast.stmt) -> PlanPiece:
    """Returns a statement as a piece of a plan.

    Args:
        name: The file name of its text.
        text: The text that it stands in.
        node: The statement.
    """
    bound, changed = tuple(dict.fromkeys(_bound(node))), ""
    match node:
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=changed)))):
            pass
    return PlanPiece(name, statement_text(text, node), text, bound, _is_definition(node), changed)


def statement_text(text: str, node: ast.stmt) -> str:
    """Returns a statement's text behind as many empty lines as there are before it."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    if decorators:
        start = min(each.lineno for each in decorators)
        found = "\n".join(text.splitlines()[start - 1 : node.end_lineno])
    else:
        start = node.lineno
        found = ast.get_source_segment(text, node) or ""
    return "\n" * (start - 1) + found


def _bound(node: ast.AST) -> Iterator[str]:
    """Yields the names that a statement binds, or whose value it changes in place."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.alias(name=name, asname=other):
            yield other or name.partition(".")[0]
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            yield name
        case ast.Subscript(ctx=ast.Store() | ast.Del(), value=ast.Name(id=name)):
            yield name
        case ast.Attribute(ctx=ast.Store() | ast.Del(), value=ast.Name(id=name)):
            yield name
        case ast.Expr(ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method))):
            if method in _CHANGES:
                yield name
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            yield name
    if not isinstance(node, (*_SCOPES, *_INNER)):
        for child in ast.iter_child_nodes(node):
            yield from _bound(child)


def _is_definition(node: ast.stmt) -> bool:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef() | ast.Pass():
            return True
        case ast.Import() | ast.ImportFrom():
            return True
        case ast.Assign(targets=targets, value=value):
            return all(map(_is_target, targets)) and _is_plain(value)
        case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
            return _is_target(target) and (value is None or _is_plain(value))
        case ast.Expr(ast.Call(func=ast.Attribute(value=owner, attr=method)) as call):
            is_ours = isinstance(owner, ast.Name) or ast.unparse(owner) == "jax.config"
            arguments = [*call.args, *call.keywords]
            return is_ours and method in _CHANGES and all(map(_is_plain, arguments))
        case ast.If(test=test, body=body, orelse=other):
            return _is_plain(test) and all(map(_is_definition, [*body, *other]))
        case ast.Try(body=body, handlers=handlers, orelse=other, finalbody=last):
            inner = [each for handler in handlers for each in handler.body]
            return all(map(_is_definition, [*body, *inner, *other, *last]))
    return False


def _is_target(node: ast.expr) -> bool:
    match node:
        case ast.Name():
            return True
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(map(_is_target, parts))
        case ast.Starred(value=value):
            return _is_target(value)
        case ast.Subscript(value=ast.Name(), slice=key):
            return _is_plain(key)
        case ast.Attribute(value=ast.Name()):
            return True
    return False


def _is_plain(node: ast.AST) -> bool:
    """Whether to compute a value again gives the same on any number of devices, at no cost."""
    if isinstance(node, ast.Await | ast.Yield | ast.YieldFrom | ast.NamedExpr):
        return False
    if isinstance(node, ast.Call):
        called = node.func
        last = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if last not in _MAKERS:
            return False
    # The body of a lambda is run only when it is called.
    inner = node.args if isinstance(node, ast.Lambda) else node
    return all(map(_is_plain, ast.iter_child_nodes(inner)))
