"""Where things stand: which side a file runs on, and what may be imported there."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

import jaxnb

PACKAGE = Path(jaxnb.__file__).parent
AT_THE_ROOT = {"__init__", "__main__", "_version", "callers", "errors", "labels", "options"}
HOMES = {
    "jax": "process_* compat/*",
    "ipykernel": "compat/*",
    "IPython": "magics/* process_* compat/*",
    "ipyparallel": "launch/* wire/* compat/*",
}
"""Where each package may be imported: a file's name, or its folder and name."""


PYTHONS_OWN = {
    "_clear", "_current_frames", "_DummyThread", "_enter_task", "_exit", "_exit_function",
    "_fields", "_getframe", "_leave_task", "_lru_cache_wrapper", "_python_exit", "_replace",
    "_run_exitfuncs", "_set_running_loop", "_threads_queues", "_Unpickler",
}  # fmt: skip
"""Private names of the standard library, whose versions are fewer and change less."""

AGREED = {"_instance", "_render_traceback_", "_repr_mimebundle_"}
"""What IPython documents for objects to have, and singletons have of traitlets or their own."""


def modules() -> Iterator[Path]:
    return (path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse((PACKAGE / path).read_text())


@cache
def imported(path: Path) -> set[str]:
    """Returns the packages that a module imports, at its beginning or in a function."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.partition(".")[0])
    return found


@pytest.mark.parametrize("package", HOMES)
def test_it_is_imported_at_home_only(package: str) -> None:
    homes = HOMES[package].split()
    strangers = [
        str(path)
        for path in modules()
        if package in imported(path) and not any(path.with_suffix("").match(home) for home in homes)
    ]
    assert strangers == []


def private_names(tree: ast.AST) -> set[str]:
    """Returns the private attributes that code takes from what is not its own object."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and not ast.unparse(node.value).startswith("self"):
            found.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            found |= {each.value for each in node.args if isinstance(each, ast.Constant)}
    return {n for n in found if str(n).startswith("_") and not str(n).endswith("__")}


def defined_names(tree: ast.AST) -> set[str]:
    """Returns the names that code gives to functions and attributes of its own."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    attributes = (n for n in ast.walk(tree) if isinstance(n, ast.Attribute))
    return {n.name for n in ast.walk(tree) if isinstance(n, functions)} | {
        n.attr
        for n in attributes
        if isinstance(n.ctx, ast.Store) and ast.unparse(n.value) == "self"
    }


def test_private_names_of_other_packages_are_used_in_compat_only() -> None:
    used: dict[str, set[str]] = {}
    own: set[str] = set()
    for path in modules():
        if path.parts[0] != "compat":
            tree = parsed(path)
            own |= defined_names(tree)
            used[str(path)] = private_names(tree)
    known = own | PYTHONS_OWN | AGREED
    assert {path: names - known for path, names in used.items() if names - known} == {}


def test_features_are_folders() -> None:
    assert {path.stem for path in modules() if path.parent == Path()} == AT_THE_ROOT


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("jaxnb", exclude_type_checking_imports=True)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 100
    TopologicalSorter(imports).prepare()  # raises CycleError, which names one


# ---------------------------------------------------------------------- importing jaxnb is cheap


HEAVY = {"jax", "jaxlib", "ipyparallel", "IPython", "zmq", "numpy"}

PROBE = """
import sys
before = set(sys.modules)
{statement}
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}))
"""


def loaded_by(statement: str) -> set[str]:
    """Returns the top-level packages that a fresh interpreter loads for a statement."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE.format(statement=statement)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return set(done.stdout.split())


def test_import_jaxnb_loads_nothing_heavy() -> None:
    loaded = loaded_by("import jaxnb")
    assert "jaxnb" in loaded
    assert loaded & HEAVY == set()


@pytest.mark.parametrize(
    "package",
    [
        pytest.param("ipyparallel", marks=pytest.mark.thorough),
        pytest.param("jax", marks=pytest.mark.thorough),
        "IPython",
    ],
)
def test_the_probe_sees_a_heavy_import(package: str) -> None:
    assert package in loaded_by(f"import jaxnb, {package}") & HEAVY
