"""The suite's own hooks and scripts, and the tables of faults."""

from __future__ import annotations

import importlib
import itertools
import json
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

from faults.table.rows import HOW, NO_ROW, ROWS, WHEN, WHICH, all_places, hangs, in_the_gate
from faults.unequal.rows import ROWS as UNEQUAL
from support.pages import faults_table, unequal_table
from support.pytest_hooks import KINDS

ROOT = Path(__file__).resolve().parents[2]

INI = """[pytest]
addopts = --import-mode=importlib --disable-plugin-autoload -p xdist.plugin -p loader
pythonpath = tests
"""

LOADER = """
from support.run_report import Totals, WorkerReport

def pytest_configure(config):
    is_worker = hasattr(config, "workerinput")
    config.pluginmanager.register(WorkerReport(keeps_interrupts=is_worker))
    if not is_worker:
        config.pluginmanager.register(Totals())
"""

FAILS_ONCE = """
from pathlib import Path
def test_it():
    once = Path(__file__).with_suffix(".once")
    if not once.exists():
        once.touch()
        {fault}
"""


TORN_DOWN = FAILS_ONCE.format(fault="raise TimeoutError('late')").replace(
    "def test_it():",
    "import pytest\n"
    "@pytest.fixture(autouse=True)\n"
    "def torn():\n"
    "    once = Path(__file__).with_suffix('.once').exists()\n"
    "    yield\n"
    "    if not once: raise type('WrongNumbersError', (Exception,), {})(3)\n"
    "def test_it():",
)

INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT); signal.pause()"

SUITE = {
    "passes": "def test_it(): pass\n",
    "late": FAILS_ONCE.format(fault="assert 'early' == 'late'"),
    "interrupted": FAILS_ONCE.format(fault=INTERRUPT),
    "twice": "def test_it(): assert 3 == 4\n",
    "torn": TORN_DOWN,
    "numbers": FAILS_ONCE.format(fault="import numpy as n; n.testing.assert_array_equal([1], [2])"),
}


@dataclass(frozen=True)
class Ran:
    """A run of the script: its exit status, lines, and what it wrote to ``unsteady.json``."""

    status: int
    lines: list[str]
    unsteady: list[str]

    def about(self, name: str) -> str:
        """Returns the last lines about one test."""
        heads = tuple(f"{kind}: {nodeid(name)}" for kind in ("unsteady", "FAILED"))
        (begin,) = [n for n, line in enumerate(self.lines) if line in heads]
        rest = itertools.takewhile(lambda line: line[:1] == " ", self.lines[begin + 1 :])
        return "\n".join([self.lines[begin], *rest])


def nodeid(name: str) -> str:
    return f"tests/unit/test_{name}.py::test_it"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The script in a checkout of a few tests, with its real plugin."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "scripts").mkdir()
    (folder / "tests" / "unit").mkdir(parents=True)
    (folder / "tests" / "support").mkdir()
    for name in ("scripts/run_tests.py", "tests/support/run_report.py"):
        (folder / name).write_text((ROOT / name).read_text())
    (folder / "pytest.ini").write_text(INI)
    (folder / "tests" / "loader.py").write_text(LOADER)
    for name, text in SUITE.items():
        (folder / "tests" / "unit" / f"test_{name}.py").write_text(text)
    command = [sys.executable, "scripts/run_tests.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    unsteady = json.loads((folder / "unsteady.json").read_text())
    return Ran(done.returncode, done.stdout.splitlines(), [each["nodeid"] for each in unsteady])


def test_what_passes_alone_is_unsteady(ran: Ran) -> None:
    assert sorted(ran.unsteady) == [nodeid("interrupted"), nodeid("late")]
    text = ran.about("late")
    assert text.startswith("unsteady: ")
    assert "'early' == 'late'" in text
    assert "    alone: passed" in text


def test_a_late_interrupt_fails_its_test_only(ran: Ran) -> None:
    assert "a SIGINT came that nothing had waited for" in ran.about("interrupted")


def test_what_fails_twice_fails_the_run(ran: Ran) -> None:
    assert ran.status == 1
    assert ran.about("twice").startswith("FAILED: ")
    assert "    alone: failed" in ran.about("twice")


@pytest.mark.parametrize("name", ["numbers", "torn"])
def test_wrong_numbers_are_not_forgiven(ran: Ran, name: str) -> None:
    text = ran.about(name)
    assert text.startswith("FAILED: ")
    assert "    alone: passed" in text
    assert "never forgiven" in text


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "scripts")
    return importlib.import_module("run_tests")


@pytest.mark.parametrize(
    ("status", "messages", "why"),
    [
        (0, [], ""),
        (1, ["late"] * 5, ""),
        (1, ["late"] * 6, "6 tests failed; more than 5 are not run again"),
        (2, ["late"], "pytest ended with exit status 2"),
        (1, ["late", "not collected: 1/0"], f"not collected: {nodeid('1')}"),
        (1, ["worker 'gw0' crashed while running"], f"a worker crashed: {nodeid('0')}"),
    ],
)
def test_what_fails_a_first_pass(
    script: ModuleType, status: int, messages: list[str], why: str
) -> None:
    failed = tuple(script.Failure(nodeid(str(n)), text, 0.0) for n, text in enumerate(messages))
    assert script.judge(script.Outcome(status, 9, 9, 9, failed)) == why
    assert script.judge(script.Outcome(0, 9, 8, 8)) == "8 of 9 tests came to an end"


@pytest.mark.parametrize(
    "error",
    [
        "ProcessDiedError: process 2",
        "LostVariablesError: x",
        "AssertionError: assert 35 == 36",
        "AssertionError: processes left behind: ['7']",
        "TimeoutError | WrongNumbersError: 3",
    ],
)
def test_deaths_and_losses_are_not_forgiven(script: ModuleType, error: str) -> None:
    assert not script.Failure(nodeid("it"), error, 0.0, "passed").is_unsteady


# ---------------------------------------------------------------------- hooks


HOOKS = ["-p", "support.pytest_hooks", "-p", "no:cacheprovider", "--disable-plugin-autoload"]


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A suite with one passing, one skipping and one file-skipping test of two kinds."""
    monkeypatch.delenv("JAXNB_FORBID_SKIPS", raising=False)
    kinds = "\n".join(f"    {kind}" for kind in (*KINDS, "may_be_skipped", "thorough", "timing"))
    pytester.makeini(
        f"[pytest]\naddopts = --strict-markers --import-mode=importlib\nmarkers =\n{kinds}\n"
    )
    for kind in ("unit", "gpu"):
        folder = pytester.path / "tests" / kind
        folder.mkdir(parents=True)
        (folder / f"test_{kind}.py").write_text(
            "import pytest\n"
            "def test_runs(): pass\n"
            "def test_skips(): pytest.skip('not here')\n"
            "@pytest.mark.xfail\ndef test_known(): assert False\n"
        )
        (folder / f"test_{kind}_file.py").write_text(
            "import pytest\npytest.skip('none of it', allow_module_level=True)\n"
        )
    return pytester


MAY = "import pytest\n@pytest.mark.may_be_skipped\ndef test_skips(): pytest.skip('not here')\n"


@pytest.mark.parametrize(
    ("where", "outcomes", "said"),
    [
        ("unit/test_unit.py", {"passed": 1, "failed": 1, "xfailed": 1}, "*not here*"),
        ("unit/test_unit_file.py", {"errors": 1}, "*none of it*"),
        ("unit/test_may.py", {"skipped": 1}, ""),
        ("gpu", {"passed": 1, "skipped": 2, "xfailed": 1}, ""),
    ],
)
def test_a_skip_that_is_forbidden_fails(
    suite: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    outcomes: dict[str, int],
    said: str,
) -> None:
    monkeypatch.setenv("JAXNB_FORBID_SKIPS", "1")
    (suite.path / "tests" / "unit" / "test_may.py").write_text(MAY)
    result = suite.runpytest_inprocess(*HOOKS, f"tests/{where}", "-rf")
    result.assert_outcomes(**outcomes)
    assert (result.ret != 0) == bool(said)
    if said:
        result.stdout.fnmatch_lines([f"*JAXNB_FORBID_SKIPS{said}"])


def test_the_folder_is_the_kind_and_kinds_run_in_their_order(suite: pytest.Pytester) -> None:
    result = suite.runpytest_inprocess(*HOOKS, "tests/gpu", "tests/unit", "-v")
    result.assert_outcomes(passed=2, skipped=4, xfailed=2)
    order = ["tests/unit/test_unit.py::test_runs *", "tests/gpu/test_gpu.py::test_runs *"]
    result.stdout.fnmatch_lines(order)
    result = suite.runpytest_inprocess(*HOOKS, "tests", "-m", "unit", "-v")
    result.stdout.no_fnmatch_line("tests/gpu/test_gpu.py::test_runs PASSED*")


def test_a_test_outside_the_kinds_is_refused(suite: pytest.Pytester) -> None:
    (suite.path / "tests" / "test_stray.py").write_text("def test_stray(): pass\n")
    result = suite.runpytest_inprocess(*HOOKS, "tests")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_stray.py::test_stray is in none of the folders*"])


def test_each_eighth_of_many_cases_is_played(suite: pytest.Pytester) -> None:
    folder = suite.path / "tests" / "integration"
    folder.mkdir()
    (folder / "test_cases.py").write_text(
        "import pytest\n"
        "@pytest.mark.parametrize('n', range(10))\ndef test_many(n): pass\n"
        "slow = [pytest.param(n, marks=pytest.mark.thorough) for n in range(3, 9)]\n"
        "@pytest.mark.parametrize('n', [0, 1, 2, *slow])\ndef test_chosen(n): pass\n"
    )
    result = suite.runpytest_inprocess(*HOOKS, "tests/integration", "-m", "not thorough", "-v")
    result.assert_outcomes(passed=5, deselected=14)
    for case in ("many[0]", "many[8]", "chosen[0]", "chosen[1]", "chosen[2]"):
        result.stdout.fnmatch_lines([f"*test_{case.replace('[', '[[]')} PASSED*"])


# ---------------------------------------------------------------------- tables of faults


DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_every_combination_has_a_row_or_a_reason() -> None:
    rows = [(row.when, row.how, row.which) for row in ROWS]
    reasons = [(when, how, which) for when, how in NO_ROW for which in WHICH]
    assert [place for place, count in Counter(rows + reasons).items() if count > 1] == []
    assert {*rows, *reasons} == all_places()
    for table in (ROWS, UNEQUAL):
        assert len(set(map(str, table))) == len(table)
    assert [str(row) for row in UNEQUAL if not row.twin or row.twin == row.unequal] == []


def test_the_gate_plays_every_when_and_few_rows_that_hang() -> None:
    chosen = in_the_gate()
    assert {row.when for row in chosen} == set(WHEN)
    assert {row.how for row in ROWS if not hangs(row)} <= {row.how for row in chosen} <= set(HOW)
    assert len([row for row in chosen if hangs(row)]) <= 5
    assert len(chosen) < 45


def test_the_pages_show_all_rows() -> None:
    for name, table in (("what_goes_wrong", faults_table()), ("what_differs", unequal_table())):
        assert (DOCS / f"{name}.md").read_text().count("<!-- the table of tests/faults/") == 1
        assert all(f"| {row.how} |" in table for row in ROWS if name == "what_goes_wrong")
        assert all(f"| {row.what} |" in table for row in UNEQUAL if name == "what_differs")
