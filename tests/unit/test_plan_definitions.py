"""Which definitions of cells a plan takes along."""

from __future__ import annotations

import ast

import pytest

from jaxnb.compiled.definitions import Definitions, statement_text
from jaxnb.errors import UsageError
from jaxnb.model.cells import CellRequest


def taken(plan: str, *cells: str) -> list[tuple[str, str]]:
    """Returns what would be run, as pairs of a file name and text; cells are numbered from 1."""
    requests = [CellRequest(cell=i, code=code) for i, code in enumerate(cells, 1)]
    found = []
    for statement, pieces in Definitions(requests).along(ast.parse(plan).body):
        found += [(piece.name, piece.code.strip()) for piece in pieces]
        found.append(("plan", ast.unparse(statement)))
    return found


def test_only_what_is_needed_and_in_order() -> None:
    cells = [
        "import numpy as np\nimport math\ndef unused(): return mesh",
        "SCALE = 2 * math.pi\nloaded = open('x').read()",
        "def half(x):\n    return np.asarray(x) / SCALE",
        "def f(x): return half(x)",
    ]
    assert taken("y = 3\nf(y)", *cells) == [
        ("plan", "y = 3"),
        ("<cell 1>", "import numpy as np"),
        ("<cell 1>", "import math"),
        ("<cell 2>", "SCALE = 2 * math.pi"),
        ("<cell 3>", "def half(x):\n    return np.asarray(x) / SCALE"),
        ("<cell 4>", "def f(x): return half(x)"),
        ("plan", "f(y)"),
    ]


def test_the_last_definition_counts_and_those_it_is_made_of() -> None:
    cells = ["def f(x): return 1", "def f(x): return 2", "f = jax.jit(f)", "g = lambda: f(1)"]
    assert taken("g()", *cells) == [
        ("<cell 2>", "def f(x): return 2"),
        ("<cell 3>", "f = jax.jit(f)"),
        ("<cell 4>", "g = lambda: f(1)"),
        ("plan", "g()"),
    ]
    assert taken("f(1)\nf(2)", *cells[:1]) == [
        ("<cell 1>", "def f(x): return 1"), ("plan", "f(1)"), ("plan", "f(2)"),
    ]  # fmt: skip


def test_the_plan_has_the_last_word() -> None:
    """What it makes itself is not taken, and is there when a definition needs it at once."""
    cells = ["mesh = make(4)", "@partial(shard_map, mesh=mesh)\ndef f(x): return x + size"]
    assert taken("mesh = make(256)\nsize = 3\nf(mesh)", *cells) == [
        ("plan", "mesh = make(256)"),
        ("plan", "size = 3"),
        ("<cell 2>", "@partial(shard_map, mesh=mesh)\ndef f(x): return x + size"),
        ("plan", "f(mesh)"),
    ]


def test_own_names_of_a_function_are_not_looked_for() -> None:
    cells = ["x = load()\ny = load()", "def f(x):\n    y = [x for x in x]\n    return y"]
    assert [name for name, _ in taken("f(3)", *cells)] == ["<cell 2>", "plan"]


@pytest.mark.parametrize(
    "made",
    [
        "mesh = jax.make_mesh((8,), ('x',))",
        "mesh, other = 1, 2",
        "with a as mesh: pass",
        "for mesh in []: pass",
        "mesh += 1",
        "mesh = [load() for _ in a]",
        "mesh = (other := 3)",
    ],
)
def test_values_of_the_group_are_refused(made: str) -> None:
    cells = ["mesh = 0", made, "def f(x): return mesh"]
    with pytest.raises(UsageError, match=r"`f` needs `mesh`, which cell \[2\] has made at line 1"):
        taken("f(3)", *cells)
    with pytest.raises(UsageError, match="The plan needs `mesh`"):
        taken("g(mesh)", *cells)


@pytest.mark.parametrize(
    "made",
    [
        "a = 3", "a: float = -1.5", "a = b = {'x': [1, 2]}", "a = jax.jit(jnp.sum)",
        "a = lambda: load()", "a = P('data', None)", "a = partial(jnp.sum, axis=0)",
        "import a", "from b import c as a", "class a: pass", "async def a(): pass",
    ],
)  # fmt: skip
def test_what_does_not_depend_on_devices_is_taken(made: str) -> None:
    assert taken("f(a)", made)[0] == ("<cell 1>", made)


def test_magics_are_left_out_and_lines_count_on() -> None:
    cell = CellRequest(
        cell=9, first_line=2, code="%time\n!ls\n\na = 1; b = 2\n@jit\ndef f(): pass\n"
    )
    (_, pieces), (_, decorated) = Definitions([cell]).along(ast.parse("g(b)\nf()").body)
    assert [piece.code for piece in pieces] == ["\n\n\n\nb = 2"]
    assert [piece.code for piece in decorated] == ["\n\n\n\n\n@jit\ndef f(): pass"]
    assert decorated[0].whole.splitlines()[4] == "a = 1; b = 2"
    assert taken("f()", "if x:\n%time\n", "def f(") == [("plan", "f()")]


def test_the_text_of_a_statement() -> None:
    text = "a = 1; b = (2,\n  3)"
    assert statement_text(text, ast.parse(text).body[1]) == "b = (2,\n  3)"
