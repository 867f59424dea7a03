"""Text from the processes stays text in JupyterLab, whatever it looks like."""

from __future__ import annotations

from playwright.sync_api import expect

from browser.conftest import OpenLab
from browser.lab import Cell

START = ("%load_ext jaxnb", "%spmd_start -n 2 --platform cpu")

HOSTILE = "<script>window.pwned=1</script><img src=x onerror=window.pwned=1>"

DEFINITIONS = f"""%%spmd
import sys, time
text = {HOSTILE!r}

class Same:
    def __repr__(self):
        return text

class Different:
    def __repr__(self):
        return text * (1 + process_index)

Named = type(text, (), {{}})
NamedError = type(text, (ValueError,), {{}})
"""

CELLS = {
    "the same line": "print(text)",
    "lines that differ": "print(text, process_index)",
    "standard error": "print(text, file=sys.stderr)",
    "the same value": "text",
    "values that differ": "text + str(process_index)",
    "a repr": "Same()",
    "reprs that differ": "Different()",
    "a type's name": "Named()",
    "a message": "raise ValueError(text)",
    "messages that differ": "raise ValueError(text + str(process_index))",
    "an exception's name": "raise NamedError(process_index)",
    "what is no Python": f"1 {HOSTILE}",
}
"""Where hostile text stands, and a cell that puts it there."""

UNFINISHED = "%%spmd\nprint(text, end='', flush=True); time.sleep(1000)"
IN_BACKGROUND = "%%spmd --async --out background\nprint(text)\nraise ValueError(text)"
CONTROL = f"from IPython.display import HTML\nHTML({HOSTILE!r})"


def test_hostile_text_is_inert(lab_page: OpenLab) -> None:
    cells = [f"%%spmd\n# {name}\n{code}" for name, code in CELLS.items()]
    lab = lab_page(
        [*START, DEFINITIONS, *cells, UNFINISHED, IN_BACKGROUND, "background.result()", CONTROL]
    )
    for line in (*START, DEFINITIONS):
        lab.run(line)

    for source in cells:
        assert_shown_as_text(lab.run(source))

    unfinished = lab.cell(UNFINISHED)
    unfinished.start()
    assert_shown_as_text(unfinished)
    lab.interrupt()
    unfinished.wait()
    expect(unfinished.error).to_contain_text("KeyboardInterrupt")

    lab.run(IN_BACKGROUND)
    lab.run("background.result()")
    assert_shown_as_text(lab.cell(IN_BACKGROUND))

    assert lab.page.evaluate("window.pwned") is None

    # The same text as HTML does its work here, so the page would have told.
    lab.run(CONTROL)
    lab.page.wait_for_function("window.pwned === 1")


def assert_shown_as_text(cell: Cell) -> None:
    """Fails unless the hostile text is in the cell's output, and nothing it could make is."""
    expect(cell.output).to_contain_text("<img src=x onerror=window.pwned=1>")
    assert cell.output.locator("script, img").count() == 0
