"""The table of what is unequal is sound, and the documentation shows it."""

from __future__ import annotations

import runpy
from pathlib import Path

from faults.unequal import ROWS

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "what_differs.md"
REPORT = runpy.run_path(str(ROOT / "scripts" / "unequal_report.py"))


def test_the_ids_of_rows_differ() -> None:
    assert len(set(map(str, ROWS))) == len(ROWS)


def test_every_twin_differs_from_its_row() -> None:
    assert [str(row) for row in ROWS if not row.twin or row.twin == row.unequal] == []


def test_the_page_shows_the_rows() -> None:
    table = PAGE.read_text().partition(REPORT["BEGIN"])[2].partition(REPORT["END"])[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][1:]
    shown = [[cell.strip() for cell in line.strip("|").split(" | ")][:3] for line in lines]
    assert shown == REPORT["page_rows"](), "run `make unequal-report MARKDOWN=docs/what_differs.md`"
