"""Runs the table of what is unequal among processes, and prints it; fails if a row failed.

Each row is a test of ``tests/faults/test_unequal.py``, together with its healthy twin, of which
nothing may be said.

``--markdown FILE`` writes the table into a page of the documentation, between two marks.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from table_runs import (
    BEGIN,
    END,
    Runs,
    Variant,
    as_code,
    measured,
    parser,
    print_aligned,
    run_often,
    run_once,
    write_page,
)

from faults.unequal import ROWS, Row

__all__ = ["BEGIN", "END", "main", "page_rows"]

TEST = "tests/faults/test_unequal.py"

VARIANTS = (Variant("4x2"), Variant("2x4"), Variant("4x2", busy=2), Variant("2x4", busy=2))
"""The groups that runs take in turn. With two processes all is told, in words of its own."""

SAID_CHARS = 300
"""Of what is said the page shows no more."""


def page_rows() -> list[list[str]]:
    """Returns the cells of the page's table that do not depend on a run."""
    return [[row.where, row.what, "refused" if row.refused else "reported"] for row in ROWS]


def said(row: Row, runs: Mapping[str, Runs]) -> str:
    """Returns what was said of a row, shortened."""
    text = runs[str(row)].texts.get("said") or "–"
    # Numbers of lines and cells depend on what ran before.
    text = re.sub(r"(line|cell|dispatch) \[?\d+\]?", r"\1 …", " ".join(text.split()))
    return text if text == "–" else as_code(textwrap.shorten(text, SAID_CHARS, placeholder=" …"))


def markdown(runs: Mapping[str, Runs], workers: int) -> str:
    """Returns the table."""
    where, times = measured(runs, workers, VARIANTS)
    lines = [
        f"Run {where}: {len(ROWS)} rows and their healthy twins; {times}, all passed.\n",
        "| where | what is unequal | it is | what is said |",
        "|---|---|---|---|",
    ]
    for row, cells in zip(ROWS, page_rows(), strict=True):
        lines.append(f"| {' | '.join([*cells, said(row, runs)])} |")
    return "\n".join([*lines, ""])


def main() -> int:
    """Runs the table."""
    arguments = parser(__doc__).parse_args()
    runs = {str(row): Runs() for row in ROWS}
    passed = run_often(
        arguments.times,
        arguments.workers,
        lambda number: run_once(number, TEST, (), arguments.pattern, runs, VARIANTS),
    )
    lines = [("where", "what", "it is", "passed")]
    for row, cells in zip(ROWS, page_rows(), strict=True):
        run = runs[str(row)]
        lines.append((*cells, f"{run.passed}/{run.count}"))  # type: ignore[arg-type]
    print_aligned(lines)
    if arguments.markdown is not None and passed:
        write_page(arguments.markdown, markdown(runs, arguments.workers))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
