"""``jaxnb clean`` finds what a crash has left, and nothing of a group that lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import jaxnb
from jaxnb.cli import clean
from jaxnb_fixtures import until


@pytest.fixture
def left_behind(tmp_path: Path) -> Path:
    """The folder of a group whose owner and fork server were killed at once, long ago."""
    folder = tmp_path / "jaxnb-left"
    (folder / "log").mkdir(parents=True)
    folder.chmod(0o700)
    os.utime(folder, (0, 0))
    return folder


def test_only_what_has_no_owner_is_removed(left_behind: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", ""])
    owner.wait()
    program = "import sys, time; print(flush=True); time.sleep(1000)"
    words = [sys.executable, "-c", program, "jaxnb.launch.forkserver"]
    living = left_behind.with_name("jaxnb-living")
    living.mkdir(mode=0o700)
    os.utime(living, (0, 0))
    others = left_behind.with_name("jaxnb-open")  # not ours: others could have made it
    others.mkdir()
    others.chmod(0o755)
    mine = left_behind.with_name("jaxnb-mine")
    mine.mkdir(mode=0o700)
    (mine / "thesis.txt").touch()  # jaxnb writes no such file
    os.utime(mine, (0, 0))
    with (
        subprocess.Popen([*words, str(owner.pid), str(left_behind)], stdout=-1) as orphan,
        subprocess.Popen([*words, str(os.getpid()), str(living)], stdout=-1) as child,
    ):
        for each in (orphan, child):
            assert each.stdout is not None
            each.stdout.readline()
        left = clean.find([str(left_behind.parent)])
        assert [each.pid for each in left.processes] == [orphan.pid]
        assert left.folders == (left_behind,)
        assert clean.clean(yes=False, dry_run=True, places=[str(left_behind.parent)]) == 0
        assert left_behind.exists()
        assert clean.clean(yes=True, dry_run=False, places=[str(left_behind.parent)]) == 0
        assert not psutil.pid_exists(orphan.pid)
        assert child.poll() is None
        child.kill()
    assert not left_behind.exists()
    assert living.exists()
    assert mine.exists()


def test_variables_and_young_folders_are_kept(
    left_behind: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests' groups may be using any variables.
    monkeypatch.setattr(clean, "_group_of", lambda process: None)
    (left_behind / "log").rmdir()
    (left_behind / "variables.json").write_text("{}")
    os.utime(left_behind, (0, 0))
    young = left_behind.with_name("jaxnb-young")
    young.mkdir(mode=0o700)
    (young / "log").mkdir()
    left = clean.find([str(left_behind.parent)])
    assert left.folders == (left_behind,)
    assert "variables" in left.lines()[0]
    assert [line.partition(":")[0] for line in left.kept] == [str(young)]


def test_variables_are_kept_for_groups_with_their_folders_elsewhere(left_behind: Path) -> None:
    (left_behind / "log").rmdir()
    (left_behind / "process-00000").touch()
    os.utime(left_behind, (0, 0))
    program = "import time; print(flush=True); time.sleep(1000)"
    words = [sys.executable, "-c", program, "jaxnb.launch.forkserver"]
    with subprocess.Popen([*words, str(os.getpid()), "/other/jaxnb-one"], stdout=-1) as child:
        assert child.stdout is not None
        child.stdout.readline()
        left = clean.find([str(left_behind.parent)])
        child.kill()
    assert left.folders == ()
    assert "a group that lives may be using" in left.kept[0]


@pytest.mark.thorough
def test_a_living_group_is_not_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "YOUNG_SECONDS", 0.0)
    for launcher in ("fork", "local"):
        with jaxnb.start(1, platform="cpu", launcher=launcher) as session:
            folder = Path(session._life.cluster.directory)
            left = clean.find([str(folder.parent)])
            assert folder not in left.folders
            assert left.processes == ()


@pytest.mark.thorough
def test_the_folder_of_a_killed_group_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clean, "YOUNG_SECONDS", 0.0)
    program = (
        "import jaxnb, sys; s = jaxnb.start(1, platform='cpu'); "
        "print(s._life.cluster.directory, s.helper_pids()['fork server'], flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        folder, server = owner.stdout.readline().split()
        owner.send_signal(signal.SIGSTOP)  # it would report the death of its server
        os.kill(int(server), signal.SIGKILL)
        owner.kill()
    until(lambda: not psutil.pid_exists(int(server)))
    left = clean.find([str(Path(folder).parent)])
    assert Path(folder) in left.folders
    clean.remove(left)
    assert not Path(folder).exists()
