"""Imports go down the drawn layers, and each outside package has its home.

``lint-imports`` checks the contracts of ``pyproject.toml``. Each is broken here once, on a
copy of the package, so that a contract that can no longer fail is noticed."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAX_LINES = 500
MAX_LINES_OF_A_CLASS = 300


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs ``lint-imports`` on the package and the contracts that a folder holds."""
    command = "import sys; from importlinter.cli import lint_imports_command as c; c()"
    return subprocess.run(
        # -P and the explicit path: the copy must win over the installed package.
        [sys.executable, "-P", "-c", f"import sys; sys.path.insert(0, {str(folder)!r}); {command}",
         "--no-cache", "--config", "pyproject.toml"],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("layers")
    shutil.copy(ROOT / "pyproject.toml", folder)
    shutil.copytree(ROOT / "jaxnb", folder / "jaxnb", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def copy(original: Path, tmp_path: Path) -> Path:
    return shutil.copytree(original, tmp_path / "copy")


def test_every_contract_is_kept(copy: Path) -> None:
    done = lint_imports(copy)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("model", "import jaxnb.session", "Imports go down the layers"),
        pytest.param(
            "cells/process_runner",
            "from jaxnb import compiled",
            "Imports go down the layers",
            marks=pytest.mark.thorough,
        ),
        ("cells/process_runner", "from jaxlib import _jax", "jaxlib is reached through jax only"),
        pytest.param("stray", "", "Imports go down the layers", marks=pytest.mark.thorough),
    ],
)
def test_a_broken_contract_is_reported(
    copy: Path, module: str, statement: str, contract: str
) -> None:
    path = copy / "jaxnb" / f"{module}.py"
    if not path.exists() and (package := path.with_suffix("")).is_dir():
        path = package / "__init__.py"
    with path.open("a") as file:
        file.write(f"\n{statement}\n")
    done = lint_imports(copy)
    assert done.returncode != 0
    assert f"{contract}" in done.stdout
    broken = [line for line in done.stdout.splitlines() if line.rstrip().endswith("BROKEN")]
    assert len(broken) == 1, done.stdout
    assert broken[0].startswith(contract)


def test_no_module_is_too_long_to_read() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in (ROOT / "jaxnb").rglob("*.py")
    }
    assert {path: n for path, n in lengths.items() if n > MAX_LINES} == {}


def test_no_class_of_the_session_is_too_long_to_read() -> None:
    lengths = {
        node.name: (node.end_lineno or 0) - node.lineno + 1
        for path in (ROOT / "jaxnb" / "session").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef)
    }
    assert len(lengths) > 20
    assert {name: n for name, n in lengths.items() if n > MAX_LINES_OF_A_CLASS} == {}
