"""The folder of compiled programs: where it is, how large, and how it is emptied."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from jaxnb.cli.doctor import clean
from jaxnb.errors import UsageError
from jaxnb.launch.folder import default_folder, entries, programs_folder, trim


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
