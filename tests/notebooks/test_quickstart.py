"""The quickstart notebook, run whole on four real processes; what it shows is asserted."""

from __future__ import annotations

import os
import re
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.fixtures import TOKEN, processes_of_tests
from support.kernels import CELL_TIMEOUT_SECONDS, notebook_client, read_notebook, write_notebook
from support.shown import processes_in, who_wrote

# The clock is CELL_TIMEOUT_SECONDS; this one would have the first test pay for the whole notebook.
pytestmark = pytest.mark.timeout(0)

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"
EXECUTED = NOTEBOOK.parent / "executed" / NOTEBOOK.name
ALL = [0, 1, 2, 3]
LOSS_FALLS_BY = 30  # At least; it falls from 0.81 to 0.011.


@dataclass
class Executed:
    """The notebook after its run.

    Attributes:
        cells: Its code cells.
        before_start: Processes just before the group's start: the kernel.
        running: Processes while the group ran.
        after_stop: Processes once the last cell had ended, the kernel still up.
    """

    cells: list[Any]
    before_start: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    after_stop: set[int] = field(default_factory=set)

    def cell(self, fragment: str) -> Any:
        """The one code cell whose source has the fragment."""
        (found,) = [cell for cell in self.cells if fragment in cell.source]
        return found

    def text(self, fragment: str) -> str:
        """What that cell shows, as plain text."""
        return shown(self.cell(fragment))


def shown(cell: Any) -> str:
    """Streams and the plain text of everything displayed, in order."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(output.text)
        elif output.output_type != "error":
            parts.append(output.data.get("text/plain", "") + "\n")
    return "".join(parts)


def has_mime(cell: Any, mime: str) -> bool:
    """Whether the cell displays something of this MIME type."""
    return any(mime in output.get("data", {}) for output in cell.outputs)


@pytest.fixture(scope="module")
def executed() -> Executed:
    """The notebook, executed by nbclient in a kernel of its own; `make docs` shows what is left."""
    notebook = read_notebook(NOTEBOOK)
    result = Executed([cell for cell in notebook.cells if cell.cell_type == "code"])
    token = uuid.uuid4().hex

    def after_cell(cell: Any, cell_index: int, execute_reply: Any) -> None:
        if cell.source.startswith("%load_ext"):
            result.before_start = set(processes_of_tests(token))
        elif cell.source.startswith("%spmd_start"):
            result.running = set(processes_of_tests(token))
        elif cell.source.startswith("%spmd_stop"):
            result.after_stop = set(processes_of_tests(token))

    client = notebook_client(
        notebook,
        timeout=CELL_TIMEOUT_SECONDS,
        resources={"metadata": {"path": str(NOTEBOOK.parent)}},
        on_cell_executed=after_cell,
    )
    client.execute(env={**os.environ, TOKEN: token})
    EXECUTED.parent.mkdir(exist_ok=True)
    write_notebook(notebook, EXECUTED)
    return result


def test_every_cell_ran(executed: Executed) -> None:
    assert all(cell.execution_count for cell in executed.cells)
    failed = [c.source for c in executed.cells if any(o.output_type == "error" for o in c.outputs)]
    assert failed == [executed.cell("boom").source]


def test_start_shows_the_group(executed: Executed) -> None:
    text = executed.text("%spmd_start")
    assert "4 processes" in text
    assert "8 devices" in text
    assert len(executed.running - executed.before_start) >= 4


def test_equal_lines_are_merged_and_others_are_not(executed: Executed) -> None:
    lines = executed.text("devices in all").splitlines()
    assert who_wrote(lines, "4 processes, 8 devices in all") == ALL
    for process_index in range(4):
        start = f"[{process_index}] process {process_index} holds devices"
        assert len([line for line in lines if line.startswith(start)]) == 1


def test_mesh(executed: Executed) -> None:
    lines = executed.text("owners:").splitlines()
    assert who_wrote(lines, "{'data': 4, 'model': 2}") == ALL
    assert who_wrote(lines, "owners: [[0, 0], [1, 1], [2, 2], [3, 3]]") == ALL


def test_array_card(executed: Executed) -> None:
    cell = executed.cell("make_array_from_callback")
    text = shown(cell)
    assert "float32" in text
    assert re.search(r"8\s*[,×x]\s*8", text)
    assert "P('data', 'model')" in text
    assert re.search(r"data\W+4", text)
    assert re.search(r"model\W+2", text)
    assert has_mime(cell, "text/html")


def test_jit_with_shardings(executed: Executed) -> None:
    assert "P('data', None)" in executed.text("products(x)")
    assert "85344" in executed.text("jnp.trace")  # 0² + 1² + … + 63²


def test_psum(executed: Executed) -> None:
    lines = executed.text("def sum_of_all").splitlines()
    assert who_wrote(lines, "while tracing, a block has the shape (2, 4)") == ALL
    text = executed.text("total.value")
    assert "the sum over 8 devices: 2016.0" in text
    assert "the same in the notebook: 2016.0" in text


def test_pull(executed: Executed) -> None:
    lines = executed.text("%spmd_pull").splitlines()
    assert lines[0].startswith("2 values · 512 B · pulled · ")
    assert lines[1].split() == ["x", "float32[8,", "8]", "P('data',", "'model')", "256", "B"]
    assert executed.text("as NumPy computes it") == "as NumPy computes it: True\n"


def test_push_and_layout(executed: Executed) -> None:
    cell = executed.cell("%spmd_push")
    # where a card breaks its lines depends on the time that it names
    text = " ".join(shown(cell).split())
    assert text.startswith("weights: float32[8, 8] · P('data', None) · 256 B · pushed to 4")
    assert "weights: float32[8, 8] · P('data', None) · mesh data 4 × model 2" in text
    assert has_mime(cell, "text/html")


def test_loss_falls(executed: Executed) -> None:
    text = executed.text("for step in range")
    found = re.findall(r"^\[([\d,-]+)\] step +(\d+) loss ([\d.]+)$", text, flags=re.MULTILINE)
    # On a busy machine a line may come late from some: it is shown then, under their label.
    said: dict[int, list[int]] = {}
    for label, step, _ in found:
        said.setdefault(int(step), []).extend(processes_in(label))
    assert list(said) == list(range(0, 121, 20))
    assert all(sorted(processes) == [0, 1, 2, 3] for processes in said.values())
    losses = [float(loss) for loss in dict.fromkeys(loss for _, _, loss in found)]
    assert len(losses) == len(said)
    assert losses == sorted(losses, reverse=True)
    assert losses[0] > LOSS_FALLS_BY * losses[-1]


def test_fit_reaches_the_notebook(executed: Executed) -> None:
    cell = executed.cell("largest distance")
    found = re.search(r"largest distance from the true sine: ([\d.]+)", shown(cell))
    assert found
    assert float(found[1]) < 0.2
    assert has_mime(cell, "image/png")


def test_error_of_one_process(executed: Executed) -> None:
    cell = executed.cell("boom")
    (error,) = [output for output in cell.outputs if output.output_type == "error"]
    assert error.ename == "CellError"
    shown_lines = re.sub(r"\x1b\[[\d;]*m", "", "\n".join(error.traceback)).splitlines()
    assert shown_lines.count("ValueError: boom") == 1
    assert shown_lines[0] == "ValueError on process 2"
    assert shown_lines[-1].startswith("CellError: process 2 raised ValueError (cell [")
    assert not any("jaxnb" in line for line in shown_lines)
    assert "error on 2" in shown(cell)
    after = executed.text("still here").splitlines()
    assert who_wrote(after, "still here, with x of shape (8, 8)") == ALL


def test_stats_has_a_row_for_each_device(executed: Executed) -> None:
    text = executed.text("%spmd_stats")
    assert "8 devices of 4 processes" in text
    for device_id in (0, 1, 2048, 2049, 4096, 4097, 6144, 6145):
        assert re.search(rf"^(  +\d)? +{device_id} +[\d.]+ \w+B", text, flags=re.MULTILINE)


def test_nothing_but_the_cells_own_output(executed: Executed) -> None:
    for cell in executed.cells:
        assert "[Gloo]" not in shown(cell)


def test_stop_leaves_no_process(executed: Executed) -> None:
    assert executed.after_stop == executed.before_start
