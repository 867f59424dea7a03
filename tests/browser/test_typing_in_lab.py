"""What is typed for the processes in JupyterLab: Tab and Shift-Tab, and answers to them."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from browser.conftest import OpenLab
from browser.lab import Cell

SETUP = """%load_ext jaxnb
%spmd_start -n 2 --platform cpu
import jaxnb.assist.completion
jaxnb.assist.completion.DEADLINE_SECONDS = 90.0"""
MAKE = """%%spmd
import jaxnb.assist.process_assist as p; p.ANSWER_SECONDS = 60.0
def train_step(x, learning_rate=0.1):
    'One step of training.'
train_loss = 1"""
STOPS = """%%spmd
print('before')
steps = int(input('steps? '))
if process_index == 1:
    breakpoint()
print('steps', steps)
if process_index == 1:
    raise ValueError(steps)"""


def answer(cell: Cell, prompt: str | re.Pattern[str], text: str) -> None:
    """Waits for an input box with a prompt, and answers it."""
    expect(cell.output.locator(".jp-Stdin-prompt").last).to_have_text(prompt)
    cell.output.locator(".jp-Stdin-input").last.fill(text)
    cell.output.locator(".jp-Stdin-input").last.press("Enter")


def test_tab_shift_tab_and_input_boxes(lab_page: OpenLab) -> None:
    lab = lab_page([SETUP, MAKE, "%%spmd\ntrain_", STOPS, "%debug", "%spmd_stop"])
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
    editor.click()  # which closes the tooltip
    expect(tooltip).to_have_count(0)
    lab.page.keyboard.press("Control+Home")
    lab.page.keyboard.press("ArrowRight")
    lab.page.keyboard.press("Shift+Tab")
    expect(tooltip).to_contain_text("usage: %spmd ")  # not of the notebook's `spmd`

    cell = lab.cell(3)
    cell.start()
    answer(cell, re.compile(r"\[[01-]+\] steps\? "), "3")  # who has come to it by then
    expect(cell.output).to_contain_text("breakpoint()")
    answer(cell, "[1] ipdb> ", "p steps * 100")
    expect(cell.output).to_contain_text("[1] 300")
    answer(cell, "[1] ipdb> ", "continue")
    cell.wait()
    cell.wait_for_line("before", [0, 1])
    expect(cell.error).to_contain_text("ValueError: 3")

    debug = lab.cell(4)
    debug.start()
    answer(debug, "[1] ipdb> ", "quit")
    debug.wait()
    expect(debug.output).to_contain_text("[1] ValueError: 3")
    expect(debug.output.locator(".jp-Stdin-input")).to_have_count(0)
    lab.run(5)
