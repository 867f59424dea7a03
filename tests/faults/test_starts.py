"""Starts that fail: the reason is told, and nothing is left running."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

import jaxnb
from jaxnb.errors import StartError
from jaxnb_fixtures import assert_usable, processes_of_tests

LAUNCHERS = ["fork", "local"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_jax_that_cannot_be_imported(
    launcher: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "jax"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('this jax is broken on purpose')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(StartError) as caught:
        jaxnb.start(2, platform="cpu", launcher=launcher)
    assert "ImportError: this jax is broken on purpose" in str(caught.value)
    assert "Everything that had started has been stopped" in str(caught.value)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_process_that_dies_while_it_joins_shows_its_last_lines(
    launcher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_there_is_no_such_flag=1")  # XLA aborts on it
    with pytest.raises(StartError) as caught:
        jaxnb.start(3, platform="cpu", launcher=launcher)
    message = str(caught.value)
    assert "of 3 (pid" in message
    assert "while the group was starting" in message
    assert "xla_there_is_no_such_flag" in message


@pytest.mark.parametrize("which", [0, 2])
def test_a_process_that_is_killed_while_the_group_joins(which: int) -> None:
    before = set(processes_of_tests())

    def kill_one(stage: str, detail: str) -> None:
        if stage == "joining":
            new = [p for pid, p in processes_of_tests().items() if pid not in before]
            server = next(p for p in new if "forkserver" in " ".join(p.cmdline()))
            # Forked in this order: controller, service, processes.
            processes = sorted(server.children(), key=lambda p: p.pid)[-3:]
            os.kill(processes[which].pid, signal.SIGKILL)

    with pytest.raises(StartError, match=rf"Process {which} of 3 .* was killed by SIGKILL"):
        jaxnb.start(3, platform="cpu", launcher="fork", progress=kill_one)


@pytest.mark.parametrize("helper", ["controller", "service"])
def test_a_helper_that_is_killed_while_the_group_joins(helper: str) -> None:
    before = set(processes_of_tests())

    def kill_helper(stage: str, detail: str) -> None:
        if stage == "joining":
            new = [p for pid, p in processes_of_tests().items() if pid not in before]
            server = next(p for p in new if "forkserver" in " ".join(p.cmdline()))
            children = sorted(server.children(), key=lambda p: p.pid)
            os.kill(children[["controller", "service"].index(helper)].pid, signal.SIGKILL)

    with pytest.raises(StartError, match="was killed by SIGKILL while the group was starting"):
        jaxnb.start(3, platform="cpu", launcher="fork", progress=kill_helper)


def test_a_start_that_takes_too_long() -> None:
    with pytest.raises(StartError, match=r"within 0\.001 s"):
        jaxnb.start(2, platform="cpu", timeout=0.001)


def test_an_interrupt_during_the_start_leaves_nothing() -> None:
    def interrupt(stage: str, detail: str) -> None:
        if stage == "joining":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        jaxnb.start(2, platform="cpu", progress=interrupt)


def test_a_restart_that_fails_closes_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with jaxnb.start(2, platform="cpu") as session:
        pids = [p.pid for p in session.processes]
        monkeypatch.setenv("XLA_FLAGS", "--xla_there_is_no_such_flag=1")
        with pytest.raises(StartError, match="xla_there_is_no_such_flag"):
            session.restart()
        assert session.state == "closed"
        assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_restart_sees_variables_that_jax_reads_when_it_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with jaxnb.start(2, platform="cpu") as session:
        assert session.run("jax.config.jax_enable_x64").value is False
        monkeypatch.setenv("JAX_ENABLE_X64", "1")
        session.restart()
        assert session.run("jax.config.jax_enable_x64").value is True
        assert_usable(session)
