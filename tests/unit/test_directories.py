"""Directories of saved variables: replaced, or as they were."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxnb.errors import JaxnbError, UsageError
from jaxnb.recovery import files

Refuse = Callable[[int, BaseException], None]


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Has the file system refuse a rename, or a user interrupt it: the first is number 0."""

    def refuse(number: int, error: BaseException, *also: int) -> None:
        rename, calls = Path.rename, iter(range(100))

        def refused(path: Path, target: Path) -> Path:
            if next(calls) in (number, *also):
                raise error
            return rename(path, target)

        monkeypatch.setattr(Path, "rename", refused)

    return refuse


@pytest.fixture
def partial(tmp_path: Path) -> Path:
    return a_save(tmp_path / ".state-1", "new")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return a_save(tmp_path / "state", "old")


def a_save(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / files.MANIFEST).write_text(text)
    return folder


def test_a_save_takes_the_place_of_another(partial: Path, target: Path) -> None:
    files.put_in_place(partial, target)
    assert [*target.parent.iterdir()] == [target]
    assert (target / files.MANIFEST).read_text() == "new"


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize(
    "error", [OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), KeyboardInterrupt()]
)
def test_one_that_is_not_replaced_is_as_it_was(
    partial: Path, target: Path, refuse: Refuse, number: int, error: BaseException
) -> None:
    refuse(number, error)
    is_interrupt = isinstance(error, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt if is_interrupt else JaxnbError) as caught:
        files.put_in_place(partial, target)
    told = " ".join([str(caught.value), *getattr(caught.value, "__notes__", ())])
    assert f"Nothing was saved: {target} is as it was." in told
    assert [*target.parent.iterdir()] == [target]
    assert (target / files.MANIFEST).read_text() == "old"


def test_one_that_cannot_be_put_back_is_named_with_the_new_one(
    partial: Path, target: Path, refuse: Refuse
) -> None:
    refuse(1, OSError(errno.EACCES, "Permission denied"), 2)
    with pytest.raises(JaxnbError, match="Permission denied") as caught:
        files.put_in_place(partial, target)
    assert not target.exists()
    (old,) = set(target.parent.iterdir()) - {partial}
    assert (old / files.MANIFEST).read_text() == "old"
    assert (partial / files.MANIFEST).read_text() == "new"
    assert str(old) in str(caught.value)
    assert str(partial) in str(caught.value)


def test_scratch_is_kept_only_with_whole_variables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files, "_with_room", lambda nbytes: tmp_path)

    def fail(file: str) -> None:
        with files.scratch_folder(1) as folder:
            (folder / file).touch()
            raise OSError(errno.ENOSPC, "no room", folder if file != files.MANIFEST else None)

    with pytest.raises(OSError, match="no room"):
        fail("process-00000")
    assert not [*tmp_path.iterdir()]
    with pytest.raises(OSError, match="no room") as caught:
        fail(files.MANIFEST)
    (folder,) = tmp_path.iterdir()
    assert f"`%spmd_load {folder}` binds them" in caught.value.__notes__[0]


def test_a_directory_with_files_of_the_users_is_not_replaced(tmp_path: Path) -> None:
    for name in ("variables.json", "process-00000", "thesis.tex"):
        (tmp_path / name).write_text("mine")
    with pytest.raises(UsageError, match=r"more than saved variables: thesis\.tex\. Nothing was"):
        files.target_of(str(tmp_path), overwrite=True)
    (tmp_path / "thesis.tex").unlink()
    assert files.target_of(str(tmp_path), overwrite=True) == tmp_path
