"""The tables of faults and of what is unequal are whole, and the documentation shows them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from faults.table.rows import HOW, NO_ROW, ROWS, WHEN, WHICH, all_places, hangs, in_the_gate
from faults.unequal.rows import ROWS as UNEQUAL
from support.pages import faults_table, unequal_table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_combination_has_a_row_or_a_reason() -> None:
    rows = [(row.when, row.how, row.which) for row in ROWS]
    reasons = [(when, how, which) for when, how in NO_ROW for which in WHICH]
    assert [place for place, count in Counter(rows + reasons).items() if count > 1] == []
    assert {*rows, *reasons} == all_places()


def test_the_ids_of_rows_differ() -> None:
    assert len(set(map(str, ROWS))) == len(ROWS)
    assert len(set(map(str, UNEQUAL))) == len(UNEQUAL)


def test_a_row_that_raises_names_the_process() -> None:
    """An interrupt that ends what it should has nothing to name."""
    silent = [row for row in ROWS if row.raises and not any("{which}" in n for n in row.names)]
    allowed = {(row.raises, row.presses) for row in silent}
    assert allowed <= {("KeyboardInterrupt", 1), ("CellError", 0), ("CellError", 1)}


def test_the_gate_plays_every_when_and_few_rows_that_hang() -> None:
    chosen = in_the_gate()
    assert {row.when for row in chosen} == set(WHEN)
    assert {row.how for row in ROWS if not hangs(row)} <= {row.how for row in chosen} <= set(HOW)
    assert len([row for row in chosen if hangs(row)]) <= 5
    assert len(chosen) < 45


def test_every_twin_differs_from_its_row() -> None:
    assert [str(row) for row in UNEQUAL if not row.twin or row.twin == row.unequal] == []


def test_the_pages_show_all_rows() -> None:
    for name, table in (("what_goes_wrong", faults_table()), ("what_differs", unequal_table())):
        assert (DOCS / f"{name}.md").read_text().count("<!-- the table of tests/faults/") == 1
        assert all(f"| {row.how} |" in table for row in ROWS if name == "what_goes_wrong")
        assert all(f"| {row.what} |" in table for row in UNEQUAL if name == "what_differs")
