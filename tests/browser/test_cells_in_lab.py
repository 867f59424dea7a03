"""What cells show in JupyterLab: help, hints, merged lines, bars, errors, pictures, comparisons."""

from __future__ import annotations

from playwright.sync_api import Locator, expect

from browser.conftest import OpenLab
from browser.lab import Cell

START = ("%load_ext jaxnb", "%spmd_start -n 2 --platform cpu")
RED = '[data-mime-type="application/vnd.jupyter.stderr"]'
IS_IN_SIGHT = """node => {
    const box = node.getBoundingClientRect()
    const output = node.closest('.jp-OutputArea-output').getBoundingClientRect()
    return box.right <= output.right + 1
}"""

MAKE = """%%spmd
mesh = jax.make_mesh((2,), ('d',), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((8, 4), NamedSharding(mesh, P('d')), lambda i: np.ones((4, 4)))
def scaled(v, by=2):
    'Scales by a number.'
    return v * by"""
BARS = "%%spmd\nfrom tqdm.auto import tqdm\nfor _ in tqdm(range(3)): pass"
FAILS = """%%spmd
def inverse(v):
    return 1 / v
if process_index == 1:
    inverse(0)
float(jnp.sum(x))"""
REPLICATED = "%%spmd\njax.jit(lambda v: v.sum(0), out_shardings=NamedSharding(mesh, P()))(x)"
MODEL = "%spmd model = {'w': jnp.ones(3), 'act': lambda x: x}"
COMPARE = "%%spmd_compare scaled(x)\nrows = P('d')\nwhole = P()"
WIDGET = """%%spmd
view = {"model_id": "1", "version_major": 2, "version_minor": 0}
bundle = {"application/vnd.jupyter.widget-view+json": view, "text/plain": "IntSlider(value=0)"}
from IPython.display import display
display(bundle, raw=True)"""
PLOT = COMPARE.replace("scaled", "--plot scaled")


def red(cell: Cell) -> Locator:
    return cell.output.locator(RED)


def test_lines_bars_errors_pictures_and_comparisons(lab_page: OpenLab) -> None:
    pull = "%spmd_pull model"
    shown = [BARS, WIDGET, FAILS, REPLICATED, MODEL, pull, COMPARE, PLOT]
    lab = lab_page([*START, MAKE, *shown])
    for position in range(3):
        lab.run(position)

    bars = lab.run(BARS)
    assert "3/3" in bars.text
    expect(red(bars)).to_have_count(0)

    assert "Widgets work in the notebook only" in " ".join(lab.run(WIDGET).text.split())

    failed = lab.run(FAILS)
    expect(failed.error).to_contain_text("ZeroDivisionError on process 1")
    expect(failed.error).to_contain_text("Process 0 only waited for it at line 6")
    assert failed.text.count("division by zero") == 1
    assert "jaxnb/" not in failed.text

    replicated = lab.run(REPLICATED)
    expect(
        replicated.output.locator('[title*="processes 0-1"], [title*="process 0"]').first
    ).to_be_visible()
    assert "identical on 2 processes" in replicated.text

    lab.run(MODEL)
    assert "model refer to code on the processes" in lab.run(pull).text

    lab.page.set_viewport_size({"width": 700, "height": 900})
    lab.page.keyboard.press("Control+b")  # without the list of files
    compared = lab.run(COMPARE)
    for end in compared.output.locator("tr > :last-child").all():
        assert end.evaluate(IS_IN_SIGHT), end.inner_text()
    assert "compile time" in lab.run(PLOT).text
