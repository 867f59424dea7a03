"""Statistics in JupyterLab: the panel that is updated in place, beside a cell that runs."""

from __future__ import annotations

import pytest
from playwright.sync_api import expect

from browser.conftest import OpenLab
from browser.test_arrays_in_lab import assert_readable

START = ("%load_ext jaxnb", "%spmd_start -n 2 --platform cpu")
LIVE, AGAIN = "%spmd_stats --live", "%spmd_stats  --live"
HOLD = """%%spmd
x = jnp.ones((64, 1 << 18)).block_until_ready()
import time; time.sleep(1000)"""


@pytest.mark.thorough  # its card is proved in tests/unit
@pytest.mark.parametrize("theme", ["JupyterLab Dark"])
def test_the_panel_goes_on_while_a_cell_runs(lab_page: OpenLab, theme: str) -> None:
    lab = lab_page([*START, LIVE, HOLD, "%spmd_stats", AGAIN, "%spmd_stop"], theme=theme)
    panel = [lab.run(position) for position in range(3)][2]
    expect(panel.output).to_contain_text("every second")
    expect(panel.output).to_contain_text("CPU time")
    assert_readable(panel)

    cell = lab.cell(HOLD)
    cell.start()
    expect(panel.output).to_contain_text("128 MiB in use · at ")
    expect(cell.prompt).to_have_text("[*]:")
    lab.interrupt()
    cell.wait()

    once = lab.run(4)
    assert ["x", "float32[64, 262144]", "64.0 MiB", "each device"] in [
        line.split("\t") for line in once.lines
    ]
    assert_readable(once)
    again = lab.run(5)
    expect(panel.output).to_contain_text("Goes on where")
    expect(again.output).to_contain_text("every second")
    lab.run(6)
    expect(again.output).to_contain_text("The group was stopped")
