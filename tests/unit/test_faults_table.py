"""The table of faults is whole, and the documentation shows it."""

from __future__ import annotations

import runpy
from collections import Counter
from pathlib import Path

import pytest

from faults.table import HOW, NO_ROW, ROWS, WHEN, WHICH, all_places, has_meaning, in_the_gate
from faults.table.sample import depends_on_patience, hangs

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "what_goes_wrong.md"
REPORT = runpy.run_path(str(ROOT / "scripts" / "faults_report.py"))


def test_every_combination_has_a_row_or_a_reason() -> None:
    rows = [(row.when, row.how, row.which) for row in ROWS]
    reasons = [(when, how, which) for when, how in NO_ROW for which in WHICH]
    assert [place for place, count in Counter(rows + reasons).items() if count > 1] == []
    assert {*rows, *reasons} == all_places()


def test_the_ids_of_rows_differ() -> None:
    assert len(set(map(str, ROWS))) == len(ROWS)


def test_a_row_that_raises_names_the_process() -> None:
    """An interrupt that ends what it should has nothing to name."""
    silent = [row for row in ROWS if row.raises and not any("{which}" in n for n in row.names)]
    allowed = {(row.raises, row.presses) for row in silent}
    assert allowed <= {("KeyboardInterrupt", 1), ("CellError", 0), ("CellError", 1)}


@pytest.mark.parametrize("seed", range(5))
def test_the_gate_plays_each_cause_and_each_message_and_few_that_hang(seed: int) -> None:
    chosen = in_the_gate(seed)
    steady = {row for row in ROWS if has_meaning(row) and not hangs(row)}
    steady -= set(filter(depends_on_patience, steady))
    assert {row.how for row in steady} <= {row.how for row in chosen} <= set(HOW)
    assert {name for row in steady for name in row.names} <= {n for r in chosen for n in r.names}
    assert {row.when for row in chosen} == set(WHEN)
    assert len([row for row in chosen if hangs(row)]) <= 5
    assert len(chosen) < 45


@pytest.mark.parametrize("when", WHEN)
def test_the_page_shows_the_rows(when: str) -> None:
    section = (
        PAGE.read_text().partition(f"### {when[0].upper()}{when[1:]}\n")[2].partition("###")[0]
    )
    lines = [line for line in section.splitlines() if line.startswith("| ")][1:]
    shown = [[cell.strip() for cell in line.strip("|").split(" | ")][:5] for line in lines]
    assert shown == REPORT["page_rows"](when), "run `make faults-report MARKDOWN=docs/…`"
