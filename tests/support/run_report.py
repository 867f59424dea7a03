"""What a run reports of itself: where the time went, and how late a failed test's machine was.

Loaded as a plugin in each worker and in the process that collects their reports.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable
from pathlib import Path
from typing import Any, TypeVar

import pytest

SLOWEST = 20

GROUPS_STARTED, LATE = "groups", "late_s"
"""Properties of a report."""

OUTCOME = "JAXNB_OUTCOME"
"""In the environment: the file that gets what became of a run, for ``scripts/run_tests.py``."""

T = TypeVar("T")


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


class GroupCount:
    """Counts the groups that are started in this process; those of kernels are not seen."""

    def __init__(self) -> None:
        self.count = 0

    def watch(self, starter: type) -> None:
        """Counts each call of ``start`` and ``restart`` of this class."""
        for name in ("start", "restart"):
            setattr(starter, name, self._counted(getattr(starter, name)))

    def _counted(self, method: Callable[..., T]) -> Callable[..., T]:
        def counted(*args: Any, **kwargs: Any) -> T:
            self.count += 1
            return method(*args, **kwargs)

        return counted


GROUPS = GroupCount()


class WorkerReport:
    """Adds to each test's reports the groups that it started and, if it failed, the delay."""

    def __init__(self, *, keeps_interrupts: bool) -> None:
        self._heartbeat = Heartbeat()
        self._keeps_interrupts = keeps_interrupts
        self._seen = 0

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
        report.user_properties.append((GROUPS_STARTED, GROUPS.count - self._seen))
        self._seen = GROUPS.count
        if report.failed:
            report.user_properties.append((LATE, round(self._heartbeat.worst, 2)))
        return report

    def pytest_unconfigure(self) -> None:
        self._heartbeat.stop()


class Totals:
    """Sums up all reports and says at the end where the time went."""

    def __init__(self) -> None:
        self._tests: defaultdict[str, float] = defaultdict(float)
        self._groups: Counter[str] = Counter()
        self._ended: set[str] = set()
        self._passed: set[str] = set()
        self._failures: dict[str, dict[str, Any]] = {}
        self._collected = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._tests[report.nodeid] += report.duration
        if report.when == "teardown":
            self._ended.add(report.nodeid)
        properties: dict[str, Any] = dict(report.user_properties)
        self._groups[_file(report.nodeid)] += properties.get(GROUPS_STARTED, 0)
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

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if OUTCOME not in os.environ or len(self._tests) < SLOWEST:
            return
        for line in self.lines():
            terminalreporter.write_line(line)

    def lines(self) -> Iterable[str]:
        """The tables, as lines of text; seconds are those of workers, fixtures included."""
        files = _summed(self._tests, _file)
        kinds = _summed(self._tests, lambda nodeid: nodeid.split("/")[1])
        yield f"slowest {SLOWEST} tests, in seconds of a worker:"
        yield from _slowest(self._tests)
        yield f"slowest {SLOWEST} files:"
        yield from _slowest(files)
        counts = Counter(nodeid.split("/")[1] for nodeid in self._ended)
        for kind, seconds in sorted(kinds.items(), key=lambda item: -item[1]):
            groups = sum(n for file, n in self._groups.items() if file.split("/")[1] == kind)
            yield f"{seconds:8.1f} {kind}: {counts[kind]} tests, {groups} groups"
        yield f"groups started: {sum(self._groups.values())} (those in kernels not counted)"


def _message(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Returns what was raised, with what it was raised from, in one line."""
    chain = getattr(report.longrepr, "chain", ())
    messages = [str(crash.message) for _, crash, _ in chain if crash is not None]
    return " ".join(" | ".join(messages or [str(report.longrepr)]).split())


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def _summed(seconds: dict[str, float], key: Callable[[str], str]) -> dict[str, float]:
    sums: defaultdict[str, float] = defaultdict(float)
    for nodeid, each in seconds.items():
        sums[key(nodeid)] += each
    return sums


def _slowest(seconds: dict[str, float]) -> Iterable[str]:
    for name, each in sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]:
        yield f"{each:8.1f} {name}"
