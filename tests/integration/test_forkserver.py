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
from jaxnb.errors import JaxnbError, NotEnoughMemoryError
from jaxnb.launch.cluster import ProcessGroup
from jaxnb.launch.folder import owner_lives
from jaxnb.options import StartOptions
from jaxnb.recovery.files import MANIFEST
from jaxnb.recovery.scratch import Scratch, scratch
from jaxnb.session import Session
from support.fixtures import until

Start = Callable[[], ProcessGroup]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts fork servers, of which each has no process yet."""
    started: list[ProcessGroup] = []

    def start_one() -> ProcessGroup:
        started.append(
            ProcessGroup(StartOptions(launcher="local"), lambda _: None, lambda *_: None)
        )
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


# ---------------------------------------------------------------------- variables on their way


def test_scratch_is_of_this_user_and_one_at_a_time(start: Start) -> None:
    group = start()
    folders = group.make_scratch({0: 1000, 1: 2000})
    (folder,) = {*folders.values()}
    assert [*folders] == [0, 1]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert owner_lives(folder)
    assert (folder / "owner").read_text().split()[0] == str(os.getpid())
    (other,) = {*group.make_scratch({0: 1}).values()}
    assert not folder.exists()
    assert other.exists()
    group.end_scratch(keeps=True)  # it is not complete
    assert not other.exists()


def test_scratch_that_is_not_complete_ends_with_the_group(start: Start) -> None:
    group = start()
    folder = group.make_scratch({0: 1})[0]
    (folder / "process-00000").touch()
    group.close()
    assert not folder.exists()


@pytest.mark.parametrize("end", ["close", "SIGTERM"])
def test_complete_scratch_outlives_the_group(start: Start, end: str) -> None:
    """Who knows where it is lives on; a group after this one may hold it, and remove it."""
    group = start()
    folders = group.make_scratch({0: 1})
    group.complete_scratch("last", "all are there")
    if end == "close":
        group.close()
    else:
        server = psutil.Process(group.helper_pids()["fork server"])
        server.terminate()
        until(lambda: not server.is_running(), "the fork server had ended")
    assert (folders[0] / "last").read_text() == "all are there"
    another = start()
    another.hold_scratch(folders)
    assert folders[0].exists()
    another.end_scratch(keeps=False)
    assert not folders[0].exists()


def test_scratch_that_is_kept_is_removed_by_nobody(start: Start) -> None:
    group = start()
    folder = group.make_scratch({0: 1})[0]
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
    folder = group.make_scratch({0: 1})[0]
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
        return made.first, getattr(error, "__notes__", [])


def test_scratch_is_kept_only_with_whole_variables(start: Start) -> None:
    group = start()
    folder, notes = fail(group, lambda made: (made.first / "process-00000").touch())
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
        assert made.first.exists()

    folder, _ = fail(group, kill)
    assert not folder.exists()


# ---------------------------------------------------------------------- several hosts


@pytest.fixture
def folders(start: Start, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Has two processes carry their variables in a folder each, as if each had a host of its own.

    Returns:
        The folders of a recovery, once there is one.
    """
    hosts = start(), start()
    original = {name: getattr(ProcessGroup, name) for name in vars(ProcessGroup) if "_scr" in name}
    made: list[Path] = []

    def make(_: ProcessGroup, sizes: dict[int, int]) -> dict[int, Path]:
        made[:] = [original["make_scratch"](hosts[i], {i: n})[i] for i, n in sizes.items()]
        return dict(enumerate(made))

    def hold(_: ProcessGroup, held: dict[int, Path]) -> None:
        for i, folder in held.items():
            original["hold_scratch"](hosts[i], {i: folder})

    def on_both(name: str) -> Callable[..., None]:
        def call(_: ProcessGroup, *arguments: object, **options: object) -> None:
            for each in hosts:
                original[name](each, *arguments, **options)

        return call

    monkeypatch.setattr(ProcessGroup, "make_scratch", make)
    monkeypatch.setattr(ProcessGroup, "hold_scratch", hold)
    for name in ("complete_scratch", "end_scratch"):
        monkeypatch.setattr(ProcessGroup, name, on_both(name))
    return made


MAKE = """
own = np.full(1000, process_index)
mesh = jax.make_mesh((2,), ("d",))
x = jax.device_put(jnp.arange(2000.0), NamedSharding(mesh, P("d")))
"""
CHECK = "assert (own == process_index).all() and float(x.sum()) == 1999000"


def test_each_process_carries_its_variables_on_its_host(
    make_session: Callable[..., Session], folders: list[Path]
) -> None:
    session = make_session(2)
    session.run(MAKE)
    assert session.recover().lost == ()
    session.run(CHECK)
    assert len({*folders}) == 2
    assert not any(map(Path.exists, folders))
    os.kill(session.processes[0].pid, signal.SIGKILL)
    until(lambda: session.deaths, "the death was known")
    assert {each.path for each in session.recover().lost} == {"own", "x"}
    assert session.run("own[0]", ranks=[1]).per_process[1].value == 1
    assert not any(map(Path.exists, folders))


def test_variables_of_several_hosts_are_loaded_from_the_first(
    make_session: Callable[..., Session], folders: list[Path]
) -> None:
    session = make_session(2)
    session.run(MAKE)

    def fail(stage: str, detail: str) -> None:
        if stage == "joining":
            raise Full

    with pytest.raises(Full) as caught:
        session.recover(fail)
    assert f"The variables are in {folders[0]}:" in caught.value.__notes__[0]
    again = make_session(2)
    folders[1].joinpath("process-00001").chmod(0o606)
    with pytest.raises(JaxnbError, match=r"Process 1 found that .* can be written by"):
        again.load(folders[0])
    folders[1].joinpath("process-00001").chmod(0o600)
    again.load(folders[0])
    again.run(CHECK)
    for folder in folders:
        shutil.rmtree(folder)
