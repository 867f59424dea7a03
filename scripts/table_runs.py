"""Runs a table of tests often, and writes what came of its rows into a page.

What ``faults_report.py`` and ``unequal_report.py`` have in common.
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
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from statistics import median

from busy import busy_loops

ROOT = Path(__file__).resolve().parents[1]
TESTS = ROOT / "tests"
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))

BEGIN, END = "<!-- the table begins -->", "<!-- the table ends -->"


@dataclass
class Runs:
    """What became of a row each time.

    Attributes:
        passed: How often it passed.
        failed: How often it did not.
        seconds: Times that the test recorded, by name.
        texts: The last text that the test recorded under each other name.
    """

    passed: int = 0
    failed: int = 0
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """How often it was run."""
        return self.passed + self.failed

    def typical(self, what: str) -> str:
        """Returns the median of a time, as text; a dash if there is none."""
        return f"{median(self.seconds[what]):.2f}" if self.seconds[what] else "–"


@dataclass(frozen=True)
class Variant:
    """In what group a table is run, and beside what.

    Attributes:
        shape: Processes and devices of each, ``"4x2"``.
        queued: How many dispatches are under way already when something goes wrong.
        busy: How many processes that only compute run beside.
    """

    shape: str
    queued: int = 0
    busy: int = 0

    @property
    def environment(self) -> dict[str, str]:
        """What tells the tests so."""
        return {"JAXNB_TABLE_SHAPE": self.shape, "JAXNB_TABLE_QUEUED": str(self.queued)}

    def __str__(self) -> str:
        parts = [
            self.shape.replace("x", " × "),
            f"{self.queued} dispatches queued" if self.queued else "",
            f"beside {self.busy} busy processes" if self.busy else "",
        ]
        return ", ".join(filter(None, parts))


def run_once(
    number: int,
    test: str,
    options: Sequence[str],
    pattern: str,
    runs: Mapping[str, Runs],
    variants: Sequence[Variant],
) -> bool:
    """Runs all rows once.

    Args:
        number: Which run it is.
        test: The file of the test, whose parameter names the row.
        options: More options of pytest.
        pattern: Only rows that match, as pytest's ``-k``; empty for all.
        runs: What is noted of each row, by what stands in brackets in the test's name.
        variants: In what groups, and beside what: runs take them in turn.

    Returns:
        Whether all passed.
    """
    variant = variants[(number - 1) % len(variants)]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider"]
        # Of the families of reports the older one has properties of tests.
        command += ["--tb=short", "-o", "junit_family=xunit1", f"--junitxml={report}"]
        command += [test, *options, *(["-k", pattern] if pattern else [])]
        with busy_loops(variant.busy):
            ended = subprocess.run(
                command,
                cwd=ROOT,
                env=os.environ | variant.environment,
                capture_output=True,
                text=True,
                check=False,
            )
        if not report.exists():
            sys.exit(f"pytest wrote no report:\n{ended.stdout}{ended.stderr}")
        for case in ET.parse(report).iter("testcase"):
            _note(case, runs)
    if ended.returncode:
        print(f"run {number} ({variant}) failed:\n{ended.stdout}", file=sys.stderr)
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
        name, value = each.get("name", ""), each.get("value", "")
        if name.endswith("_s"):
            runs[row].seconds[name].append(float(value))
        else:
            runs[row].texts[name] = value


def parser(about: str | None) -> argparse.ArgumentParser:
    """Returns a parser of the options that all tables have."""
    made = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    made.add_argument("--times", type=int, default=1, help="how often each row is run")
    made.add_argument("--workers", type=int, default=1, help="how many runs go on at a time")
    made.add_argument("-k", dest="pattern", default="", help="only rows that match, as pytest's")
    made.add_argument("--markdown", type=Path, help="a page to write the table into")
    return made


def run_often(times: int, workers: int, once: Callable[[int], bool]) -> bool:
    """Runs a table so many times, so many at a time; returns whether all runs passed."""

    def run(number: int) -> bool:
        began = time.monotonic()
        passed = once(number)
        end = "passed" if passed else "FAILED"
        seconds = time.monotonic() - began
        print(f"run {number} of {times}: {end} in {seconds:.0f} s", flush=True)
        return passed

    with ThreadPoolExecutor(workers) as pool:
        try:
            return all(list(pool.map(run, range(1, times + 1))))
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)  # a terminal interrupts the tests themselves too
            raise


def measured(
    runs: Mapping[str, Runs], workers: int, variants: Sequence[Variant]
) -> tuple[str, str]:
    """Returns where and when a table was run, and how often and in which groups, for its page."""
    times = max((r.passed for r in runs.values()), default=0)
    beside = f", {workers} at a time" if workers > 1 else ""
    in_turn = "; ".join(map(str, variants[:times]))
    return (
        f"on {os.cpu_count()} cores on {date.today():%Y-%m-%d}",
        f"{times} {'run' if times == 1 else 'runs'}{beside}, in turn {in_turn}",
    )


def print_aligned(lines: Sequence[Sequence[str]]) -> None:
    """Prints lines of columns, the last one as long as it is."""
    widths = [max(len(line[k]) for line in lines) for k in range(len(lines[0]) - 1)]
    for line in lines:
        print("  ".join([*(c.ljust(w) for c, w in zip(line, widths, strict=False)), line[-1]]))


def as_code(text: str) -> str:
    """Returns text as Markdown code within a table."""
    text = text.replace("|", "\\|")
    fence = "``" if "`" in text else "`"
    space = " " if "`" in text else ""
    return f"{fence}{space}{text}{space}{fence}"


def write_page(page: Path, table: str) -> None:
    """Puts a table between the marks of a page."""
    text = page.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n\n{table}\n{END}{after}")
