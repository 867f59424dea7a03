"""What a host's fork server says of the host and its processes, and its folder for variables."""

from __future__ import annotations

import os
import platform
import shutil
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path

import psutil
import pytest

import jaxnb
from jaxnb.errors import NotEnoughMemoryError
from jaxnb.launch.cluster import ProcessGroup
from jaxnb.launch.folder import owner_lives
from jaxnb.options import StartOptions
from jaxnb.recovery.files import MANIFEST
from jaxnb.recovery.scratch import Scratch, scratch
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS, until

Start = Callable[[], ProcessGroup]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts fork servers, of which each has no process yet."""
    started: list[ProcessGroup] = []

    def start_one() -> ProcessGroup:
        started.append(ProcessGroup(StartOptions(launcher="local"), *[lambda *_: None] * 3))
        return started[-1]

    yield start_one
    for each in started:
        each.close()


# ---------------------------------------------------------------------- facts


def test_one_answer_has_all_facts(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, asked = tmp_path / "nvidia-smi", tmp_path / "asked"
    program.write_text(f"#!/bin/sh\necho asked >> {asked}\nprintf '0\\n1\\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    group = start()
    (facts,) = group.facts(gpus=False)
    assert not asked.exists()
    assert (facts.host, facts.folder) == (socket.gethostname(), group.directory)
    assert facts.directory == os.getcwd()
    versions = platform.python_version(), metadata.version("jax"), jaxnb.__version__
    assert (facts.python, facts.jax, facts.jaxnb) == versions
    assert facts.cores == os.cpu_count()
    assert 0 < facts.available_bytes <= psutil.virtual_memory().total
    assert facts.gpus == ()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    (facts,) = group.facts(gpus=True)
    assert facts.gpus == ("1",)
    assert asked.read_text() == "asked\n"


# ---------------------------------------------------------------------- look


def test_a_look_tells_states_and_processor_time_by_process_index(session: Session) -> None:
    group, everyone = session._life.cluster, range(session.num_processes)
    looks = group.look()
    assert [*looks] == [*everyone]
    session.run("import time\nt = time.process_time()\nwhile time.process_time() < t + 0.1: pass")
    assert all(0 < looks[i].cpu_seconds < group.look()[i].cpu_seconds for i in everyone)
    pid = session.processes[1].pid
    group.signal([1], signal.SIGSTOP)
    until(lambda: group.look()[1].state == "stopped", "process 1 was stopped")
    try:
        assert group.stopped(everyone) == {1: pid}
        assert group.stopped([0, 2]) == {}
    finally:
        group.signal([1], signal.SIGCONT)
    until(lambda: group.stopped(everyone) == {}, "process 1 went on")


@pytest.mark.parametrize("helper", ["controller", "service"])
def test_what_serves_the_group_goes_on_if_it_is_stopped(session: Session, helper: str) -> None:
    os.kill(session.helper_pids()[helper], signal.SIGSTOP)
    session.run("import jax.experimental.multihost_utils as mh")
    assert session.run("len(mh.process_allgather(1))", timeout=PATIENT_SECONDS).value > 1


def test_a_fork_server_that_is_stopped_goes_on_with_the_next_command(session: Session) -> None:
    pid = session.helper_pids()["fork server"]
    os.kill(pid, signal.SIGSTOP)
    until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "it is stopped")
    until(session._life.cluster.look, "it has answered")


# ---------------------------------------------------------------------- variables on their way


def test_sockets_are_removed_with_the_process_that_listened(session: Session) -> None:
    session.restart()
    found = [path for path in Path(session._life.cluster.directory).iterdir() if path.is_socket()]
    living = {session.helper_pids()["service"], *(each.pid for each in session.processes)}
    assert {int(path.name.rpartition("-")[2]) for path in found if "-" in path.name} == living


def test_scratch_is_of_this_user_and_one_at_a_time(start: Start) -> None:
    group = start()
    folder = group.make_scratch({0: 1000, 1: 2000})
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert owner_lives(folder)
    assert (folder / "owner").read_text().split()[0] == str(os.getpid())
    other = group.make_scratch({0: 1})
    assert not folder.exists()
    assert other.exists()
    group.end_scratch(keeps=True)  # it is not complete
    assert not other.exists()


def test_scratch_that_is_not_complete_ends_with_the_group(start: Start) -> None:
    group = start()
    folder = group.make_scratch({0: 1})
    (folder / "process-00000").touch()
    group.close()
    assert not folder.exists()


@pytest.mark.parametrize("end", ["close", "SIGTERM"])
def test_complete_scratch_outlives_the_group(start: Start, end: str) -> None:
    """Who knows where it is lives on; a group after this one may hold it, and remove it."""
    group = start()
    folder = group.make_scratch({0: 1})
    group.complete_scratch("last", "all are there")
    if end == "close":
        group.close()
    else:
        server = psutil.Process(group.helper_pids()["fork server"])
        server.terminate()
        until(lambda: not server.is_running(), "the fork server had ended")
    assert (folder / "last").read_text() == "all are there"
    another = start()
    another.hold_scratch(folder, {})
    assert folder.exists()
    another.end_scratch(keeps=False)
    assert not folder.exists()


def test_scratch_that_is_kept_is_removed_by_nobody(start: Start) -> None:
    group = start()
    folder = group.make_scratch({0: 1})
    group.complete_scratch("last", "")
    group.end_scratch(keeps=True)
    group.make_scratch({0: 1})
    group.close()
    assert folder.exists()
    shutil.rmtree(folder)


def test_scratch_without_room_is_refused(start: Start) -> None:
    group = start()
    with pytest.raises(NotEnoughMemoryError, match=r"take 4096 PiB, and there is no room .* Noth"):
        group.make_scratch({0: 1 << 61, 1: 1 << 61})
    folder = group.make_scratch({0: 1})
    shutil.rmtree(folder)
    with pytest.raises(NotEnoughMemoryError, match=rf"to {folder} \(No such file .* Nothing"):
        group.complete_scratch("last", "")


class Full(Exception):
    """The disk is full."""


def fail(group: ProcessGroup, begin: Callable[[Scratch], object]) -> tuple[Path, list[str]]:
    """Fails amid a recovery, after its beginning; returns the folder, and the error's notes."""
    try:
        with scratch(lambda: group, {0: 1}) as made:
            begin(made)
            raise Full
    except Full as error:
        return made.folder, getattr(error, "__notes__", [])


def test_scratch_is_kept_only_with_whole_variables(start: Start) -> None:
    group = start()
    folder, notes = fail(group, lambda made: (made.folder / "process-00000").touch())
    assert notes == []
    assert not folder.exists()
    folder, notes = fail(group, lambda made: made.complete("all are there"))
    assert f"`%spmd_load {folder}` binds them" in notes[0]
    assert (folder / MANIFEST).read_text() == "all are there"
    shutil.rmtree(folder)


def test_scratch_goes_though_the_fork_server_was_killed(start: Start) -> None:
    group = start()

    def kill(made: Scratch) -> None:
        server = psutil.Process(group.helper_pids()["fork server"])
        server.kill()
        until(lambda: not server.is_running(), "the fork server had ended")
        assert made.folder.exists()

    folder, _ = fail(group, kill)
    assert not folder.exists()
