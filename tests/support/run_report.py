"""What a run reports of itself: what became of its tests, and how late a failed test's machine was.

Loaded as a plugin in each worker and in the process that collects their reports.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

LATE = "late_s"
"""A property of a report."""

OUTCOME = "JAXNB_OUTCOME"
"""In the environment: the file that gets what became of a run, for ``scripts/run_tests.py``."""


class InterruptedTest(Exception):
    """A SIGINT reached pytest in a test that did not expect one.

    As a KeyboardInterrupt it would end the run: pytest-xdist takes it for the user's.
    """


class Heartbeat:
    """Measures how late a thread wakes that wants to wake ten times a second.

    Args:
        beat: Seconds between two looks.
    """

    def __init__(self, beat: float = 0.1) -> None:
        self._beat = beat
        self._worst = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            begun = time.monotonic()
            if self._ended.wait(self._beat):
                return
            self._worst = max(self._worst, time.monotonic() - begun - self._beat)

    def forget(self) -> None:
        """Begins to measure afresh."""
        self._worst = 0.0

    @property
    def worst(self) -> float:
        """The longest delay since, in seconds."""
        return self._worst

    def stop(self) -> None:
        """Ends the thread."""
        self._ended.set()
        self._thread.join()


class WorkerReport:
    """Adds to the reports of a test that failed the delay, and has it survive a late interrupt."""

    def __init__(self, *, keeps_interrupts: bool) -> None:
        self._heartbeat = Heartbeat()
        self._keeps_interrupts = keeps_interrupts

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None]:
        self._heartbeat.forget()
        return (yield from self._kept())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None]:
        return (yield from self._kept())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None]:
        return (yield from self._kept())

    def _kept(self) -> Generator[None]:
        try:
            return (yield)
        except KeyboardInterrupt as error:
            if not self._keeps_interrupts:
                raise
            raise InterruptedTest("a SIGINT came that nothing had waited for") from error

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.failed:
            report.user_properties.append((LATE, round(self._heartbeat.worst, 2)))
        return report

    def pytest_unconfigure(self) -> None:
        self._heartbeat.stop()


class Totals:
    """Keeps what became of all tests, for ``scripts/run_tests.py``."""

    def __init__(self) -> None:
        self._ended: set[str] = set()
        self._passed: set[str] = set()
        self._failures: dict[str, dict[str, Any]] = {}
        self._collected = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self._ended.add(report.nodeid)
        properties: dict[str, Any] = dict(report.user_properties)
        if report.when == "call" and report.passed:
            self._passed.add(report.nodeid)
        if report.failed:  # a worker that has crashed says nothing of how late it was
            self._note(report.nodeid, _message(report), properties.get(LATE, 0.0))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._note(report.nodeid, f"not collected: {_message(report)}")

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._collected = len(ids)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        if error:
            self._note(f"worker {node.gateway.id}", f"a worker crashed: {error}")

    def _note(self, what: str, message: str, late: float = 0.0) -> None:
        """Keeps a failure; of a test that fails in several phases what each of them says."""
        known = self._failures.setdefault(what, {"nodeid": what, "message": "", "late_s": late})
        known["message"] += f" | {message}" if known["message"] else message

    def pytest_sessionfinish(self) -> None:
        if OUTCOME in os.environ:
            outcome = {
                "collected": self._collected,
                "ended": len(self._ended),
                "passed": len(self._passed),
                "failures": list(self._failures.values()),
            }
            Path(os.environ[OUTCOME]).write_text(json.dumps(outcome))


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Returns what was raised, with what it was raised from, in one line."""
    chain = getattr(report.longrepr, "chain", ())
    messages = [str(crash.message) for _, crash, _ in chain if crash is not None]
    return " ".join(" | ".join(messages or [str(report.longrepr)]).split())
