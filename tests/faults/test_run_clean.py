"""``jaxnb clean`` finds what a crash has left, and nothing of a group that lives."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import jaxnb
from jaxnb.cli import doctor
from jaxnb.launch.folder import mark
from jaxnb.recovery.files import MANIFEST

MAKE = """
import sys
from jaxnb.launch.folder import mark
for folder in sys.argv[1:]:
    mark(folder)
"""


def made_and_left(*folders: Path) -> None:
    """Marks folders in a process that has ended since."""
    subprocess.run([sys.executable, "-c", MAKE, *map(str, folders)], check=True, timeout=60)


@pytest.fixture
def left_behind(tmp_path: Path) -> Path:
    """The folder of a group whose owner and fork server were killed at once."""
    folder = tmp_path / "jaxnb-left"
    (folder / "log").mkdir(parents=True)
    folder.chmod(0o700)
    made_and_left(folder)
    return folder


def test_only_what_has_no_owner_is_removed(left_behind: Path) -> None:
    owner = subprocess.Popen([sys.executable, "-c", ""])
    owner.wait()
    program = "import sys, time; print(flush=True); time.sleep(1000)"
    words = [sys.executable, "-c", program, "jaxnb.launch.forkserver"]
    living = left_behind.with_name("jaxnb-living")
    living.mkdir(mode=0o700)
    mark(str(living))
    others = left_behind.with_name("jaxnb-open")  # not ours: others could have made it
    others.mkdir()
    made_and_left(others)
    others.chmod(0o755)
    with (
        subprocess.Popen([*words, str(owner.pid), str(left_behind)], stdout=-1) as orphan,
        subprocess.Popen([*words, str(os.getpid()), str(living)], stdout=-1) as child,
    ):
        try:
            for each in (orphan, child):
                assert each.stdout is not None
                each.stdout.readline()
            left = doctor.find([str(left_behind.parent)])
            assert [each.pid for each in left.processes] == [orphan.pid]
            assert left.folders == (left_behind,)
            assert doctor.clean(yes=False, dry_run=True, places=[str(left_behind.parent)]) == 0
            assert left_behind.exists()
            assert doctor.clean(yes=True, dry_run=False, places=[str(left_behind.parent)]) == 0
            assert not psutil.pid_exists(orphan.pid)
            assert child.poll() is None
        finally:
            orphan.kill()
            child.kill()
    assert not left_behind.exists()
    assert living.exists()
    assert others.exists()


def test_what_a_user_has_named_so_is_never_touched(tmp_path: Path) -> None:
    """By `%spmd_save /var/tmp/jaxnb-saved`, say: the files have the same names."""
    saved, like_a_group = tmp_path / "jaxnb-saved", tmp_path / "jaxnb-mine"
    for each, file in ((saved, MANIFEST), (saved, "process-00000"), (like_a_group, "log")):
        each.mkdir(mode=0o700, exist_ok=True)
        (each / file).touch()
        os.utime(each, (0, 0))
    assert doctor.find([str(tmp_path)]).folders == ()


def test_variables_on_their_way_are_left_once_their_owner_has_ended(tmp_path: Path) -> None:
    """But not the copy of them that a user has made."""
    program = (
        "import os, sys\nfrom jaxnb.launch import scratch\n"
        "scratch._with_room = lambda *_: scratch.Path(sys.argv[1])\n"
        "made = scratch.Scratch(os.getpid())\nfolder, _ = made.make(1, 'jaxnb-made')\n"
        f"made.complete({MANIFEST!r}, ''); print(folder, flush=True); input()"
    )
    words = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(words, stdin=-1, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        before = doctor.find([str(tmp_path)])
        owner.kill()
    assert before.folders == ()
    copy = folder.with_name("jaxnb-copy")
    shutil.copytree(folder, copy)
    left = doctor.find([str(tmp_path)])
    assert left.folders == (folder,)
    assert f"`%spmd_load {folder}` binds them" in left.lines()[0]


@pytest.mark.thorough
def test_a_living_group_is_not_found() -> None:
    for launcher in ("fork", "local"):
        with jaxnb.start(1, platform="cpu", launcher=launcher) as session:
            folder = Path(session._life.cluster.directory)
            left = doctor.find([str(folder.parent)])
            assert folder not in left.folders
            assert left.processes == ()
