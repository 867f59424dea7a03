"""The folder of compiled programs: where it is, who may write to it, how large it is."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

from jaxnb.errors import UsageError
from jaxnb.launch.folder import refuse_if_others_may_rename_in

MAX_BYTES = 1 << 30
"""At a start the programs that were not used for longest are removed, down to this size."""

OFF = "off"

VARIABLE = "JAXNB_COMPILE_CACHE"
"""Of the environment: what is asked for where nobody asks."""

MADE_BY_JAXNB = "programs-1"
"""The folder's own name: its form, and what `jaxnb clean` may remove."""


def programs_folder(asked: str) -> tuple[str, str]:
    """Makes the folder of compiled programs, and removes from it what is too much.

    Args:
        asked: A folder to have it in; ``"off"``; empty for what ``JAXNB_COMPILE_CACHE`` says, else
            the user's: in the folder that JAX's own compilation cache was given
            (``JAX_COMPILATION_CACHE_DIR``), else in XDG's cache home.

    Returns:
        Its path; empty where programs are not to be kept, with the reason if nobody asked for that.

    Raises:
        UsageError: The folder that was asked for cannot be used. Nothing was started.
    """
    by = "--compile-cache" if asked else VARIABLE
    asked = asked or os.environ.get(VARIABLE, "")
    if asked.lower() == OFF:
        return "", ""
    folder = _within(asked) if asked else default_folder()
    try:
        for each in (*reversed(folder.parents), folder):  # whatever the umask, of each that is new
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
        _require_own(folder)
        trim(folder, MAX_BYTES)
    except (OSError, ValueError) as error:
        why = f"compiled programs cannot be kept in {folder}: {error}"
        if asked:
            raise UsageError(
                f"{by}: {why}. Nothing was started. Name another folder, or `off`."
            ) from None
        return "", (
            f"Each process compiles its programs by itself: {why}. `--compile-cache DIR` names "
            "another folder, `--compile-cache off` hides this."
        )
    return str(folder), ""


def default_folder() -> Path:
    """Returns where compiled programs are kept, or would be, if nobody asks for another place."""
    for name in (VARIABLE, "JAX_COMPILATION_CACHE_DIR"):
        if (asked := os.environ.get(name, "")) and asked.lower() != OFF:
            return _within(asked)
    home = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(home) if os.path.isabs(home) else Path(os.path.expanduser("~/.cache"))
    return cache / "jaxnb" / MADE_BY_JAXNB


def _within(asked: str) -> Path:
    return Path(os.path.expanduser(asked)).absolute() / MADE_BY_JAXNB


def _require_own(folder: Path) -> None:
    """Raises PermissionError where another user may write to a folder: its code would be run."""
    if folder.stat().st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(
            "other users can write to it, and to load a program is to run code; if you trust what "
            f"is in it: `chmod go-w {folder}`"
        )
    for each in (folder, *folder.parents):
        refuse_if_others_may_rename_in(each)


def entries(folder: Path) -> list[tuple[float, int, Path]]:
    """Returns when each program in a folder was last used, how large it is, and where."""
    found = []
    with suppress(OSError):
        for each in os.scandir(folder):
            with suppress(OSError):  # another group's start has removed it
                status = each.stat(follow_symlinks=False)
                found.append((status.st_mtime, status.st_size, Path(each.path)))
    return sorted(found)


def trim(folder: Path, most: int) -> None:
    """Removes the programs that were not used for longest, until the rest has ``most`` bytes."""
    found = entries(folder)
    size = sum(each for _, each, _ in found)
    for _, each, path in found:
        if size <= most:
            break
        with suppress(OSError):
            path.unlink()
        size -= each
