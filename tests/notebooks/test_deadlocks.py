"""The notebook on deadlocks, run whole on four real processes: none of them happens."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from notebooks.test_quickstart import Executed as AnyExecuted
from notebooks.test_quickstart import shown
from support.kernels import CELL_TIMEOUT_SECONDS, notebook_client, read_notebook
from support.shown import who_wrote

# The clock is CELL_TIMEOUT_SECONDS; this one would have the first test pay for the whole notebook.
pytestmark = pytest.mark.timeout(0)

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "deadlocks.ipynb"
ALL = [0, 1, 2, 3]
RAISES = "raises-exception"

SHAPES = "jax.jit(jnp.mean)(spread(block))"
DEADLOCK = "if len(block) < 4:\n    whole = everywhere(x)\nprint"
SETS = "wrong = {"
LAST_BATCH = "for batch in my_batches:\n"


class Executed(AnyExecuted):
    """The notebook's code cells after its run."""

    def lines(self, fragment: str) -> list[str]:
        """What the one cell with that fragment shows, as lines of plain text."""
        return self.text(fragment).splitlines()

    def error(self, fragment: str) -> tuple[str, str]:
        """That cell's error: its kind, and all of its text."""
        outputs = self.cell(fragment).outputs
        (error,) = [output for output in outputs if output.output_type == "error"]
        text = "\n".join([error.evalue, *error.traceback])
        return error.ename, re.sub(r"\x1b\[[\d;]*m", "", text)

    def after(self, fragment: str) -> Any:
        """The code cell that comes next."""
        return self.cells[self.cells.index(self.cell(fragment)) + 1]


@pytest.fixture(scope="module")
def executed() -> Executed:
    """The notebook, executed by nbclient in a kernel of its own."""
    notebook = read_notebook(NOTEBOOK)
    client = notebook_client(
        notebook,
        timeout=CELL_TIMEOUT_SECONDS,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        coalesce_streams=True,
    )
    client.execute()
    return Executed([cell for cell in notebook.cells if cell.cell_type == "code"])


def test_cells_fail_that_are_meant_to_and_no_others(executed: Executed) -> None:
    assert all(cell.execution_count for cell in executed.cells)
    failed = [c for c in executed.cells if any(o.output_type == "error" for o in c.outputs)]
    tagged = [c for c in executed.cells if RAISES in c.metadata.get("tags", [])]
    assert [c.source for c in failed] == [c.source for c in tagged]
    assert failed == [executed.cell(each) for each in (SHAPES, DEADLOCK, LAST_BATCH, SETS)]


def refused(executed: Executed, fragment: str) -> str:
    """What a cell says whose processes did not agree."""
    name, text = executed.error(fragment)
    assert name == "CellError"
    assert "None of it has run" in text
    assert "anew" not in shown(executed.cell(fragment))
    return text


def test_other_shapes_give_other_means_or_an_error(executed: Executed) -> None:
    lines = executed.lines("mean = jax.jit(jnp.mean)(batch)")
    assert who_wrote(lines, "the mean of 16 rows is 0.9375") == [0, 1, 2]
    assert who_wrote(lines, "the mean of 12 rows is 1.2500") == [3]
    text = refused(executed, SHAPES)
    assert re.search(r"processes 0-2: were to dispatch .*float32\[16,2\]", text)
    assert re.search(r"process 3: was to dispatch .*float32\[12,2\]", text)


def test_nobody_waits_for_the_others(executed: Executed) -> None:
    text = refused(executed, DEADLOCK)
    assert re.search(r"processes 0-2: were to dispatch jit\(sum\) [^;]* at line 5", text)
    assert re.search(r"process 3: was to dispatch jit\(<lambda>\) [^;]* at line 4", text)


def test_variables_outlive_the_deadlock(executed: Executed) -> None:
    lines = shown(executed.after(DEADLOCK)).splitlines()
    assert who_wrote(lines, "steps: 2 and the sum over all processes is still 12.0") == ALL
    lines = executed.lines("rows by process")
    assert who_wrote(lines, "rows by process: [4, 4, 4, 3] so all have gathered (8,)") == ALL


def test_the_last_batch_is_told_by_those_who_have_it(executed: Executed) -> None:
    text = refused(executed, LAST_BATCH)
    assert "DivergenceError: process 3 had finished\n" in text
    assert re.search(r"processes 0-2: were to dispatch [^;]* at line 3, 3rd time \(`", text)
    assert "process 3: had finished" in text


def test_variables_outlive_the_last_batch(executed: Executed) -> None:
    lines = shown(executed.after(LAST_BATCH)).splitlines()
    assert who_wrote(lines, "steps: 4 and the sum over all processes is still 12.0") == ALL
    assert who_wrote(executed.lines("common = "), "2 steps, the loss of the last: 20.0") == ALL


def test_sets_in_another_order_give_wrong_sums(executed: Executed) -> None:
    lines = executed.lines("PYTHONHASHSEED")
    assert who_wrote(lines, "['bias', 'scale', 'weight']") == [0, 1]
    assert who_wrote(lines, "['weight', 'scale', 'bias']") == [2, 3]
    assert who_wrote(executed.lines("params = {"), "bias 602 scale 80 weight 602") == ALL
    text = refused(executed, SETS)
    assert re.search(r"processes 0-1: were to dispatch .*float32\[4,1\]", text)
    assert re.search(r"processes 2-3: were to dispatch .*float32\[4,3\]", text)
    assert who_wrote(executed.lines("sorted(order)"), "bias 4 scale 80 weight 1200") == ALL


def test_everything_is_still_there_at_the_end(executed: Executed) -> None:
    lines = shown(executed.cells[-2]).splitlines()
    assert who_wrote(lines, "steps: 4 and the sum over all processes is still 12.0") == ALL
    assert "no process is left" in shown(executed.cells[-1])
