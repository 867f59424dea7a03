"""Runs the table of faults, and prints it with times; fails if a row failed.

Each row is a test of ``tests/faults/test_table.py``. It says how long it took from the fault to
the exception, and from there until the group computed again. Waits that are there for people
(before who is left behind is freed, before somebody is called silent) are cut short in it.

``--markdown FILE`` writes the table into a page of the documentation, between two marks.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

from faults.table import NO_ROW, ROWS, WHEN, Row  # noqa: E402

BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"

ABOUT = {
    "starting": "while the processes join each other",
    "idle": "between two cells; a thread that an earlier cell left, or a signal from outside",
    "Python": "in a cell; but for deaths, the other processes come to its end",
    "collective": "in a cell; the other processes wait in a collective",
    "pull": "one process runs code of its user's to give a value (`__reduce__`)",
    "push": "one process runs code of its user's to make a value",
    "re-forming": "another process has died and is being replaced",
}


@dataclass
class Runs:
    """What became of a row each time."""

    passed: int = 0
    failed: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def typical(self, what: str) -> str:
        """Returns the median of a time, as text; a dash if there is none."""
        return f"{median(self.seconds[what]):.2f}" if self.seconds[what] else "–"


def run_once(number: int, pattern: str, runs: Mapping[str, Runs]) -> bool:
    """Runs all rows once; returns whether all passed."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
        # Of the families of reports the older one has properties of tests.
        command += ["--tb=short", "-o", "junit_family=xunit1", f"--junitxml={report}"]
        command += ["tests/faults/test_table.py"]
        # No row, and a worker beside this one would take it for the reason of a row's death.
        command += ["--deselect", f"{command[-1]}::test_who_is_killed_for_want_of_memory"]
        ended = subprocess.run(
            [*command, *(["-k", pattern] if pattern else [])],
            cwd=ROOT,
            env=os.environ | {"JAXNB_ALL_ROWS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not report.exists():
            sys.exit(f"pytest wrote no report:\n{ended.stdout}{ended.stderr}")
        for case in ET.parse(report).iter("testcase"):
            _note(case, runs)
    if ended.returncode:
        print(f"run {number} failed:\n{ended.stdout}", file=sys.stderr)
    return ended.returncode == 0


def _note(case: ET.Element, runs: Mapping[str, Runs]) -> None:
    row = case.get("name", "").partition("[")[2].rstrip("]")
    if row not in runs:
        return
    if case.find("failure") is not None or case.find("error") is not None:
        runs[row].failed += 1
        return
    runs[row].passed += 1
    for each in case.iter("property"):
        runs[row].seconds[each.get("name", "")].append(float(each.get("value", "nan")))


def as_people_read(text: str) -> str:
    """Returns a fragment of a message with its blanks filled for any process."""
    return text.format(
        which="i", pid="…", cell="…", fault="…", wait="…",
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
            f"{runs[str(row)].passed}/{runs[str(row)].passed + runs[str(row)].failed}",
            "; ".join(map(as_people_read, row.names)),
        )
        for row in ROWS
        if runs[str(row)].passed + runs[str(row)].failed
    ]
    widths = [max(len(line[k]) for line in (head, *rows)) for k in range(len(head) - 1)]
    for line in (head, *rows):
        print("  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]))


# ---------------------------------------------------------------------- the page


def kinds(rows: Iterable[Row]) -> dict[tuple[str, ...], list[Row]]:
    """Returns rows by what the page says of them, which for both processes is the same."""
    found: dict[tuple[str, ...], list[Row]] = {}
    for row in rows:
        names = "<br>".join(map(code_span, row.names)) or "–"
        found.setdefault((row.how, row.what_is_raised, names, row.afterwards), []).append(row)
    return found


def code_span(text: str) -> str:
    """Returns a fragment as Markdown in a table."""
    text = as_people_read(text).replace("|", "\\|")
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


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
    times = max((r.passed for r in runs.values()), default=0)
    beside = f", {workers} at a time" if workers > 1 else ""
    parts = [
        f"Measured on {os.cpu_count()} cores on {date.today():%Y-%m-%d}: medians over both "
        f"processes and {times} {'run' if times == 1 else 'runs'}{beside}.\n"
    ]
    for when in WHEN:
        parts.append(f"### {when[0].upper()}{when[1:]}\n\n{ABOUT[when]}\n")
        parts.append(
            "| how | which | raised | named | afterwards | to the exception (s) | to usable (s) |\n"
            "|---|---|---|---|---|---|---|"
        )
        by_text = kinds(row for row in ROWS if row.when == when)
        for cells, rows in zip(page_rows(when), by_text.values(), strict=True):
            measured = [_typical(rows, runs, what) for what in ("to_exception_s", "to_usable_s")]
            parts.append(f"| {' | '.join([*cells, *measured])} |")
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


def write_page(page: Path, runs: Mapping[str, Runs], workers: int) -> None:
    """Puts the table between the marks of a page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{markdown(runs, workers)}\n{END}{after}")


def main() -> int:
    """Runs the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--times", type=int, default=1, help="how often each row is run")
    parser.add_argument("--workers", type=int, default=1, help="how many runs go on at a time")
    parser.add_argument("-k", dest="pattern", default="", help="only rows that match, as pytest's")
    parser.add_argument("--markdown", type=Path, help="a page to write the table into")
    arguments = parser.parse_args()
    runs = {str(row): Runs() for row in ROWS}

    def run(number: int) -> bool:
        began = time.monotonic()
        passed = run_once(number, arguments.pattern, runs)
        end = "passed" if passed else "FAILED"
        seconds = time.monotonic() - began
        print(f"run {number} of {arguments.times}: {end} in {seconds:.0f} s", flush=True)
        return passed

    with ThreadPoolExecutor(arguments.workers) as pool:
        try:
            passed = list(pool.map(run, range(1, arguments.times + 1)))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)  # a terminal interrupts the tests themselves too
            raise
    print_table(runs)
    if arguments.markdown is not None:
        write_page(arguments.markdown, runs, arguments.workers)
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
