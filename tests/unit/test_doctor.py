"""``jaxnb doctor`` finds what is wrong with a machine, and says what to type."""

from __future__ import annotations

import json
import os
import resource

import pytest

from jaxnb.cli import doctor


def levels(findings: object) -> list[str]:
    return [each.level for each in findings]  # type: ignore[attr-defined]


def test_variables_that_are_set_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    for names in doctor._SETS.values():
        for name in names:
            monkeypatch.delenv(name, raising=False)
    assert "warning" not in levels(doctor._variables())
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    (found,) = [each for each in doctor._variables() if each.level == "warning"]
    assert found.fix == "unset SLURM_JOB_ID"
    for name in doctor._SETS["Slurm"]:
        monkeypatch.setenv(name, "1")
    assert "warning" not in levels(doctor._variables())
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_FD", "9")
    pmi = {each.level: each.text for each in doctor._variables() if "PMI" in each.text}
    assert pmi["warning"].startswith("MPICH is set in part (PMI_RANK, not PMI_SIZE)")
    assert pmi["ok"] == "also set by MPI: PMI_FD"


@pytest.mark.parametrize(
    ("needs", "level"),
    [
        ("pytest>=1", "ok"),
        ("pytest<1", "error"),
        ("no-such>=1", "error"),
        ("no-such; extra == 'a'", ""),
    ],
)
def test_what_jaxnb_needs_is_compared(
    monkeypatch: pytest.MonkeyPatch, needs: str, level: str
) -> None:
    monkeypatch.setattr(doctor, "requires", lambda name: [needs])
    found = [*doctor._requirements()]
    assert levels(found) == [level] * bool(level)
    assert [each.fix for each in found] == [
        f"pip install --upgrade '{needs}'" if level == "error" else ""
    ] * bool(level)


def test_ports_that_cannot_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert doctor._free_ports().level == "ok"
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")), hard))
    try:
        found = doctor._free_ports()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.level == "error"
    assert found.text.startswith("ports were not tried: ")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert doctor._more_files().startswith("sudo prlimit --nofile=")


def test_a_platform_that_no_group_can_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "visible_gpus", lambda: ())
    monkeypatch.setenv("JAX_PLATFORMS", "cuda")
    found = [each for each in doctor._variables() if "JAX_PLATFORMS" in each.text]
    assert levels(found) == ["error"]
    assert "JAX_PLATFORMS=cuda asks for one. Nothing was started" in found[0].text


def test_few_processes_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = {"/sys/fs/cgroup/pids.max": "100", "/sys/fs/cgroup/pids.current": "90"}
    monkeypatch.setattr(doctor, "_read", numbers.__getitem__)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    assert doctor._tasks().text == "10 more processes and threads may be started"
    assert doctor._tasks().level == "warning"


def test_a_proxy_in_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://proxy:1")
    monkeypatch.setenv("no_proxy", "example.org")
    assert levels(doctor._proxies()) == ["warning"]
    monkeypatch.setenv("no_proxy", "example.org,localhost")
    assert levels(doctor._proxies()) == ["ok"]


@pytest.mark.parametrize(("jaxlib", "level"), [("0.11.4", "ok"), ("0.10.9", "error")])
def test_versions_that_do_not_go_together(
    monkeypatch: pytest.MonkeyPatch, jaxlib: str, level: str
) -> None:
    monkeypatch.setattr(doctor, "version", {"jax": "0.11.4", "jaxlib": jaxlib}.__getitem__)
    first = next(iter(doctor._packages()))
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
