"""Cells whose processes part ways, and %spmd_recover, in a real notebook kernel."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from integration.test_magics import Notebook, kernel

MAKE = """%%spmd
mesh = jax.make_mesh((3,), ('x',))
table = np.arange(6, dtype=np.float32)
x = jax.make_array_from_callback((6,), NamedSharding(mesh, P('x')), lambda i: table[i])
total = jax.jit(jnp.sum)
float(total(x))
"""


def kernel_with_group() -> Iterator[Notebook]:
    """A kernel with a group of 3 processes."""
    for notebook in kernel():
        notebook.good("%spmd_start -n 3 --platform cpu")
        yield notebook


@pytest.fixture(scope="module")
def module_group() -> Iterator[Notebook]:
    yield from kernel_with_group()


@pytest.fixture
def group(module_group: Notebook) -> Notebook:
    """A kernel with a group, which a test must leave usable."""
    module_group.good(MAKE)
    return module_group


def test_recover_says_what_was_kept(group: Notebook) -> None:
    group.good("%spmd y = x * 2")
    shown = group.good("%spmd_recover").text
    assert "new processes in" in shown
    assert "kept" in shown
    assert "Lost" not in shown
    assert "30.0" in group.good("%spmd float(total(y))").text


PART = "if process_index == 1:\n    y = x * 2\nelse:\n    y = x + 1"


def test_processes_that_would_part_are_stopped(group: Notebook) -> None:
    said = group.bad(f"%%spmd\n{PART}", "CellError")
    assert "DivergenceError: The processes do not agree on dispatch 1 over processes 0-2" in said
    assert "processes 0,2: were to dispatch jit(add) float32[6], int -> float32[6] at line" in said
    assert "process 1: was to dispatch jit(multiply) float32[6], int -> float32[6]" in said
    assert "agree" not in group.good(f"%%spmd --check off\n{PART}").text
    assert "15.0" in group.good("%spmd float(total(x))").text
    assert "'strict', the default" in group.bad("%%spmd --check record\n1", "UsageError")
