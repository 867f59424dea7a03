"""A notebook that somebody else has run: opened untrusted, its cards are as they were."""

from __future__ import annotations

from typing import Any

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
    assert "P1\nd2049" in array[0]
    assert len({drawn for drawn, *_ in timeline[1]}) >= 3  # kinds of work
    assert "compiling" in timeline[0]
