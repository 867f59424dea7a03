"""What the script behind ``make test`` makes of failures, on small suites in a temporary folder."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest

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
    """A run of the script.

    Attributes:
        status: Its exit status.
        lines: What it printed.
        unsteady: The tests that it wrote to ``unsteady.json``.
    """

    status: int
    lines: list[str]
    unsteady: list[str]

    def about(self, name: str) -> str:
        """Returns the last lines about one test."""
        (begin,) = [n for n, line in enumerate(self.lines) if line.endswith(nodeid(name))
                    and line.startswith(("unsteady: ", "FAILED: "))]  # fmt: skip
        end = next(
            (n for n in range(begin + 1, len(self.lines)) if self.lines[n][:1] != " "),
            len(self.lines),
        )
        return "\n".join(self.lines[begin:end])


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
        (1, [], "pytest failed and named no test"),
        (2, ["late"], "pytest ended with exit status 2"),
        (-9, [], "pytest ended with exit status -9"),
        (1, ["late", "not collected: 1/0"], f"not collected: {nodeid('1')}"),
        (1, ["worker 'gw0' crashed while running"], f"a worker crashed: {nodeid('0')}"),
    ],
)
def test_what_fails_a_first_pass(
    script: ModuleType, status: int, messages: list[str], why: str
) -> None:
    failed = tuple(script.Failure(nodeid(str(n)), text, 0.0) for n, text in enumerate(messages))
    assert script.judge(script.Outcome(status, 9, 9, 9, failed)) == why


def test_tests_that_never_ran_fail_a_first_pass(script: ModuleType) -> None:
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
