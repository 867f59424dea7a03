"""Cards on a page that removes all styles, as GitHub's: their words are still words."""

from __future__ import annotations

import re

import bleach
from bs4 import BeautifulSoup
from nbconvert.exporters import HTMLExporter
from nbformat import v4

from jaxnb.arrays.card_array import array_card
from jaxnb.cells.card_cell import cell_card
from jaxnb.cells.result import CellResult, ProcessResult
from jaxnb.display.card import Card
from jaxnb.profile.card_timeline import timeline_card
from unit.test_display_array import array
from unit.test_display_cards import value
from unit.test_display_timeline import TIMELINE

INLINE = ["b", "i", "a", "code", "span"]
BLOCKS = ["div", "table", "thead", "tbody", "tr", "th", "td", "pre", "details", "summary", "br"]


def lines(card: Card) -> list[str]:
    """Returns what such a page shows of a card; cells of a table are apart."""
    clean = bleach.clean(card.html, tags=[*INLINE, *BLOCKS], attributes={}, strip=True)
    blocks = re.sub(r"</?(\w+)>", lambda found: "" if found[1] in INLINE else "\n", clean)
    return [line.strip() for line in blocks.splitlines() if line.strip()]


def test_words_do_not_run_together() -> None:
    assert "0 0.5 s 1.0 s 1.5 s 2.0 s" in lines(timeline_card(TIMELINE))
    legend = "■ Python ■ tracing ■ compiling ■ dispatching ■ waiting"
    assert legend in lines(timeline_card(TIMELINE))
    replicated = lines(array_card(array((8,), (1,), replicas=8)))
    assert replicated[replicated.index("P0-3") + 1 :][:2] == ["d0-7", "×8"]


def test_rows_of_numbers_stay_rows() -> None:
    values = {
        i: ProcessResult(i, value(f"[[{i} 1]\n [2 3]]"), "", "", (), None, 0.1, 0.0) for i in (0, 1)
    }
    shown = lines(cell_card(CellResult(1, "x", values, 2, 0.1), "merged"))
    assert shown[:3] == ["process 0", "[[0 1]", "[2 3]]"]


def test_nbconvert_writes_cards_as_they_are() -> None:
    card = timeline_card(TIMELINE)
    shown = v4.new_output("display_data", {"text/html": card.html, "text/plain": card.text})
    notebook = v4.new_notebook(cells=[v4.new_code_cell("%spmd_timeline", outputs=[shown])])
    page, _ = HTMLExporter().from_notebook_node(notebook)
    assert str(BeautifulSoup(card.html, "html.parser")) in page  # as it writes attributes
