"""Where things stand: which side a file runs on, and what may be imported there."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

import jaxnb

PACKAGE = Path(jaxnb.__file__).parent
AT_THE_ROOT = {"__init__", "_version", "callers", "errors", "labels", "options"}
HOMES = {
    "jax": "process_* compat/*",
    "IPython": "magics/* process_*",
    "ipyparallel": "launch/* wire/* session/process_endpoint",
}
"""Where each package may be imported: a file's name, or its folder and name."""


def modules() -> Iterator[Path]:
    return (path.relative_to(PACKAGE) for path in sorted(PACKAGE.rglob("*.py")))


def imported(path: Path) -> set[str]:
    """Returns the packages that a module imports, at its beginning or in a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / path).read_text())):
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


def test_features_are_folders() -> None:
    assert {path.stem for path in modules() if path.parent == Path()} == AT_THE_ROOT


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = grimp.build_graph("jaxnb", exclude_type_checking_imports=True)
    imports = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    assert len(imports) > 300
    TopologicalSorter(imports).prepare()  # raises CycleError, which names one
