"""Profiles of all processes of a cell."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError, CellTimeoutError, ProcessDiedError, UsageError
from jaxnb.session import Session
from support.fixtures import assert_usable
from support.hosts import Hosts
from support.remote import Program


class Said(NoSink):
    """Keeps jaxnb's sentences."""

    def __init__(self) -> None:
        self.text = ""

    def notice(self, text: str) -> None:
        """Keeps one."""
        self.text += f"{text}\n"


def profiled(folder: Path) -> tuple[list[str], dict[str, int], list[dict[str, Any]]]:
    """Returns the names of a cell's files, its processes by name, and its events."""
    with gzip.open(folder / "trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    names = {e["args"]["name"]: e["pid"] for e in events if e["name"] == "process_name"}
    return sorted(each.name for each in folder.glob("*.pb")), names, events


def test_one_trace_has_all_processes(session: Session, tmp_path: Path) -> None:
    host, said = os.uname().nodename, Said()
    result = session.run(
        "import time\ndef work(): time.sleep(0.01)\nwork()", profile=str(tmp_path), sink=said
    )
    folder = Path(result.profile)
    assert folder.parent == tmp_path / "plugins" / "profile"
    files, names, events = profiled(folder)
    assert files == [f"process_{i}_{host}.xplane.pb" for i in range(4)]
    assert sorted(names) == [f"process {i} ({host})" for i in range(4)]
    # All have run it at one time, counted from the same.
    works = {e["pid"]: e for e in events if e["name"].endswith(" work")}
    assert sorted(works) == sorted(names.values())
    assert all(e["dur"] > 9e3 and 0 < e["ts"] < 60e6 for e in works.values())
    assert f"`xprof --logdir {tmp_path}`" in said.text
    with pytest.raises(CellError, match="ZeroDivisionError"):
        session.run("1 / 0", profile=str(tmp_path), ranks=[1, 2])
    newest = max(folder.parent.iterdir())
    assert profiled(newest)[0] == [f"process_{i}_{host}.xplane.pb" for i in (1, 2)]


def test_what_keeps_a_cell_from_being_profiled(session: Session, tmp_path: Path) -> None:
    said, file = Said(), tmp_path / "file"
    file.touch()
    with pytest.raises(UsageError, match=r"No profile can be written .*\. Nothing was run\."):
        session.run("print(1)", profile=str(file))
    session.run(f"jax.profiler.start_trace({str(tmp_path / 'own')!r})\nNone")
    try:
        result = session.run("process_index", profile=str(tmp_path / "p"), sink=said)
        assert result.value == {0: 0, 1: 1, 2: 2, 3: 3}
        assert "There is no profile. Without processes 0-3: Profile has already" in said.text
        assert not Path(result.profile).exists()
    finally:
        session.run("jax.profiler.stop_trace()\nNone")
    # The cell's own code ends the profile, which is there up to then.
    result = session.run("jax.profiler.stop_trace()\nNone", profile=str(tmp_path / "p"))
    assert len(profiled(Path(result.profile))[0]) == 4


@pytest.mark.thorough
def test_a_full_folder(session: Session, tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can mount a file system")
    small, said = tmp_path / "small", Said()
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", small], check=True)
    try:
        session.run("jnp.ones(3) + 1", profile=str(small), sink=said)
        assert "The profile was not written: No space left on device" in said.text
        assert not list(small.rglob("*_cell_*"))
    finally:
        subprocess.run(["umount", small], check=True)
    assert_usable(session)


@pytest.mark.thorough
def test_interrupts_and_deaths(make_session: Callable[..., Session], tmp_path: Path) -> None:
    session, said = make_session(2), Said()
    # More than it takes a second to write: who writes its profile is not given up.
    calls = "def f(n): return n if n < 2 else f(n - 1) + f(n - 2)\nwhile True: f(15)"
    with pytest.raises(CellTimeoutError, match="The group is ready"):
        session.run(calls, timeout=4, profile=str(tmp_path))
    folder = tmp_path / "plugins" / "profile"
    assert len(profiled(max(folder.iterdir()))[0]) == session.num_processes
    with pytest.raises(ProcessDiedError):
        session.run(
            "import os\nif process_index == 1: os.kill(os.getpid(), 9)\njnp.ones(3).sum()",
            profile=str(tmp_path),
            sink=said,
        )
    assert "Without process 1: it has died." in said.text
    assert len(profiled(max(folder.iterdir()))[0]) == session.num_processes - 1
    session.recover()
    assert_usable(session)


@pytest.mark.thorough
@pytest.mark.may_be_skipped
def test_files_come_from_other_hosts(hosts: Hosts) -> None:
    program = Program(hosts.a)
    program.do("session = jaxnb.start(2, hosts='hostA,hostB', platform='cpu')")
    program.do("profile = session.run('1 + 1', profile='/tmp/prof').profile")
    found = program.do("__import__('os').listdir(profile)")
    assert sorted(found) == [
        "process_0_hostA.xplane.pb",
        "process_1_hostB.xplane.pb",
        "trace.json.gz",
    ]
    program.do("__import__('shutil').rmtree('/tmp/prof')")
    program.do("session.close()")
    program.close()
