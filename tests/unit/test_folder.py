"""Folders of a group and of compiled programs: no other user reaches them."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jaxnb.cli.doctor import clean
from jaxnb.errors import StartError, UsageError
from jaxnb.launch import folder
from jaxnb.launch.folder import default_folder, entries, programs_folder, trim

MakeBase = Callable[[str], Path]


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeBase]:
    """Makes a folder that is the temporary one from then on."""
    made = tempfile.mkdtemp(dir="/tmp")

    def make(name: str) -> Path:
        path = Path(made, name)
        path.mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(tempfile, "tempdir", str(path))
        return path

    yield make
    shutil.rmtree(made)


def made_in(path: str) -> str:
    """The parent of a folder, which is removed."""
    made = Path(path)
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert os.listdir(path) == [folder.OWNER]
    with socket.socket(socket.AF_UNIX) as trial:
        trial.bind(str(made / ("x" * folder.LONGEST_NAME)))
    shutil.rmtree(path)
    return str(made.parent)


@pytest.mark.parametrize("name", ["plain", "with a space: ü%20#?"])
def test_it_is_in_the_temporary_folder(base: MakeBase, name: str) -> None:
    parent = str(base(name))
    assert made_in(folder.make_folder()) == parent


def test_a_long_path_is_passed_by(base: MakeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = base("runtime")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    long = base("x" * 90)
    assert made_in(folder.make_folder()) == str(runtime)
    assert not list(long.iterdir())
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(long))
    assert made_in(folder.make_folder()) == "/tmp"


def test_a_name_that_is_no_text_is_passed_by(base: MakeBase) -> None:
    base("\udcff")
    assert made_in(folder.make_folder()) == "/tmp"


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_folder_in_which_others_rename_is_passed_by(base: MakeBase, mode: int) -> None:
    """Another could put a folder of hers in the place of the group's."""
    shared = base("shared")
    base("shared/mine")
    shared.chmod(mode)
    assert made_in(folder.make_folder()) == "/tmp"
    shared.chmod(mode | stat.S_ISVTX)
    assert made_in(folder.make_folder()) == str(shared / "mine")


def test_where_none_will_do_it_says_why(base: MakeBase, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = base("shared")
    shared.chmod(0o777)
    monkeypatch.setattr(folder, "_FALLBACKS", (str(base("x" * 90)), str(shared / "missing")))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    base("shared")
    with pytest.raises(StartError) as caught:
        folder.make_folder()
    message = str(caught.value)
    assert "Nothing was started. Set the environment variable TMPDIR" in message
    assert f"other users may rename files in {shared} (drwxrwxrwx, no sticky bit)" in message
    assert "path too long" in message
    assert "No such file" in message


def test_owners_that_a_container_does_not_map_are_nobody_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not folder._is_of_nobody_here(0)
    texts = {
        "/proc/sys/kernel/overflowuid": "65534\n",
        "/proc/self/uid_map": "         0       1000          1\n",
    }
    monkeypatch.setattr(Path, "read_text", lambda path: texts[str(path)])
    assert folder._is_of_nobody_here(65534)
    assert not folder._is_of_nobody_here(1)


@pytest.mark.parametrize("part", [0, 1], ids=["host", "container"])
def test_nobody_knows_whether_the_owner_elsewhere_lives(tmp_path: Path, part: int) -> None:
    folder.mark(tmp_path)
    assert folder.owner_lives(tmp_path) is True
    mark = tmp_path / folder.OWNER
    mark.write_text(mark.read_text().replace(folder.pids_here().split("/")[part], "other"))
    assert folder.owner_lives(tmp_path) is None


# ---------------------------------------------------------------------- compiled programs


@pytest.fixture(autouse=True)
def nobody_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("JAXNB_COMPILE_CACHE", "JAX_COMPILATION_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def fill(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        (folder / str(i)).write_bytes(b"x" * 100)
        os.utime(folder / str(i), (i, i))


def test_what_was_not_used_for_longest_goes_first(tmp_path: Path) -> None:
    fill(tmp_path / "programs", 5)
    trim(tmp_path / "programs", 250)
    assert [path.name for _, _, path in entries(tmp_path / "programs")] == ["3", "4"]


def test_the_users_variables_say_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert default_folder() == tmp_path / "jaxnb" / "programs-1"
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path / "jax"))
    assert default_folder() == tmp_path / "jax" / "programs-1"
    monkeypatch.setenv("JAXNB_COMPILE_CACHE", str(tmp_path / "ours"))
    assert default_folder() == tmp_path / "ours" / "programs-1"
    monkeypatch.setenv("JAXNB_COMPILE_CACHE", "off")
    assert programs_folder("") == ("", "")


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o077])
def test_only_this_user_can_enter_it(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        folder, note = programs_folder("")
    finally:
        os.umask(before)
    assert note == ""
    assert Path(folder).stat().st_mode & 0o777 == 0o700


def test_what_others_can_write_to_is_refused(tmp_path: Path) -> None:
    fill(tmp_path / "asked" / "programs-1", 1)
    (tmp_path / "asked" / "programs-1").chmod(0o1777)
    with pytest.raises(UsageError, match=r"other users can write to it.*Nothing was started"):
        programs_folder(str(tmp_path / "asked"))
    (tmp_path / "asked" / "programs-1").chmod(0o700)
    (tmp_path / "asked").chmod(0o777)
    with pytest.raises(UsageError, match=r"other users may rename files"):
        programs_folder(str(tmp_path / "asked"))


def test_clean_tells_its_size_and_empties_it_where_that_is_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = default_folder()
    fill(folder, 3)
    clean(yes=True, dry_run=False, places=[str(tmp_path)])
    assert "3 compiled programs, 300 B; kept" in capsys.readouterr().out
    clean(yes=True, dry_run=True, compile_cache=True, places=[str(tmp_path)])
    assert len(entries(folder)) == 3
    clean(yes=True, dry_run=False, compile_cache=True, places=[str(tmp_path)])
    assert "3 compiled programs, 300 B; removed" in capsys.readouterr().out
    assert entries(folder) == []
