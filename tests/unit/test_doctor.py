"""``jaxnb doctor`` finds what is wrong with a machine, and says what to type."""

from __future__ import annotations

import json
import os
import resource

import pytest

from jaxnb.cli import doctor


def levels(findings: object) -> list[str]:
    return [each.level for each in findings]  # type: ignore[attr-defined]


def test_who_may_open_more_files(monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._more_files().startswith(("ulimit -n ", "sudo prlimit "))
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert doctor._more_files().startswith("sudo prlimit --nofile=")


def test_few_processes_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"/sys/fs/cgroup/pids.max": "100", "/sys/fs/cgroup/pids.current": "90"}
    monkeypatch.setattr(doctor, "_read", numbers.__getitem__)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert doctor._tasks().text == "10 more processes and threads may be started"
    assert doctor._tasks().level == "warning"


@pytest.mark.parametrize(("jaxlib", "level"), [("0.11.4", "ok"), ("0.10.9", "error")])
def test_versions_that_do_not_go_together(
    monkeypatch: pytest.MonkeyPatch, jaxlib: str, level: str
) -> None:
    monkeypatch.setattr(doctor, "version", {"jax": "0.11.4", "jaxlib": jaxlib}.__getitem__)
    first = [*doctor._versions()][1]
    assert first.level == level
    assert (first.fix != "") == (level == "error")


@pytest.mark.parametrize("level", ["ok", "warning", "error"])
def test_the_exit_status_tells_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], level: doctor.Level
) -> None:
    found = doctor.Finding(level, "something", "a fix" if level != "ok" else "")
    monkeypatch.setattr(doctor, "CHECKS", (lambda: iter([found]),))
    assert doctor.doctor(as_json=True) == int(level == "error")
    assert json.loads(capsys.readouterr().out)[0]["level"] == level
    doctor.doctor(as_json=False)
    assert ("fix: a fix" in capsys.readouterr().out) == (level != "ok")


def test_this_machine_has_no_errors() -> None:
    checks = [each for each in doctor.CHECKS if each is not doctor._start]
    assert "error" not in [each.level for check in checks for each in check()]
