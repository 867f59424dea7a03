"""Runs the table of faults, and prints it with times; fails if a row failed.

Each row is a test of ``tests/faults/test_table.py``. It says how long it took from the fault to
the exception, and from there until the group computed again. Waits that are there for people
(before somebody is called silent) are cut short in it.

``--markdown FILE`` writes the table into a page of the documentation, between two marks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).parent))

from table_runs import (
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

from faults.table import NO_ROW, ROWS, WHEN, Row

TEST = "tests/faults/test_table.py"

VARIANTS = (
    Variant("3x1"),
    Variant("4x2", queued=10),
    Variant("2x4", queued=10),
    Variant("3x1", busy=2),
    Variant("4x2", queued=10, busy=2),
    Variant("2x4", queued=10, busy=2),
)
"""The groups that runs take in turn. A row that needs three processes, or one device of each, is
left out elsewhere."""

ABOUT = {
    "starting": "while the processes join each other",
    "idle": "between two cells; a thread that an earlier cell left, or a signal from outside",
    "Python": "in a cell; but for deaths, the other processes come to its end",
    "collective": "in a cell; the other processes wait in a collective",
    "pull": "one process runs code of its user's to give a value (`__reduce__`)",
    "push": "one process runs code of its user's to make a value",
    "re-forming": "another process has died and is being replaced",
}


def as_people_read(text: str) -> str:
    """Returns a fragment of a message with its blanks filled for any process."""
    return text.format(
        which="i", pid="…", cell="…", fault="…", wait="…", count="N", x="…", long="…", have="have",
        parts="the others / i", mine="`mine` (differs by process)",
        others="the others", Others="The others", other="k", ranks="the others",
    )  # fmt: skip


def print_table(runs: Mapping[str, Runs]) -> None:
    """Prints the rows that were run, aligned."""
    head = (
        "when", "how", "which", "exception", "afterwards", "to the exception (s)",
        "to usable (s)", "passed", "names",
    )  # fmt: skip
    rows = [
        (
            row.when,
            row.how,
            row.which,
            row.what_is_raised,
            row.afterwards,
            runs[str(row)].typical("to_exception_s"),
            runs[str(row)].typical("to_usable_s"),
            f"{runs[str(row)].passed}/{runs[str(row)].count}",
            "; ".join(map(as_people_read, row.names)),
        )
        for row in ROWS
        if runs[str(row)].count
    ]
    print_aligned([head, *rows])


# ---------------------------------------------------------------------- the page


def kinds(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Returns rows by what the page says of them, which for both processes is the same."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        names = "<br>".join(as_code(as_people_read(name)) for name in row.names) or "–"
        found.setdefault((row.how, row.what_is_raised, names, row.afterwards), []).append(row)
    return found


def page_rows(when: str) -> list[list[str]]:
    """Returns the cells of the page's table for a *when*, without times."""
    return [
        [how, ", ".join(row.which for row in rows), raised, names, afterwards]
        for (how, raised, names, afterwards), rows in kinds(
            row for row in ROWS if row.when == when
        ).items()
    ]


def markdown(runs: Mapping[str, Runs], workers: int) -> str:
    """Returns the tables, one for each *when*, and what has no row."""
    where, times = measured(runs, workers, VARIANTS)
    parts = [f"Measured {where}: medians over both processes and {times}.\n"]
    for when in WHEN:
        parts.append(f"### {when[0].upper()}{when[1:]}\n\n{ABOUT[when]}\n")
        parts.append(
            "| how | which | raised | named | afterwards | to the exception (s) | to usable (s) |\n"
            "|---|---|---|---|---|---|---|"
        )
        by_text = kinds(row for row in ROWS if row.when == when)
        for cells, rows in zip(page_rows(when), by_text.values(), strict=True):
            seconds = [_typical(rows, runs, what) for what in ("to_exception_s", "to_usable_s")]
            parts.append(f"| {' | '.join([*cells, *seconds])} |")
        parts.append("")
    return "\n".join([*parts, *_without_rows()])


def _typical(rows: Sequence[Row], runs: Mapping[str, Runs], what: str) -> str:
    seconds = [s for row in rows for s in runs[str(row)].seconds[what]]
    return f"{median(seconds):.2f}" if seconds else "–"


def _without_rows() -> list[str]:
    reasons: dict[tuple[str, str], list[str]] = {}
    for (when, how), why in NO_ROW.items():
        reasons.setdefault((when, why), []).append(how)
    lines = ["### What has no row", "", "| when | how | why |", "|---|---|---|"]
    for (when, why), hows in reasons.items():
        lines.append(f"| {when} | {', '.join(hows)} | {why} |")
    return [*lines, ""]


def main() -> int:
    """Runs the table."""
    arguments = parser(__doc__).parse_args()
    runs = {str(row): Runs() for row in ROWS}
    # No row, and a worker beside this one would take it for the reason of a row's death.
    options = ["--deselect", f"{TEST}::test_who_is_killed_for_want_of_memory"]
    passed = run_often(
        arguments.times,
        arguments.workers,
        lambda number: run_once(number, TEST, options, arguments.pattern, runs, VARIANTS),
    )
    print_table(runs)
    if arguments.markdown is not None:
        write_page(arguments.markdown, markdown(runs, arguments.workers))
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
