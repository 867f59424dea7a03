"""``jaxnb clean``: what a crash has left of groups of this user: found, listed, removed."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from jaxnb.labels import format_bytes, plural
from jaxnb.launch.folder import owner_lives, parent_folders
from jaxnb.launch.programs_folder import default_folder, entries, trim
from jaxnb.recovery.files import MANIFEST

END_SECONDS = 5.0


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
        return [*(f"process {p.pid}" for p in self.processes), *map(_described, self.folders)]


def find(places: Iterable[str] | None = None) -> Left:
    """Looks for what is left; changes nothing.

    A group lives for as long as the process that has started it, its owner. Nothing of a living
    group is found, nor of another user, nor a folder that a user has made. The programs of a group
    have its folder among their arguments, and what they fork has their command line.

    Args:
        places: Where groups have their folders; by default the temporary folders and ``/dev/shm``.
    """
    roots = map(Path, places or (*parent_folders(), "/dev/shm"))
    folders = sorted(each for root in roots for each in root.glob("jaxnb-*") if _is_left(each))
    orphans = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_own, words = process.uids().real == os.getuid(), process.cmdline()
            is_program = any(each.startswith("jaxnb.launch.") for each in words)
            if is_own and is_program and not {*words}.isdisjoint(map(str, folders)):
                orphans.append(process)
    return Left(tuple(orphans), tuple(folders))


def _is_left(folder: Path) -> bool:
    """Whether only this user can enter a folder, and jaxnb made it in a process that has ended."""
    with suppress(OSError):  # its group has just ended
        found = folder.lstat()
        is_own = found.st_uid == os.getuid() and not found.st_mode & 0o077
        return stat.S_ISDIR(found.st_mode) and is_own and owner_lives(folder) is False
    return False


def _described(folder: Path) -> str:
    if (folder / MANIFEST).exists():
        return f"{folder} (variables; in a notebook `%spmd_load {folder}` binds them)"
    return str(folder)


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
