"""Folders: the scratch folder of a group, and the folder of compiled programs."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jaxnb.errors import StartError, UsageError

ENDPOINT = "jaxnb.session.process_endpoint"
"""The module by which a process answers the notebook. It stands above all features, so it is named
here and imported by its name."""

LOOPBACK = "127.0.0.1"
"""The address by which the processes of one host reach each other."""

_ROOT = Path(__file__).resolve().parents[2]


def command_line(module: str, *arguments: str) -> list[str]:
    """Returns the command line of one of jaxnb's programs.

    What lies in the working folder is not imported in place of what it needs (``-P``): a
    ``random.py`` beside the notebook, which may be another user's where others can write. Code in
    cells can import it all the same.

    Args:
        module: The program.
        arguments: Its arguments; other users can read them.
    """
    # From its own checkout jaxnb may be found in no other way.
    is_checkout = Path(os.getcwd()).resolve() == _ROOT
    return [sys.executable, *([] if is_checkout else ["-P"]), "-m", module, *arguments]


def require_working_directory() -> None:
    """Raises UsageError if this program's working directory is gone: no process can start in it."""
    try:
        os.getcwd()
    except OSError as error:
        raise UsageError(
            f"The notebook's working directory is gone ({error.strerror}): somebody has deleted or "
            "moved it. Nothing was started or changed. Go to another one, `%cd ~` say."
        ) from None


PATH = (*sys.path,)
"""Where this program imports from, until the user adds to it. Other hosts may have other places."""

LONGEST_NAME = 20
"""The sockets' names have so many characters at most; of a whole path the system takes 103 (macOS)
or 107 (Linux), so that the folder's is not free to be long."""


def service_name(pid: int) -> str:
    """Returns the name of the socket of JAX's coordination service in the group's folder."""
    return f"jax-{pid}"


def sentinel_name(process_index: int, pid: int) -> str:
    """Returns the name of a sentinel's socket: no other process has it, on any host."""
    return f"sentinel-{process_index}-{pid}"


def direct_name(process_index: int, pid: int) -> str:
    """Returns the name of the socket by which a process's main thread is asked; likewise."""
    return f"direct-{process_index}-{pid}"


OWNER = "owner"
"""The file in a folder that says whose it is: see :func:`mark`."""

_FALLBACKS = ("/tmp", "/var/tmp")


def make_folder() -> str:
    """Makes a folder that only this user can enter, and in which sockets can be bound.

    It is made in the temporary folder (``TMPDIR``). Where that will not do, in
    ``XDG_RUNTIME_DIR``, ``/tmp`` or ``/var/tmp``: its path may be too long for a socket's, its
    file system may have no sockets, and where another user may rename what is in it, that user
    could put a folder with other sockets in the place of this one.

    Returns:
        Its path, without symbolic links.

    Raises:
        StartError: None of them will do; the message says why.
    """
    refused = []
    for parent in parent_folders():
        try:
            return _make_in(parent)
        except (OSError, UnicodeError) as error:
            refused.append(f"  {parent}: {error}")
    raise StartError(
        "No folder is safe for the group's sockets, which other users of this machine must not "
        "reach. Nothing was started. Set the environment variable TMPDIR to a folder of yours "
        f"with a short path. These were tried:\n{os.linesep.join(refused)}"
    )


def mark(folder: str | Path, owner_pid: int | None = None, path: str = "") -> None:
    """Writes into a folder that it is of use for as long as a process lives, and no longer.

    `jaxnb clean` removes folders with this mark only. It names the folder too: a copy of it that a
    user makes is the user's.

    Args:
        folder: The folder.
        owner_pid: The process; by default this one.
        path: What the folder will be called; by default what it is called.
    """
    pid = os.getpid() if owner_pid is None else owner_pid
    words = f"{pid} {_started(pid)} {pids_here()} {os.path.realpath(path or folder)}"
    with open(os.path.join(folder, OWNER), "xb", opener=for_this_user) as file:
        file.write(os.fsencode(words))


def owner_lives(folder: Path) -> bool | None:
    """Whether the process that has marked a folder lives.

    None if the folder has no mark, or that of another host or a container, whose processes have
    other numbers.
    """
    try:
        pid, started, pids, path = os.fsdecode((folder / OWNER).read_bytes()).split(" ", 3)
    except (OSError, ValueError):
        return None
    if path != os.path.realpath(folder) or pids != pids_here():
        return None
    return _started(int(pid)) == started


def pids_here() -> str:
    """Returns where processes have the numbers that they have here; empty where nobody tells.

    On each host the first namespace has the same number, so this names what the host runs, too.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _started(pid: int) -> str:
    """Returns when a process started, in ticks that no clock's change moves; empty if it ended.

    Its number may be another process's by now, which has started later.
    """
    try:
        found = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    state, *numbers = found.rpartition(")")[2].split()
    return "" if state == "Z" else numbers[18]


def for_this_user(path: str, flags: int) -> int:
    """Opens a file that only this user can read, whatever the umask: an opener for :func:`open`."""
    return os.open(path, flags, 0o600)


def write_text(path: str | Path, text: str) -> None:
    """Writes a new file, readable by this user only, and waits until it is on the disk."""
    with open(path, "x", encoding="utf-8", opener=for_this_user) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def parent_folders() -> Iterator[str]:
    """Yields where folders of groups may be made."""
    tried = set()
    for parent in (tempfile.gettempdir(), os.environ.get("XDG_RUNTIME_DIR", ""), *_FALLBACKS):
        path = os.path.realpath(parent) if parent else ""
        if path and path not in tried:
            tried.add(path)
            yield path


def _make_in(parent: str) -> str:
    os.fsencode(parent).decode()  # ZeroMQ takes no other names
    for ancestor in (Path(parent), *Path(parent).parents):
        refuse_if_others_may_rename_in(ancestor)
    folder = tempfile.mkdtemp(prefix="jaxnb-", dir=parent)
    try:
        path = os.path.join(folder, "x" * LONGEST_NAME)
        with socket.socket(socket.AF_UNIX) as trial:
            trial.bind(path)
        os.unlink(path)
        mark(folder)
    except BaseException:
        shutil.rmtree(folder)
        raise
    return folder


def refuse_if_others_may_rename_in(folder: Path) -> None:
    """Raises PermissionError where another user could put something else in place of a file."""
    found = folder.stat()
    if found.st_uid not in {0, os.geteuid()} and not _is_of_nobody_here(found.st_uid):
        raise PermissionError(f"{folder} belongs to another user (uid {found.st_uid})")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        mode = stat.filemode(found.st_mode)
        raise PermissionError(f"other users may rename files in {folder} ({mode}, no sticky bit)")


def _is_of_nobody_here(uid: int) -> bool:
    """Whether an owner is outside this container: so the host's root is seen from within one.

    In a user namespace (Apptainer, rootless Podman) all owners that it does not map have one
    number, which no process in it can have.
    """
    with suppress(OSError, ValueError):
        if uid != int(Path("/proc/sys/kernel/overflowuid").read_text()):
            return False
        for line in Path("/proc/self/uid_map").read_text().splitlines():
            first, _, count = map(int, line.split())
            if first <= uid < first + count:
                return False
        return True
    return False


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
