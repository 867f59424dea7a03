"""Every notebook of the course, run whole on its processes: its own assertions are the test."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.kernels import CELL_TIMEOUT_SECONDS, notebook_client, read_notebook

# The clock is CELL_TIMEOUT_SECONDS.
pytestmark = pytest.mark.timeout(0)

COURSE = Path(__file__).parents[2] / "notebooks" / "course"
IN_THE_GATE = ("01", "02", "03")
MOST_LINES = 40
"""Of one output: a longer one scrolls, and is not read."""


def notebook_of(path: Path) -> Any:
    marks = () if path.stem[:2] in IN_THE_GATE else pytest.mark.thorough
    return pytest.param(path, id=path.stem, marks=marks)


def text_of(output: Any) -> str:
    """An output as plain text, without colours."""
    match output.output_type:
        case "stream":
            text = output.text
        case "error":
            text = "\n".join(output.traceback)
        case _:
            text = output.data.get("text/plain", "")
    return re.sub(r"\x1b\[[\d;]*m", "", text)


@pytest.mark.parametrize("path", [notebook_of(path) for path in sorted(COURSE.glob("*.ipynb"))])
def test_notebook_says_what_is_true(path: Path) -> None:
    notebook = read_notebook(path)
    # It raises CellExecutionError where a cell raises that is not tagged.
    notebook_client(
        notebook,
        timeout=CELL_TIMEOUT_SECONDS,
        resources={"metadata": {"path": str(path.parent)}},
        coalesce_streams=True,
    ).execute()
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    tagged = [c.id for c in cells if "raises-exception" in c.metadata.get("tags", [])]
    assert [c.id for c in cells if any(o.output_type == "error" for o in c.outputs)] == tagged
    texts = [(cell.id, text_of(output)) for cell in cells for output in cell.outputs]
    assert [each for each, text in texts if text.count("\n") >= MOST_LINES] == []
    assert "no process is left" in text_of(cells[-1].outputs[-1])
