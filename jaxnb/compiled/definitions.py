"""Definitions of cells that a plan needs: which, in what order, and what cannot be taken along.

A cell's functions, classes and imports are taken along by their text. So are assignments of
what does not depend on devices: literals, lambdas, and functions made of functions
(``step = jax.jit(step)``). Other variables were made for the group's devices.
"""

from __future__ import annotations

import ast
import re
import symtable
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from jaxnb.errors import UsageError
from jaxnb.labels import one_line
from jaxnb.model.cells import CellRequest
from jaxnb.model.plans import PlanPiece

_MAKERS = frozenset(
    {
        "jit", "grad", "value_and_grad", "vmap", "checkpoint", "remat", "shard_map", "partial",
        "custom_vjp", "custom_jvp", "P", "PartitionSpec", "NamedSharding", "ShapeDtypeStruct",
        "dtype",
    }
)  # fmt: skip
"""Last words of what may be called in an assignment that is taken along: it makes functions, or
describes arrays, and computes nothing."""

_COMPREHENSIONS = frozenset({"listcomp", "setcomp", "dictcomp", "genexpr"})


@dataclass(frozen=True, slots=True)
class _Names:
    """What a statement needs and makes.

    Attributes:
        now: Names that it uses when it is run.
        later: Names that its functions use when they are called.
        made: Names that it binds.
    """

    now: frozenset[str]
    later: frozenset[str]
    made: frozenset[str]


@dataclass(frozen=True, slots=True)
class _Statement:
    """A statement of a cell.

    Attributes:
        place: The cell's place and the statement's.
        cell: The cell's number.
        node: The statement.
        names: What it needs and makes.
        text: The text of the cell, its lines counted as the notebook does.
    """

    place: tuple[int, int]
    cell: int
    node: ast.stmt
    names: _Names
    text: str

    @property
    def piece(self) -> PlanPiece:
        """The statement as code to run; its lines count as the cell's do."""
        return PlanPiece(f"<cell {self.cell}>", statement_text(self.text, self.node), self.text)


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


class Definitions:
    """The definitions of cells.

    Args:
        cells: The cells, in the order in which they have run.
    """

    def __init__(self, cells: Iterable[CellRequest]) -> None:
        self._statements = [each for i, cell in enumerate(cells) for each in _statements(i, cell)]
        self._taken: set[tuple[int, int]] = set()

    def along(self, body: Sequence[ast.stmt]) -> Iterator[tuple[ast.stmt, list[PlanPiece]]]:
        """Returns each statement of a plan with what of the cells has to be run before it.

        Raises:
            UsageError: It needs what cannot be taken along.
        """
        names = [_names_of(statement) for statement in body]
        own = frozenset().union(*(each.made for each in names))
        there: frozenset[str] = frozenset()
        for statement, each in zip(body, names, strict=True):
            needed = (each.now - there) | (each.later - own)
            found: dict[tuple[int, int], _Statement] = {}
            for name in sorted(needed):
                self._find(name, own, there, None, found, name)
            self._taken |= found.keys()
            yield statement, [found[place].piece for place in sorted(found)]
            there |= each.made

    def _find(
        self,
        name: str,
        own: frozenset[str],
        there: frozenset[str],
        before: tuple[int, int] | None,
        found: dict[tuple[int, int], _Statement],
        whose: str,
    ) -> None:
        """Finds what makes a name, and what that needs; what no cell makes is left to Python."""
        known = [s for s in self._statements if name in s.names.made]
        known = [s for s in known if before is None or s.place < before]
        if not known or known[-1].place in found or known[-1].place in self._taken:
            return
        statement = known[-1]
        _require_definition(statement, name, whose)
        found[statement.place] = statement
        for needed in sorted(statement.names.now - there):
            self._find(needed, own, there, statement.place, found, name)
        for needed in sorted(statement.names.later - own):
            self._find(needed, own, there, None, found, name)


def _statements(place: int, cell: CellRequest) -> Iterator[_Statement]:
    # Magics and `!commands` are no Python; the lines count on.
    lines = ["" if re.match(r"\s*[%!]", line) else line for line in cell.code.splitlines()]
    text = "\n" * (cell.first_line - 1) + "\n".join(lines)
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError):
        return
    for number, node in enumerate(body):
        yield _Statement((place, number), cell.cell, node, _names_of(node), text)


def _names_of(statement: ast.stmt) -> _Names:
    table = symtable.symtable(ast.unparse(statement), "<statement>", "exec")
    now, later, made = set[str](), set[str](), set[str]()
    for symbol in table.get_symbols():
        if symbol.is_assigned() or symbol.is_imported():
            made.add(symbol.get_name())
        if symbol.is_referenced():
            now.add(symbol.get_name())
    for child in table.get_children():
        _add_globals(child, now, later, is_later=False)
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        later -= made  # it calls itself
    return _Names(frozenset(now), frozenset(later), frozenset(made))


def _add_globals(
    table: symtable.SymbolTable, now: set[str], later: set[str], *, is_later: bool
) -> None:
    runs_later = table.get_type() == "function" and table.get_name() not in _COMPREHENSIONS
    is_later = is_later or runs_later
    for symbol in table.get_symbols():
        if symbol.is_global():
            (later if is_later else now).add(symbol.get_name())
    for child in table.get_children():
        _add_globals(child, now, later, is_later=is_later)


def _require_definition(statement: _Statement, name: str, whose: str) -> None:
    node = statement.node
    if isinstance(
        node,
        ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom,
    ):
        return
    if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if all(isinstance(t, ast.Name) for t in targets) and _is_free_of_devices(node.value):
            return
    needs = f"`{whose}` needs `{name}`" if whose != name else f"The plan needs `{name}`"
    text = one_line(ast.unparse(node).splitlines()[0])
    raise UsageError(
        f"{needs}, which cell [{statement.cell}] has made at line {node.lineno} for the devices of "
        f"the group: `{text}`. Nothing was run. Make `{name}` in the plan, before the call: there "
        "it is made for as many devices as are planned."
    )


def _is_free_of_devices(node: ast.AST) -> bool:
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
    return all(map(_is_free_of_devices, ast.iter_child_nodes(inner)))
