"""Tab and Shift-Tab in JupyterLab, in a cell of the processes."""

from __future__ import annotations

from playwright.sync_api import expect

from browser.conftest import OpenLab

SETUP = """%load_ext jaxnb
%spmd_start -n 2 --platform cpu
import jaxnb.assist.helper
jaxnb.assist.helper.DEADLINE_SECONDS = 90.0"""
MAKE = """%%spmd
import jaxnb.assist.process_assist as p; p.ANSWER_SECONDS = 60.0
def train_step(x, learning_rate=0.1):
    'One step of training.'
train_loss = 1"""


def test_tab_and_shift_tab(lab_page: OpenLab) -> None:
    lab = lab_page([SETUP, MAKE, "%%spmd\ntrain_", "%spmd_stop"])
    lab.run(0)
    lab.run(1)
    editor = lab.cell(2).node.locator(".cm-content")
    editor.click()
    lab.page.keyboard.press("Control+End")
    lab.page.keyboard.press("Tab")
    offered = lab.page.locator(".jp-Completer-list")
    expect(offered).to_contain_text("train_loss")
    offered.get_by_text("train_step", exact=True).click()
    expect(editor).to_contain_text("train_step")

    lab.page.keyboard.type("(")
    lab.page.keyboard.press("Shift+Tab")
    tooltip = lab.page.locator(".jp-Tooltip")
    expect(tooltip).to_contain_text("One step of training.")
    expect(tooltip).to_contain_text("learning_rate")

    lab.run(3)
