"""Which statements of cells a plan runs, and what the others have bound."""

from __future__ import annotations

import ast

import pytest

from jaxnb.compiled.planning import pieces_of, statement_text
from jaxnb.model.cells import CellRequest


def test_statements_in_order_with_what_they_bind() -> None:
    cells = ["import numpy as np, math\nmesh = make(4)", "SCALE = 2 * math.pi\ndef f(x): y = 1"]
    requests = [CellRequest(cell=i, code=code) for i, code in enumerate(cells, 1)]
    assert [
        (each.name, each.code.strip(), each.bound, each.is_definition, each.line)
        for each in pieces_of(requests)
    ] == [
        ("<cell 1>", "import numpy as np, math", ("np", "math"), True, 1),
        ("<cell 1>", "mesh = make(4)", ("mesh",), False, 2),
        ("<cell 2>", "SCALE = 2 * math.pi", ("SCALE",), True, 1),
        ("<cell 2>", "def f(x): y = 1", ("f",), True, 2),
    ]


@pytest.mark.parametrize(
    "made",
    [
        "a = jax.make_mesh((8,), ('x',))", "a, b = load()", "with c as a: pass",
        "for a in []: pass", "a += load()", "a = [load() for _ in c]", "a = (other := 3)",
        "if load(): a = 3", "a['x'] = load()", "a.append(load())", "(a := 3)", "del a",
        "match x:\n    case [a]: pass",
    ],
)  # fmt: skip
def test_what_is_computed_is_not_run_and_its_name_is_known(made: str) -> None:
    (piece,) = pieces_of([CellRequest(cell=1, code=made)])
    assert not piece.is_definition
    assert "a" in piece.bound


@pytest.mark.parametrize(
    "made",
    [
        "a = 3", "a: float = -1.5", "a = b = {'x': [1, 2]}", "a = jax.jit(jnp.sum)",
        "a = lambda: load()", "a = P('data', None)", "a = partial(jnp.sum, axis=0)",
        "import a", "from b import c as a", "class a: pass", "async def a(): pass",
        "a, b = 768, 3072", "a, (b, *c) = 1, (2, 3)", "a += 1", "a['x'] = 3", "a.append(64)",
        "if x:\n    def a(): pass", "try:\n    import a\nexcept ImportError:\n    a = None",
    ],
)  # fmt: skip
def test_what_does_not_depend_on_devices_is_run(made: str) -> None:
    (piece,) = pieces_of([CellRequest(cell=1, code=made)])
    assert piece.is_definition
    assert "a" in piece.bound


def test_names_within_functions_and_comprehensions_are_not_bound() -> None:
    code = "def f(x):\n    y = [z for z in x]\n    return y\nb = [z for z in 'ab']"
    assert [each.bound for each in pieces_of([CellRequest(cell=1, code=code)])] == [("f",), ("b",)]


def test_magics_are_left_out_and_lines_count_on() -> None:
    cells = [
        CellRequest(cell=9, first_line=2, code="%time\n!ls\n\na = 1; b = 2\n@jit\ndef f(): pass\n"),
        CellRequest(cell=10, code="def f("),
    ]
    first, second, decorated = pieces_of(cells)
    assert [first.line, second.code, second.line] == [5, "\n\n\n\nb = 2", 5]
    assert decorated.code == "\n\n\n\n\n@jit\ndef f(): pass"
    assert decorated.whole.splitlines()[4] == "a = 1; b = 2"


def test_the_text_of_a_statement() -> None:
    text = "a = 1; b = (2,\n  3)"
    assert statement_text(text, ast.parse(text).body[1]) == "b = (2,\n  3)"
