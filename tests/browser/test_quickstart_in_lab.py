"""The quickstart notebook in JupyterLab: what a user sees."""

from __future__ import annotations

import re
from pathlib import Path

import psutil
import pytest
from playwright.sync_api import expect

from browser.conftest import OpenLab
from browser.lab import Cell
from support.fixtures import processes_of_tests
from support.shown import who_wrote

QUICKSTART = Path(__file__).parents[2] / "notebooks" / "quickstart.ipynb"

PREPARED = ("%load_ext jaxnb", "%spmd_start -n 4 --platform cpu")


def pids_of_start(cell: Cell) -> list[int]:
    """The pids in the table of processes."""
    rows = cell.output.locator("tbody tr")
    return [int(row.locator("td").nth(1).inner_text()) for row in rows.all()]


@pytest.mark.thorough  # what it shows is proved by nbclient, in tests/notebooks
def test_quickstart(lab_page: OpenLab) -> None:
    lab = lab_page(QUICKSTART)
    lab.run("%load_ext")

    start = lab.run("%spmd_start")
    expect(start.output.get_by_text("4 processes × 2 CPU devices = 8 devices")).to_be_visible()
    pids = pids_of_start(start)
    assert len(pids) == 4
    assert set(pids) < set(processes_of_tests(lab.server.token))

    merged = lab.run("devices in all")
    assert who_wrote(merged.lines, "4 processes, 8 devices in all") == [0, 1, 2, 3]
    for process_index in range(4):
        assert any(
            line.startswith(f"[{process_index}] process {process_index} holds")
            for line in merged.lines
        )
    expect(merged.output.get_by_text("4 processes ·")).to_be_visible()

    lab.run("owners:")
    array = lab.run("make_array_from_callback")
    for fact in ("float32[8, 8]", "P('data', 'model')", "mesh data 4 × model 2"):
        expect(array.output).to_contain_text(fact)
    assert_shows_who_owns_what(array)

    failed = lab.run("boom")
    expect(failed.error).to_be_visible()
    assert "ValueError: boom" in failed.text
    assert "process 2" in failed.text
    assert "site-packages" not in failed.text

    after = lab.run("still here")
    assert who_wrote(after.lines, "still here, with x of shape (8, 8)") == [0, 1, 2, 3]

    stop = lab.run("%spmd_stop")
    expect(
        stop.output.get_by_text(re.compile(r"Stopped in .*; no process is left\."))
    ).to_be_visible()
    assert not [pid for pid in pids if psutil.pid_exists(pid)]


def assert_shows_who_owns_what(cell: Cell) -> None:
    """Fails unless the picture has a coloured place for each of 4 × 2 devices."""
    parts = cell.output.locator('td[title^="["]')
    expect(parts).to_have_count(8)
    colours = set()
    for i, part in enumerate(parts.all()):
        box = part.bounding_box()
        assert box is not None
        assert box["width"] > 20
        assert box["height"] > 10
        assert f"process {i // 2}" in (part.text_content() or "")
        colours.add(part.evaluate("part => getComputedStyle(part).backgroundColor"))
    assert len(colours) == 4


@pytest.mark.thorough  # proved by nbclient, in tests/notebooks
def test_run_all_stops_at_the_error(lab_page: OpenLab) -> None:
    lab = lab_page(
        [
            *PREPARED,
            "%%spmd\nprint('before')\nif process_index == 2:\n    raise ValueError('boom')",
            "%%spmd\nprint('after')",
        ]
    )
    lab.run_all()

    failed = lab.cell("boom")
    expect(failed.error).to_contain_text("ValueError: boom")
    failed.wait()
    assert who_wrote(failed.lines, "before") == [0, 1, 2, 3]
    lab.wait_until_idle()
    after = lab.cell("after")
    expect(after.prompt).to_have_text("[ ]:")
    expect(after.output).to_have_text("")
