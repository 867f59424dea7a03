"""Interrupt and restart, from JupyterLab's toolbar."""

from __future__ import annotations

import psutil
import pytest
from playwright.sync_api import expect

from browser.conftest import OpenLab
from support.fixtures import still_running
from support.shown import who_wrote

START = ("%load_ext jaxnb", "%spmd_start -n 4 --platform cpu")
LONG = "%%spmd\nimport time\nprint('begun')\ntime.sleep(1000)"
NEXT = "%%spmd\nprint('goes on', time.sleep)"

ALL = [0, 1, 2, 3]


@pytest.mark.thorough  # proved by test_text_is_inert.py and tests/faults/test_interrupts.py
def test_interrupt_ends_the_cell(lab_page: OpenLab) -> None:
    lab = lab_page([*START, LONG, NEXT])
    for line in START:
        lab.run(line)
    cell = lab.cell("time.sleep(1000)")
    cell.start()
    cell.wait_for_line("begun", ALL)

    lab.interrupt()
    cell.wait()

    expect(cell.error).to_contain_text("KeyboardInterrupt")
    expect(cell.error).to_contain_text("processes 0-3")
    after = lab.run("goes on")
    assert who_wrote(after.lines, "goes on", only_begins=True) == ALL


@pytest.mark.thorough  # proved by tests/faults/test_interrupts.py
def test_interrupt_pressed_twice_is_one_interrupt(lab_page: OpenLab) -> None:
    lab = lab_page([*START, LONG, NEXT])
    for line in START:
        lab.run(line)
    cell = lab.cell("time.sleep(1000)")
    cell.start()
    cell.wait_for_line("begun", ALL)

    lab.interrupt()
    lab.interrupt()
    cell.wait()

    expect(cell.error).to_contain_text("KeyboardInterrupt")
    after = lab.run("goes on")
    assert who_wrote(after.lines, "goes on", only_begins=True) == ALL


@pytest.mark.thorough  # proved by tests/faults/test_owner.py
def test_kernel_restart_ends_the_processes(lab_page: OpenLab) -> None:
    lab = lab_page([*START, "%%spmd\nimport os\nos.getpid()", LONG])
    for line in START:
        lab.run(line)
    shown = lab.run("getpid").output.locator("td").all_inner_texts()
    pids = {int(pid) for pid in shown}
    assert len(pids) == 4
    processes = [psutil.Process(pid) for pid in pids]
    running = lab.cell("time.sleep(1000)")
    running.start()
    running.wait_for_line("begun", ALL)

    lab.restart_kernel()

    assert still_running(processes) == []
    for line in START:
        lab.run(line)
    assert len(lab.run("getpid").output.locator("td").all()) == 4
