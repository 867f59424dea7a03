"""Interrupt and restart, from JupyterLab's toolbar."""

from __future__ import annotations

import time

import psutil
from playwright.sync_api import expect

from browser.conftest import OpenLab

START = ("%load_ext jaxnb", "%spmd_start -n 4 --platform cpu")
LONG = "%%spmd\nimport time\nprint('begun')\ntime.sleep(1000)"
NEXT = "%%spmd\nprint('goes on', time.sleep)"

ENDS_WITHIN = 20.0  # seconds


def test_interrupt_ends_the_cell(lab_page: OpenLab) -> None:
    lab = lab_page([*START, LONG, NEXT])
    for line in START:
        lab.run(line)
    cell = lab.cell("time.sleep(1000)")
    cell.start()
    expect(cell.output).to_contain_text("[0-3] begun")

    pressed = time.monotonic()
    lab.interrupt()
    cell.wait()
    assert time.monotonic() - pressed < ENDS_WITHIN

    expect(cell.error).to_contain_text("KeyboardInterrupt")
    expect(cell.error).to_contain_text("processes 0-3")
    after = lab.run("goes on")
    assert any(line.startswith("[0-3] goes on") for line in after.lines)


def test_interrupt_pressed_twice_is_one_interrupt(lab_page: OpenLab) -> None:
    lab = lab_page([*START, LONG, NEXT])
    for line in START:
        lab.run(line)
    cell = lab.cell("time.sleep(1000)")
    cell.start()
    expect(cell.output).to_contain_text("[0-3] begun")

    lab.interrupt()
    lab.interrupt()
    cell.wait()

    expect(cell.error).to_contain_text("KeyboardInterrupt")
    after = lab.run("goes on")
    assert any(line.startswith("[0-3] goes on") for line in after.lines)


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
    expect(running.output).to_contain_text("[0-3] begun")

    lab.restart_kernel()
    _, alive = psutil.wait_procs(processes, timeout=ENDS_WITHIN)

    assert alive == []
    for line in START:
        lab.run(line)
    assert len(lab.run("getpid").output.locator("td").all()) == 4
