"""``jaxnb run NOTEBOOK.ipynb``: run as it is, saved with its outputs, with an exit status."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbformat import v4

from support.fixtures import PATIENT_SECONDS

START = "%load_ext jaxnb\n%spmd_start -n 2 --platform cpu"
SUM = """%%spmd
mesh = jax.make_mesh((2,), ("d",))
x = jax.make_array_from_callback((2,), NamedSharding(mesh, P("d")), lambda i: np.ones(1))
print("sum", float(jax.jit(jnp.sum)(x)))"""


RUN = (sys.executable, "-m", "jaxnb", "run", "in.ipynb", "--output", "out.ipynb")


def write(folder: Path, cells: list[str], **metadata: object) -> None:
    """Writes a notebook; the metadata is the first cell's."""
    notebook = v4.new_notebook(cells=[v4.new_code_cell(each) for each in cells])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    notebook.cells[0].metadata.update(metadata)
    nbformat.write(notebook, folder / "in.ipynb")


def run(
    folder: Path, cells: list[str], *options: str, **metadata: object
) -> subprocess.CompletedProcess[str]:
    """Writes a notebook and runs it, to ``out.ipynb``."""
    write(folder, cells, **metadata)
    return subprocess.run(
        [*RUN, *options],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=PATIENT_SECONDS,
        check=False,
    )


def outputs(folder: Path, cell: int) -> str:
    """Returns what a cell of the saved notebook shows, as text."""
    saved = nbformat.read(folder / "out.ipynb", as_version=4)
    return str(saved.cells[cell].outputs)


def test_its_cells_run_and_an_error_ends_it(tmp_path: Path) -> None:
    uneven = "%%spmd\nif process_index == 0:\n    jax.jit(jnp.sum)(x)"
    clears = "from IPython.display import clear_output\nprint('a'); clear_output(); print('a\\na')"
    done = run(tmp_path, [START, SUM, clears, uneven, "print('never')"])
    assert done.returncode == 1
    assert done.stdout.count("a\n") == 2
    assert "[0-1] sum 2.0" in done.stdout
    assert "DivergenceError" in done.stderr
    assert "WARNING" not in done.stderr
    assert "never" not in done.stdout
    assert "[0-1] sum 2.0" in outputs(tmp_path, 1)
    assert "DivergenceError" in outputs(tmp_path, 3)
    assert nbformat.read(tmp_path / "in.ipynb", as_version=4).cells[1].outputs == []


def test_parameters_are_set_and_a_cell_may_be_meant_to_fail(tmp_path: Path) -> None:
    write(tmp_path, ["1 / 0  # meant to fail"], tags=["raises-exception"])
    meant = subprocess.run(RUN, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert meant.stderr.count("ZeroDivisionError: division by zero") == 1
    cells = ["steps = 1\nname = ''", "print(steps + 1, name)\n'end'"]
    options = ("-p", "steps", "100", "-p", "name", "a b", "-p", "stp", "1")
    done = run(tmp_path, cells, *options, tags=["parameters"])
    assert "in.ipynb has no stp in a cell that is tagged `parameters`" in done.stderr
    assert done.stdout == "101 a b\n'end'\n"
    assert done.returncode == 0
    assert "101 a b" in outputs(tmp_path, 2)  # papermill's cell comes before it


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cells", "options", "status", "told"),
    [
        (["print(1)"], (), 0, ""),
        (["import time; time.sleep(1000)"], ("--timeout", "1"), 124, "in.ipynb: A cell timed out"),
        (["import os; os._exit(1)"], (), 1, "in.ipynb: Kernel died"),
    ],
)
def test_how_it_ends(
    cells: list[str], options: tuple[str, ...], status: int, told: str, tmp_path: Path
) -> None:
    done = run(tmp_path, cells, *options)
    assert told in done.stderr
    assert done.returncode == status
