"""Each private or undocumented name that jaxnb uses is there, and listed in the documentation."""

from __future__ import annotations

import ast
import inspect
import pkgutil
import re
import sys
from pathlib import Path

import ipyparallel  # noqa: F401  # before its modules, as jax before `jax._src`
import jax  # noqa: F401
import pytest

from jaxnb.session import Session
from unit.test_house import AGREED, PACKAGE, PYTHONS_OWN, defined_names, modules, private_names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "compat.md"
ROOTS = {
    "JAX": "jax._src", "ipykernel": "ipykernel", "IPython": "IPython",
    "ipyparallel": "ipyparallel", "pyzmq": "zmq.devices",
}  # fmt: skip
NAMES = [
    (package, name)
    for package, names in re.findall(r"^\| (\w+) \| (`.*?) \|", PAGE.read_text(), re.MULTILINE)
    for name in re.findall("`(.*?)`", names)
]
NOT_IN_IPYTHON_9_0 = {
    "core.interactiveshell.InteractiveShell._tee",
    "core.history.HistoryManager.outputs",
    "extensions.autoreload.AutoreloadMagics._reloader",
}
"""``compat`` uses them only where they are."""


def problem(name: str) -> str:
    """Returns why a name is not there as ``module.object(parameter=)``; empty if it is.

    Attributes of instances count as there if the source of their class's module has the word.
    """
    path, _, parameters = name.partition("(")
    owner, _, last = path.rpartition(".")
    try:
        found = pkgutil.resolve_name(path)
    except (ImportError, AttributeError) as error:
        home = pkgutil.resolve_name(owner)
        source = inspect.getsource(sys.modules.get(getattr(home, "__module__", owner), home))
        return "" if re.search(rf"\b{last}\b", source) else str(error)
    known = inspect.signature(found).parameters if parameters else ()
    return ", ".join(each for each in re.findall(r"(\w+)=", parameters) if each not in known)


@pytest.mark.parametrize("package", ROOTS)
def test_all_names_are_there(package: str) -> None:
    names = [name for of, name in NAMES if of == package and name not in NOT_IN_IPYTHON_9_0]
    assert names
    problems = {name: problem(f"{ROOTS[package]}.{name}") for name in names}
    assert {name: why for name, why in problems.items() if why} == {}


def test_the_page_lists_what_is_used() -> None:
    trees = {path: ast.parse((PACKAGE / path).read_text()) for path in modules()}
    own = set[str]().union(*map(defined_names, trees.values())) | PYTHONS_OWN | AGREED
    used = set[str]().union(
        *(private_names(tree) for path, tree in trees.items() if path.parts[0] == "compat")
    )
    listed = {name.partition("(")[0] for _, name in NAMES}
    assert used - own - set(".".join(listed).split(".")) == set()
    source = "\n".join((PACKAGE / path).read_text() for path in modules())
    words = {name.rpartition(".")[2] for name in listed}
    assert {word for word in words if not re.search(rf"\b{word}\b", source)} == set()


def test_a_process_keeps_no_output(session: Session) -> None:
    session.run("print('said')")
    kept = session.run("dict(getattr(get_ipython().history_manager, 'outputs', {}))").value
    assert kept == {}
