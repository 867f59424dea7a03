"""How pytest treats this test suite: kinds by folder, their order, and skips in CI.

A test's kind is the folder under ``tests/`` it stands in; its marker has the same name, so
``pytest -m "unit or integration"`` works and no test can lack one.

With ``JAXNB_FORBID_SKIPS=1`` in the environment (as in CI) a skipped test fails, since there
every test must run; only tests of kind ``gpu`` may be skipped, and those marked ``may_be_skipped``.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from support.run_report import Totals, WorkerReport

TESTS = Path(__file__).resolve().parents[1]

# Cheap kinds first: what they catch need not be waited for. Then what takes long in one piece:
# as the last, it would have all workers but one wait.
KINDS = ("unit", "packaging", "browser", "faults", "integration", "notebooks", "gpu")
MAY_BE_SKIPPED = frozenset({"gpu"})

MANY_CASES, CASES_PER_PLAYED = 3, 8
"""Of the cases of an integration test that has many ``make test`` plays each eighth."""

LEFT_OUT = pytest.StashKey[int]()
"""How many cases were left out; a worker passes it to the process that prints the summary."""

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
NO_CHROMIUM = "no Chromium on PATH (Debian: apt-get install chromium)"


def find_chromium() -> str | None:
    """Returns the path of a Chromium, or None; ``JAXNB_CHROMIUM`` goes first."""
    named = os.environ.get("JAXNB_CHROMIUM")
    return named or next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


def skips_are_forbidden() -> bool:
    return os.environ.get("JAXNB_FORBID_SKIPS", "") not in ("", "0")


def kind_of(path: Path, tests: Path = TESTS) -> str | None:
    """Returns the kind of a test file, or None for one outside the folders of the kinds."""
    if not path.is_relative_to(tests):
        return None
    folder = path.relative_to(tests).parts[0]
    return folder if folder in KINDS else None


def pytest_configure(config: pytest.Config) -> None:
    is_worker = hasattr(config, "workerinput")
    # Where pytest runs the tests itself, a SIGINT may be the user's.
    config.pluginmanager.register(WorkerReport(keeps_interrupts=is_worker))
    if not is_worker:
        config.pluginmanager.register(Totals())
        # One for the run: what another test has compiled is loaded, nothing of another day's.
        folder = tempfile.TemporaryDirectory(prefix="programs-of-tests-")
        config.add_cleanup(folder.cleanup)
        os.environ["JAXNB_COMPILE_CACHE"] = folder.name
    # A shell that runs a job in the background has it ignore SIGINT, and so do all processes
    # that the tests start: none of their interrupts would come.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = config.rootpath / "tests"
    order = {kind: n for n, kind in enumerate(KINDS)}
    kinds: dict[str, str | None] = {}
    for item in items:
        kind = kinds[item.nodeid] = kind_of(item.path, tests)
        if kind is None:
            raise pytest.UsageError(
                f"{item.nodeid} is in none of the folders tests/{{{','.join(KINDS)}}}: "
                f"move it to the one of its kind."
            )
        item.add_marker(kind)
        if kind == "browser" and find_chromium() is None:
            item.add_marker(pytest.mark.skip(reason=NO_CHROMIUM))
    left_out = _leave_out_cases([item for item in items if kinds[item.nodeid] == "integration"])
    config.stash[LEFT_OUT] = left_out
    items.sort(key=lambda item: order[kinds[item.nodeid] or ""])  # stable: files stay together


def _leave_out_cases(items: list[pytest.Item]) -> int:
    """Marks most cases of tests that have many; returns how many.

    Nobody waits for one of thirty dtypes; a fault in their common way shows in any of them. Where
    a test itself says which of its cases to leave out, it is left as it is.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    left_out = 0
    for of_test in cases.values():
        if len(of_test) >= MANY_CASES and not any(map(_is_left_out, of_test)):
            for number, item in enumerate(of_test):
                if number % CASES_PER_PLAYED:
                    item.add_marker("thorough")
                    left_out += 1
    return left_out


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left_out"] = session.config.stash.get(LEFT_OUT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[LEFT_OUT] = getattr(node, "workeroutput", {}).get("left_out", 0)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if (count := config.stash.get(LEFT_OUT, 0)) and "not thorough" in config.option.markexpr:
        terminalreporter.write_line(
            f"{count} cases of integration tests with {MANY_CASES} or more were left to "
            f"`make test-all`: here each {CASES_PER_PLAYED}th is played."
        )


def _is_left_out(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) is not None for name in ("thorough", "timing"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Runs a file's tests in one worker, as they may share a group, and all of the browser's too.

    They share JupyterLab and the browser, of which two at a time start too slowly. The marker
    ``xdist_group`` would say that, but pytest-xdist 3.8 cannot read it under pytest 9.2.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = str(super()._split_scope(nodeid))
            return "browser" if file.startswith("tests/browser/") else file

    return Scheduling(config, log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    expected_failure = hasattr(report, "wasxfail")
    if report.skipped and not expected_failure and not _may_be_skipped(item):
        _fail(report)
    if report.failed and report.when == "call":
        report.sections += [("Where the processes are", text) for text in _whereabouts(item)]
    return report


def _whereabouts(item: pytest.Item) -> list[str]:
    """Returns where the processes are of groups that a test has used, and that have not ended."""
    given = getattr(item, "funcargs", {})
    sessions = [given[name] for name in ("session", "group") if hasattr(given.get(name), "where")]
    sessions += getattr(given.get("make_session"), "sessions", [])
    if not sessions:
        return []
    from support.fixtures import whereabouts  # pytest rewrites its asserts, once it is a plugin

    return [whereabouts(each) for each in dict.fromkeys(sessions) if each.state != "closed"]


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and not _may_be_skipped(collector):
        _fail(report)
    return report


def _may_be_skipped(node: pytest.Item | pytest.Collector) -> bool:
    return (
        not skips_are_forbidden()
        or kind_of(node.path, node.config.rootpath / "tests") in MAY_BE_SKIPPED
        or node.get_closest_marker("may_be_skipped") is not None
    )


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    longrepr = report.longrepr
    reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
    report.outcome = "failed"
    report.longrepr = f"JAXNB_FORBID_SKIPS: this test must run here. It says: {reason}"
