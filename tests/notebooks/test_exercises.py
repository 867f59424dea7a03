"""Exercises in a notebook, as a student does them: cards, hints, the list, `%spmd_auto`."""

from __future__ import annotations

import os
import re
from typing import Any

import pytest

from support.course import SOLUTIONS, parts
from support.kernels import CELL_TIMEOUT_SECONDS, new_code_cell, notebook_client

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(0)]

CELLS = {
    "early": "from jaxnb import course\ncourse.all_gather.check()",
    "start": "%load_ext jaxnb\n%spmd_start -n 4 --devices-per-process 2 --platform cpu",
    "missing": "def my_all_gather(x, axis): pass\ncourse.all_gather.check()",
    "wrong": "%%spmd\n" + parts(SOLUTIONS / "wrong")["all_gather: order"],
    "checked wrong": "course.all_gather.check()",
    "hint": "course.all_gather.hint()",
    "right": "%%spmd\n" + parts(SOLUTIONS)["all_gather"],
    "checked right": "assert course.all_gather.check().passed\ncourse.all_gather.last",
    "list": "course",
    "auto": "%spmd_auto on",
    "on processes": "from jaxnb import course\ncourse.all_gather.check()",
    "local": "%%local\ncourse.all_gather.check()",
    "stop": "%spmd_stop",
}


@pytest.fixture(scope="module")
def cells() -> dict[str, Any]:
    """The cells after their run in a kernel of their own."""
    import nbformat

    notebook = nbformat.v4.new_notebook(cells=[new_code_cell(code) for code in CELLS.values()])
    client = notebook_client(notebook, timeout=CELL_TIMEOUT_SECONDS, allow_errors=True)
    client.execute(env=dict(os.environ))
    return dict(zip(CELLS, notebook.cells, strict=True))


def plain(cell: Any) -> str:
    """What a cell shows, as text: its error too."""
    found = []
    for output in cell.outputs:
        if output.output_type == "error":
            found += output.traceback
        else:
            found.append(output.get("text") or output.data["text/plain"])
    return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(found))


def test_without_a_group_it_says_what_to_type(cells: dict[str, Any]) -> None:
    text = plain(cells["early"])
    assert "There is no group of processes here. Nothing was checked." in text
    assert "%spmd_start -n 4 --devices-per-process 2" in text


def test_a_function_of_the_notebook_is_not_on_the_processes(cells: dict[str, Any]) -> None:
    text = " ".join(plain(cells["missing"]).split())
    assert "Define `my_all_gather` in a `%%spmd` cell first; the one in the notebook" in text


def test_a_verdict_is_a_card_with_a_folded_hint(cells: dict[str, Any]) -> None:
    (output,) = cells["checked wrong"].outputs
    assert "the `my_all_gather` in the notebook is another, and was not checked" in " ".join(
        output.data["text/plain"].split()
    )
    assert "<details" in output.data["text/html"]
    assert "at the place of its owner" in output.data["text/html"]
    assert "at the place of its owner" not in output.data["text/plain"]
    assert "at the place of its owner" in " ".join(plain(cells["hint"]).split())


def test_what_has_passed_is_listed(cells: dict[str, Any]) -> None:
    assert plain(cells["checked right"]).startswith("✓ all_gather · right on 4 processes")
    assert "collectives · 1 of" in plain(cells["list"])
    (output,) = cells["list"].outputs
    assert "✓" in output.data["text/html"]


def test_on_the_processes_it_says_to_use_a_local_cell(cells: dict[str, Any]) -> None:
    assert "`%%local`" in plain(cells["on processes"])
    assert plain(cells["local"]).startswith("✓ all_gather")
