"""Directories for variables: to save them in, and on their way to another group."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxnb.errors import JaxnbError, NotEnoughMemoryError, UsageError
from jaxnb.labels import format_bytes
from jaxnb.launch.host import available_bytes
from jaxnb.launch.lifeline import mark
from jaxnb.recovery.files import is_name

MANIFEST = "variables.json"
"""What tells of the files in a directory, for people too."""


@contextmanager
def scratch_folder(nbytes: int) -> Iterator[Path]:
    """Yields a directory for variables on their way: in memory, where the system has that.

    It is removed if what is done with it succeeds, or has not come as far as its manifest. Else it
    is left, and a note says where it is.

    Args:
        nbytes: Their size.

    Raises:
        NotEnoughMemoryError: There is no room for them.
    """
    folder = Path(tempfile.mkdtemp(prefix="jaxnb-", dir=_with_room(nbytes)))
    try:
        mark(folder)
        yield folder
    except BaseException as error:
        if not folder.is_dir():  # somebody has removed it
            error.add_note(f"{folder}, which had the variables, has been removed meanwhile.")
        elif not (folder / MANIFEST).exists():  # the variables are where they were
            shutil.rmtree(folder, ignore_errors=True)
        elif str(folder) not in str(error):  # which tells of it else
            error.add_note(
                f"The variables are in {folder}: in a group of this size (`%spmd_start`, unless "
                f"there still is one), `%spmd_load {folder}` binds them. Then remove it."
            )
        raise
    shutil.rmtree(folder, ignore_errors=True)


def _with_room(nbytes: int) -> Path:
    """Returns where there is room for a second copy of variables: in memory, or on the disk."""
    memory, disk = Path("/dev/shm"), Path(tempfile.gettempdir())
    rooms = {disk: shutil.disk_usage(disk).free}
    if os.access(memory, os.W_OK):
        rooms = {memory: min(shutil.disk_usage(memory).free, available_bytes())} | rooms
    for place, room in rooms.items():
        if nbytes < room:
            return place
    told = ", ".join(f"{format_bytes(room)} in {place}" for place, room in rooms.items())
    raise NotEnoughMemoryError(
        f"The variables of all processes take {format_bytes(nbytes)}, and there is no room for a "
        f"second copy: {told}. Nothing was changed. Delete some, or save what you need to a "
        "larger disk: `%spmd_save DIR NAMES`."
    )


def target_of(folder: str, *, overwrite: bool) -> Path:
    """Returns the directory that variables can be saved to.

    Raises:
        UsageError: They cannot.
    """
    target = Path(folder).expanduser().resolve()  # a link stays one
    if not target.parent.is_dir():
        raise UsageError(
            f"There is no directory {target.parent}. Nothing was saved. Make it: `!mkdir -p "
            f"{target.parent}`."
        )
    if not target.exists() or (target.is_dir() and not any(target.iterdir())):
        return target
    if not target.is_dir():
        raise UsageError(f"{target} is a file. Nothing was saved. Name a directory.")
    if not (target / MANIFEST).is_file():
        raise UsageError(
            f"{target} is there, and has no saved variables. Nothing was saved. Name a directory "
            "that is not there yet."
        )
    names = {each.name for each in target.iterdir()}
    if others := sorted(name for name in names - {MANIFEST} if not is_name(name)):
        raise UsageError(
            f"{target} has more than saved variables: {', '.join(others[:5])}"
            f"{' …' if len(others) > 5 else ''}. Nothing was saved, as to replace the directory "
            "would remove that too. Move it away, or name another directory."
        )
    if not overwrite:
        raise UsageError(
            f"{target} has saved variables already. Nothing was saved. Name another directory, or "
            "replace them: `%spmd_save --overwrite DIR`, `spmd.save(dir, overwrite=True)`."
        )
    return target


def require_room(folder: Path, nbytes: int) -> None:
    """Raises NotEnoughMemoryError where there is not so much room on the disk."""
    free = shutil.disk_usage(folder).free
    if nbytes > free:
        raise NotEnoughMemoryError(
            f"The variables of all processes take {format_bytes(nbytes)}, and {folder} has "
            f"{format_bytes(free)} free. Nothing was saved. Name the variables to save, or another "
            "directory."
        )


def put_in_place(partial: Path, target: Path) -> None:
    """Replaces a directory by another; where that fails, what was there before is there again.

    Raises:
        JaxnbError: It failed.
    """
    old = partial.with_name(f"{partial.name}-old")
    try:
        if target.exists():
            target.rename(old)
        partial.rename(target)
    except BaseException as error:  # an interrupt too
        if partial.exists():  # else it came after the last step
            _put_back(old, target, partial, error)
            shutil.rmtree(partial, ignore_errors=True)
            unchanged = f"Nothing was saved: {target} is as it was."
            if isinstance(error, OSError):
                why = f"{target} could not be replaced ({error.strerror}). {unchanged}"
                raise JaxnbError(why) from None
            error.add_note(unchanged)
        raise
    finally:
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)


def _put_back(old: Path, target: Path, partial: Path, error: BaseException) -> None:
    try:
        if old.exists():
            old.rename(target)
    except OSError as again:
        raise JaxnbError(
            f"{target} could not be replaced ({error}), and what was there not be put back "
            f"({again.strerror}). It is whole in {old}, and the new variables in {partial}. Choose "
            f"one: `!mv {old} {target}`, say, and remove the other."
        ) from error


def require_own(path: Path) -> None:
    """Takes what nobody else can have written: it is unpickled, and so run."""
    try:
        found = path.stat()
    except OSError as error:
        raise JaxnbError(f"{path} cannot be read ({error.strerror}). Nothing was loaded.") from None
    if found.st_uid not in (os.getuid(), 0) or found.st_mode & 0o022:
        raise JaxnbError(
            f"{path} can be written by other users than you, and to load variables is to run code. "
            "Nothing was loaded. If you trust it, make it yours: `chown`, `chmod go-w`."
        )
