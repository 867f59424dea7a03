"""A notebook that somebody else has run: opened untrusted, its cards are as they were."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from browser.conftest import OpenLab
from browser.lab import Cell, opened

START = ("%load_ext jaxnb", "%spmd_start -n 2 --devices-per-process 2 --platform cpu")

ARRAY = """%%spmd
mesh = jax.make_mesh((2, 2), ('rows', 'columns'))
table = np.arange(32, dtype=np.float32).reshape(8, 4)
sharding = NamedSharding(mesh, P('rows', 'columns'))
x = jax.make_array_from_callback((8, 4), sharding, lambda i: table[i])
x"""
SUMS = """%%spmd
import time
for _ in range(3):
    time.sleep(0.01 * process_index)
    total = jnp.sum(x).block_until_ready()"""
TIMELINE = "%spmd_timeline"
CARDS = (ARRAY, TIMELINE)
EVERY_CARD = (
    *START, ARRAY, SUMS, "%spmd_status", "%spmd_stats", "%spmd_history", "%spmd_layout x",
    "%spmd tree = {'a': x, 'b': [x, 1]}", "%spmd_layout tree",
    "%%spmd\nmesh = jax.make_mesh((2, 2), mesh.axis_names, axis_types=(jax.sharding.AxisType.Auto,)"
    " * 2)\nx = jax.make_array_from_callback((8, 4), NamedSharding(mesh, sharding.spec), "
    "lambda i: table[i])\ndef g(v): return jnp.sum(v @ v.T)",
    "%spmd_collectives g(x)",
    "%%spmd_collectives --devices 8\ng(jax.ShapeDtypeStruct((8, 8), jnp.float32))",
    "%%spmd_compare g(x)\nrows = P('rows')\nboth = P('rows', 'columns')\nnone = P()",
    "%%spmd_compare --plot g(x)\nrows = P('rows')\nboth = P('rows', 'columns')",
    "%spmd_pull x", "x", "import numpy as np; t = np.ones((4, 4))", "%spmd_push t --spec P('rows')",
    "%%spmd --time\njnp.sum(x).block_until_ready()",
    "%%spmd\nimport matplotlib.pyplot as plt\nplt.plot([process_index, 2]); plt.show()",
    "%%spmd\nf, a = plt.subplots(); a.plot([1, 2]); plt.close(f)\nf",
    "%%spmd\nfrom PIL import Image\nImage.new('RGB', (40, 40), (255, 0, 100 * process_index))",
    "%%spmd\nprint('a', process_index); print('same')\nprocess_index",
    "%%spmd\nif process_index: raise ValueError('boom')\njnp.sum(x)",
    "%%spmd\njax.jit(lambda v: v, out_shardings=NamedSharding(mesh, P()))(x)",
    "%%spmd\n%pinfo g", TIMELINE, "%spmd_recover", "%spmd_stop",
)  # fmt: skip
PICTURES = "output => [...output.querySelectorAll('img')].map(n => [n.src.length, n.naturalWidth])"
SVG = """from IPython.display import HTML
HTML('<svg width="9" height="9"></svg>')"""

BOXES = """output => {
    const left = output.getBoundingClientRect().left
    const found = []
    for (const node of output.querySelectorAll('.jaxnb *')) {
        const box = node.getBoundingClientRect(), style = getComputedStyle(node)
        const drawn = style.backgroundImage + ' ' + style.backgroundColor
        if (box.width && box.height && !drawn.endsWith('none rgba(0, 0, 0, 0)'))
            found.push([drawn, ...[box.left - left, box.width, box.height].map(Math.round)])
    }
    return found
}"""


GAPS = """output => {
    const ticks = [...output.querySelectorAll('.jaxnb span')].filter(e => e.style.left)
    const places = ticks.map(e => e.getBoundingClientRect())
    return Math.min(...places.slice(1).map((each, i) => each.left - places[i].right))
}"""
"""How far the labels of a timeline's axis are from each other, at least."""


def boxes(cell: Cell) -> list[list[Any]]:
    """The coloured boxes of a cell's cards: colour, place and size of each."""
    found: list[list[Any]] = cell.output.evaluate(BOXES)
    return found


def test_cards_are_the_same_in_a_notebook_that_is_not_trusted(lab_page: OpenLab) -> None:
    lab = lab_page([*START, ARRAY, SUMS, TIMELINE, SVG])
    for source in (*START, ARRAY, SUMS, TIMELINE):
        lab.run(source)
    expect(lab.run(SVG).output.locator(".jp-RenderedHTML svg")).to_have_count(1)
    before = {source: (lab.cell(source).text, boxes(lab.cell(source))) for source in CARDS}

    copied = lab.untrusted_copy()
    lab.server.shut_kernels_down()  # there are ports for one kernel at a time

    with opened(lab.page, lab.server, copied) as copy:
        # It is not trusted: what is no card has lost its picture.
        expect(copy.cell(SVG).output.locator(".jp-RenderedHTML svg")).to_have_count(0)
        for source in CARDS:
            cell = copy.cell(source)
            assert (cell.text, boxes(cell)) == before[source]
            assert cell.output.locator(".jaxnb svg, .jp-RenderedHTML style").count() == 0
            assert "{" not in cell.text  # as a style sheet's text has
        lab.page.set_viewport_size({"width": 700, "height": 900})
        assert copy.cell(TIMELINE).output.evaluate(GAPS) > 0
    array, timeline = (before[source] for source in (ARRAY, TIMELINE))
    assert len({drawn for drawn, *_ in array[1]}) == 2  # processes
    assert "process 1\ndevice 2049" in array[0]
    assert len({drawn for drawn, *_ in timeline[1]}) >= 3  # kinds of work
    assert "compiling" in timeline[0]


@pytest.mark.thorough
def test_every_card_is_the_same_there(lab_page: OpenLab) -> None:
    lab = lab_page(EVERY_CARD)
    before = [_looks(lab.run(i)) for i in range(len(EVERY_CARD))]
    copied = lab.untrusted_copy()
    lab.server.shut_kernels_down()
    with opened(lab.page, lab.server, copied) as copy:
        for i, source in enumerate(EVERY_CARD):
            assert _looks(copy.cell(i)) == before[i], source
    assert not any("UsageError" in text for text, *_ in before)
    assert sum(len(pictures) for *_, pictures in before) >= 6


def _looks(cell: Cell) -> tuple[str, list[list[Any]], Any]:
    return cell.text, boxes(cell), cell.output.evaluate(PICTURES)
