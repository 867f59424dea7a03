"""Starts that fail: the reason is told, and nothing is left running."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

import jaxnb
from jaxnb.errors import StartError
from jaxnb.launch.forkclient import ForkServerClient
from support.fixtures import processes_of_tests, still_running

thorough = pytest.mark.thorough


@pytest.mark.parametrize("launcher", ["fork", pytest.param("local", marks=thorough)])
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


def command_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline())
    return ""


@pytest.mark.parametrize("helper", [pytest.param("controller", marks=thorough), "service"])
def test_a_helper_that_is_killed_while_the_group_joins(helper: str) -> None:
    before = set(processes_of_tests())

    def kill_helper(stage: str, detail: str) -> None:
        if stage == "joining":
            new = [p for pid, p in processes_of_tests().items() if pid not in before]
            servers = [p.children() for p in new if "forkserver" in command_of(p)]
            # One for the next group may have been started meanwhile.
            children = sorted(max(servers, key=len), key=lambda p: p.pid)
            os.kill(children[["controller", "service"].index(helper)].pid, signal.SIGKILL)

    with pytest.raises(StartError, match="was killed by SIGKILL while the group was starting"):
        jaxnb.start(3, platform="cpu", launcher="fork", progress=kill_helper)


INTERRUPTED_START = """
import gc, sys, jaxnb
from jaxnb.session import starting
launcher, where = sys.argv[1:]

def interrupt(stage, detail=""):
    if stage == where:
        raise KeyboardInterrupt

wait = starting.Starter._await
def wait_for(self, future, what):
    interrupt(what)
    return wait(self, future, what)
starting.Starter._await = wait_for

try:
    jaxnb.start(2, platform="cpu", launcher=launcher, progress=interrupt)
except KeyboardInterrupt:
    gc.collect()  # asyncio tells of a lost task when it is collected
    print("interrupted")
"""


@pytest.mark.parametrize(
    ("launcher", "where"),
    [
        ("fork", "joining"),
        pytest.param("local", "launching", marks=thorough),
        *(
            pytest.param("fork", where, marks=thorough)
            for where in ("starting", "the ipyparallel controller", "checking")
        ),
    ],
)
def test_an_interrupt_during_the_start_leaves_nothing(launcher: str, where: str) -> None:
    before = set(processes_of_tests())
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_START, launcher, where],
        capture_output=True,
        text=True,
        check=True,
    )
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")
    left = [p for pid, p in processes_of_tests().items() if pid not in before]
    assert still_running(left) == []


STEPS = [
    (ForkServerClient, "request"),
    (ForkServerClient, "close"),
    (subprocess.Popen, "wait"),
    (shutil, "rmtree"),
]


@pytest.mark.thorough
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_close_that_is_interrupted_can_be_repeated(
    moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with jaxnb.start(2, platform="cpu") as session:
        group = session._life.cluster
        pids = {p.pid for p in session.processes} | set(session.helper_pids().values())
        main = threading.get_ident()
        interrupts = []
        for owner, name in STEPS:
            call = getattr(owner, name)

            def step(*args: Any, call: Any = call, seen: list[int] = [], **settings: Any) -> Any:  # noqa: B006
                first = threading.get_ident() == main and not seen
                if first:
                    seen.append(1)
                    interrupts.append(call)
                if first and moment == "before":
                    raise KeyboardInterrupt
                answer = call(*args, **settings)
                if first:
                    raise KeyboardInterrupt
                return answer

            monkeypatch.setattr(owner, name, step)
        while True:
            told = len(interrupts)
            try:
                group.close()
            except KeyboardInterrupt:
                assert len(interrupts) > told
            else:
                break
        monkeypatch.undo()
        assert len(interrupts) >= 4
        assert not any(psutil.pid_exists(pid) for pid in pids)
        group.close()


def test_a_restart_that_fails_closes_the_session(monkeypatch: pytest.MonkeyPatch) -> None:
    with jaxnb.start(2, platform="cpu") as session:
        pids = [p.pid for p in session.processes]
        monkeypatch.setenv("XLA_FLAGS", "--xla_there_is_no_such_flag=1")
        with pytest.raises(StartError, match="xla_there_is_no_such_flag"):
            session.restart()
        assert session.state == "closed"
        assert not any(psutil.pid_exists(pid) for pid in pids)
