"""Pull, push and layout in JupyterLab: what a user sees and presses."""

from __future__ import annotations

from playwright.sync_api import expect

from browser.conftest import OpenLab
from browser.lab import Cell

START = ("%load_ext jaxnb", "%spmd_start -n 2 --devices-per-process 2 --platform cpu")

MAKE = """%%spmd
mesh = jax.make_mesh((4,), ('x',))
table = np.arange(32, dtype=np.float32).reshape(8, 4)
x = jax.make_array_from_callback((8, 4), NamedSharding(mesh, P('x')), lambda i: table[i])"""

CELLS = (
    MAKE,
    "%spmd_layout x",
    "%spmd_pull x",
    "x",
    "x[:2]",
    "import numpy as np\nw = np.arange(8.0).reshape(4, 2)",
    "%spmd_push w --spec P('x', None)",
    'spmd["w"]',
    "%spmd x = x + 1",
    "x  # again",
    "%spmd_push w --spec P('y', None)",
    "%spmd_pull process_index w",
    "process_index",
    "%spmd_history",
)

A_PART = '[title^="[0:2, 0:4] · process 0 · device 0 · "]'


def test_pull_push_layout(lab_page: OpenLab) -> None:
    lab = lab_page([*START, *CELLS])
    shown = [lab.run(position) for position in range(len(START) + len(CELLS))][len(START) :]
    made, layout, pulled, whole, part, _, pushed = shown[:7]
    back, _, again, refused, several, mine, history = shown[7:]

    assert made.error.count() == 0
    assert "float32[8, 4] · P('x') · mesh x 4" in layout.text
    expect(layout.output.locator(A_PART)).to_be_visible()
    assert pulled.lines[0].startswith("x: float32[8, 4] · P('x') · 128 B · pulled · ")
    expect(whole.output.locator(A_PART)).to_be_visible()
    assert " [28., 29., 30., 31.]]" in whole.text
    assert "array([[0., 1., 2., 3.]," in part.text
    assert pushed.lines[0].startswith("w: float32[4, 2] · P('x', None) · 32 B · pushed to 2")
    assert "float64 → float32: jax_enable_x64 is off" in pushed.text
    assert " [6., 7.]]" in back.text
    assert "pulled after cell [" in again.text
    assert "pulled after cell [" not in whole.text
    expect(refused.error).to_contain_text("is not found in mesh")
    assert "Traceback" not in refused.text
    assert several.lines[0].startswith("2 values · 32 B · pulled · ")
    assert "process_index: differs by process" in several.lines
    rows = mine.output.locator("tr").all_inner_texts()
    assert [row.split() for row in rows] == [["process", "0", "0"], ["process", "1", "1"]]
    for cell in (pulled, pushed, several):
        assert_readable(cell)
    lab.page.set_viewport_size({"width": 700, "height": 900})
    lab.page.keyboard.press("Control+b")  # without the list of files, as one makes room
    assert history.output.locator("table").evaluate(IS_IN_SIGHT), history.output.inner_html()


IS_IN_SIGHT = """table => {
    const output = table.closest('.jp-OutputArea-output').getBoundingClientRect()
    return table.getBoundingClientRect().right <= output.right
}"""

BRIGHTNESS = """(element, property) => {
    const parts = getComputedStyle(element)[property].match(/[\\d.]+/g).slice(0, 3).map(Number)
    return Math.max(...parts)
}"""


def assert_readable(cell: Cell) -> None:
    """Fails if the card's text is of nearly the colour of the page."""
    text = cell.output.locator(".jaxnb").first.evaluate(BRIGHTNESS, "color")
    notebook = cell.page.locator(".jp-Notebook")
    assert abs(text - notebook.evaluate(BRIGHTNESS, "backgroundColor")) > 120
