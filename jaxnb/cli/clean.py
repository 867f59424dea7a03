"""``jaxnb clean``: what a crash has left of groups of this user: found, listed, removed."""

from __future__ import annotations

import os
import shutil
import stat
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from jaxnb.labels import format_bytes, plural
from jaxnb.launch.folder import owner_lives, parent_folders, pids_of
from jaxnb.launch.programs_folder import default_folder, entries, trim
from jaxnb.recovery.files import MANIFEST

END_SECONDS = 5.0

_PROGRAMS = ("forkserver", "engine_app", "coordination_app")


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of groups whose owners have ended.

    Attributes:
        processes: Processes that have outlived their owner.
        folders: Folders of groups, with their sockets, keys and logs; and of variables that were
            carried from one group to another.
    """

    processes: tuple[psutil.Process, ...]
    folders: tuple[Path, ...]

    def lines(self) -> list[str]:
        """Returns a line for each."""
        return [
            *(f"process {p.pid}: {_program_of(p)}" for p in self.processes),
            *(f"{folder} ({_described(folder)}, of {_changed(folder)})" for folder in self.folders),
        ]


def find(places: Iterable[str] | None = None) -> Left:
    """Looks for what is left; changes nothing.

    A group lives for as long as the process that has started it, its owner. Nothing of a living
    group is found, nor of another user, nor a folder that a user has made.

    Args:
        places: Where groups have their folders; by default the temporary folders and ``/dev/shm``.
    """
    roots = [Path(place) for place in places or (*parent_folders(), "/dev/shm")]
    orphans = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.uids().real != os.getuid() or not (group := _group_of(process)):
                continue
            if pids_of(process.pid) != pids_of("self"):  # of a container: so is its owner's number
                continue
            folder, owner = group
            if folder.parent in roots and not _lives(owner, process):
                orphans.append(process)
    folders = sorted(each for root in roots for each in root.glob("jaxnb-*") if _is_left(each))
    return Left(tuple(orphans), tuple(folders))


def _group_of(process: psutil.Process) -> tuple[Path, int] | None:
    """Returns the folder and the owner of the group that a process serves; None if it serves none.

    Both are arguments of the programs; what they fork has the same command line.
    """
    words = process.cmdline()
    for i, word in enumerate(words[:-2]):
        if word.startswith("jaxnb.launch.") and word.rpartition(".")[2] in _PROGRAMS:
            given = words[i + 1 :]
            folder = next((each for each in given if Path(each).name.startswith("jaxnb-")), "")
            owner = given[0] if word.endswith("forkserver") else given[-1]
            if folder and owner.isdigit():
                return Path(folder), int(owner)
    return None


def _lives(owner: int, process: psutil.Process) -> bool:
    """Whether the owner of a process lives; its number may be another process's by now."""
    try:
        found = psutil.Process(owner)
        is_older = found.create_time() <= process.create_time()
        return is_older and found.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _is_left(folder: Path) -> bool:
    """Whether only this user can enter a folder, and jaxnb made it in a process that has ended."""
    with suppress(OSError):  # its group has just ended
        found = folder.lstat()
        is_own = found.st_uid == os.getuid() and not found.st_mode & 0o077
        return stat.S_ISDIR(found.st_mode) and is_own and owner_lives(folder) is False
    return False


def _program_of(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return " ".join(process.cmdline())[:100]
    return "has ended"


def _changed(folder: Path) -> str:
    """Returns when something was last put into a folder."""
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(folder.stat().st_mtime))


def _described(folder: Path) -> str:
    found = [each.lstat() for each in folder.rglob("*")]
    files = [each.st_size for each in found if stat.S_ISREG(each.st_mode)]
    sockets, size = sum(stat.S_ISSOCK(e.st_mode) for e in found), format_bytes(sum(files))
    if (folder / MANIFEST).exists():
        return f"variables, {size}; in a notebook `%spmd_load {folder}` binds them"
    return f"a group's: {len(files)} files, {size}, {sockets} sockets"


def remove(left: Left) -> list[str]:
    """Ends the processes and removes the folders.

    Returns:
        What could not be removed, a line each.
    """
    for process in left.processes:
        with suppress(psutil.Error):  # which compares when it was created: never another one
            process.terminate()
    _, alive = psutil.wait_procs(left.processes, END_SECONDS)
    for process in alive:
        with suppress(psutil.Error):
            process.kill()
    _, alive = psutil.wait_procs(alive, END_SECONDS)
    problems = [f"process {each.pid} does not end" for each in alive]
    for folder in left.folders:
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            problems.append(f"{folder}: {error.strerror}")
    return problems


def _clean_programs(*, remove: bool) -> None:
    folder = default_folder()
    found = entries(folder)
    if not found:
        return
    size = format_bytes(sum(size for _, size, _ in found))
    told = f"{folder}: {plural(len(found), 'compiled program')}, {size}"
    if remove:
        trim(folder, 0)
        print(f"{told}; removed. Groups that run compile theirs again as they need them.")
    else:
        print(f"{told}; kept for later groups. `jaxnb clean --compile-cache` removes them.")


def clean(
    *, yes: bool, dry_run: bool, compile_cache: bool = False, places: Sequence[str] | None = None
) -> int:
    """Lists what is left, and removes it once that is confirmed.

    Args:
        yes: It is confirmed.
        dry_run: Nothing is to be removed.
        compile_cache: Empty the folder of compiled programs; else only its size is told.
        places: Where groups have their folders.

    Returns:
        The exit status: 0; 1 if something could not be removed, or nobody has confirmed.
    """
    _clean_programs(remove=compile_cache and not dry_run)
    left = find(places)
    if not left.lines():
        print("Nothing is left of groups that have ended.")
        return 0
    print("\n".join(left.lines()))
    if dry_run:
        print("Nothing was removed.")
        return 0
    if not yes:
        if not sys.stdin.isatty():
            print("Nothing was removed: `jaxnb clean --yes` removes these.")
            return 1
        if input("Remove these? [y/N] ").strip().lower() not in ("y", "yes"):
            return 1
    problems = remove(left)
    print("\n".join(problems) if problems else "All of that was removed.")
    return 1 if problems else 0
