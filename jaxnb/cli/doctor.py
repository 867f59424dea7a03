"""``jaxnb doctor``: looks at what groups need of this machine, and starts a small one.

``jaxnb clean``: what a crash has left of groups of this user: found, listed, removed.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

import psutil

from jaxnb.cli import launchers
from jaxnb.cli.findings import Finding
from jaxnb.errors import JaxnbError
from jaxnb.labels import format_bytes, format_seconds, plural
from jaxnb.launch.folder import default_folder, entries, owner_lives, parent_folders, trim
from jaxnb.launch.host import visible_gpus
from jaxnb.options import StartOptions
from jaxnb.recovery.files import MANIFEST

LEAST_SHM_BYTES = 256 << 20
LEAST_FILES = 1024
LEAST_TASKS = 512
PSUM_PROCESSES = 2


def _enough(text: str, fix: str, *, is_enough: bool) -> Finding:
    return Finding("ok", text) if is_enough else Finding("warning", text, fix)


def _versions() -> Iterator[Finding]:
    python = f"Python {platform.python_version()} at {sys.executable}, {platform.platform()}"
    yield Finding("ok", python)
    try:
        jax, jaxlib = version("jax"), version("jaxlib")
    except PackageNotFoundError as error:
        yield Finding("error", f"{error.name} is not installed", f"pip install {error.name}")
        return
    plugins = {
        d.name: d.version for d in distributions() if d.name.startswith(("jax-cuda", "jax_cuda"))
    }
    for name, its in {"jax": jax, **plugins}.items():
        if its.split(".")[:2] == jaxlib.split(".")[:2]:
            yield Finding("ok", f"{name} {its} with jaxlib {jaxlib}")
        else:
            fix = f"pip install --upgrade {name}=={jax} jaxlib=={jax}"
            yield Finding("error", f"{name} {its} and jaxlib {jaxlib} do not belong together", fix)
    gpus = visible_gpus()
    if gpus and not plugins:
        fix = 'pip install "jaxnb[gpu]"'
        yield Finding(
            "error", f"{plural(len(gpus), 'GPU')}, which this JAX has no plug-in for", fix
        )
    elif gpus:
        yield Finding("ok", f"{plural(len(gpus), 'GPU')}: {', '.join(gpus)}")
    elif shutil.which("nvidia-smi"):
        fix = "nvidia-smi; echo $CUDA_VISIBLE_DEVICES"
        yield Finding("warning", "nvidia-smi is there, but no GPU can be used", fix)
    else:
        yield Finding("ok", "no GPU: processes use the CPU")


def _limits() -> Iterator[Finding]:
    with suppress(OSError):
        free = shutil.disk_usage("/dev/shm").free
        fix = "docker run --shm-size=2g …, or: sudo mount -o remount,size=2g /dev/shm"
        text = f"/dev/shm: {format_bytes(free)} free"
        yield _enough(text, fix, is_enough=free >= LEAST_SHM_BYTES)
    with suppress(OSError):  # a kernel without Yama has no such limit
        scope = _read("/proc/sys/kernel/yama/ptrace_scope").strip()
        text = f"ptrace_scope {scope}; above 1, arrays are pulled through messages, more slowly"
        fix = "sudo sysctl kernel.yama.ptrace_scope=1"
        yield _enough(text, fix, is_enough=scope in ("0", "1"))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = soft >= LEAST_FILES or soft < 0
    yield _enough(f"{soft} open files per process", _more_files(), is_enough=enough)
    yield _tasks()


def _more_files() -> str:
    """Returns what lets more files be open at once."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= hard < LEAST_FILES:  # which only root may raise
        return f"sudo prlimit --nofile={LEAST_FILES} --pid $$"
    return f"ulimit -n {hard if hard > 0 else 65536}"


def _tasks() -> Finding:
    """Compares the processes and threads that may be with those that there are."""
    left: dict[str, int] = {}
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft >= 0 and os.getuid():  # root may start more
        own = [p.info for p in psutil.process_iter(["uids", "num_threads"])]
        used = sum(
            p["num_threads"] or 0 for p in own if p["uids"] and p["uids"].real == os.getuid()
        )
        left["ulimit -u unlimited"] = soft - used
    with suppress(OSError, ValueError):
        most, used = (int(_read(f"/sys/fs/cgroup/pids.{n}")) for n in ("max", "current"))
        left["docker run --pids-limit=-1 …"] = most - used
    if not left:
        return Finding("ok", "processes and threads: no limit")
    fix = min(left, key=lambda each: left[each])
    text = f"{left[fix]} more processes and threads may be started"
    return _enough(text, fix, is_enough=left[fix] >= LEAST_TASKS)


def _start() -> Iterator[Finding]:
    from jaxnb.session import Session

    began = time.perf_counter()
    try:
        with Session(StartOptions(num_processes=PSUM_PROCESSES, platform="cpu")) as session:
            seconds = format_seconds(time.perf_counter() - began)
            notes = session.group.notes
    except JaxnbError as error:
        yield Finding("error", f"two processes do not start: {error}", "jaxnb clean; jaxnb doctor")
        return
    text = f"{PSUM_PROCESSES} CPU processes started, and a psum over them was right, in {seconds}"
    yield Finding("ok", text)
    for note in notes:
        yield Finding("warning", note, "pip install --upgrade jaxnb")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (_versions, _limits, launchers.look, _start)


def doctor(*, as_json: bool) -> int:
    """Looks at everything and prints a line for each; returns 1 if there is an error, else 0."""
    findings = []
    for check in CHECKS:
        for found in check():
            findings.append(found)
            if not as_json:
                print(found, flush=True)
    if as_json:
        print(json.dumps([asdict(each) for each in findings], indent=2))
    return int(any(each.level == "error" for each in findings))


def _read(file: str) -> str:
    return Path(file).read_text()


# ---------------------------------------------------------------------- clean

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
