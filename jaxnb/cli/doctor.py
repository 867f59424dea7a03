"""``jaxnb doctor``: looks at what a group needs of this machine, and starts a small one."""

from __future__ import annotations

import errno
import json
import os
import platform
import resource
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from typing import Literal

import psutil

from jaxnb.errors import JaxnbError
from jaxnb.labels import format_bytes, format_seconds, plural
from jaxnb.launch.host import visible_gpus
from jaxnb.options import StartOptions

Level = Literal["ok", "warning", "error"]

LEAST_SHM_BYTES = 256 << 20
LEAST_FILES = 1024
LEAST_TASKS = 512
TRIED_PORTS = 64
PSUM_PROCESSES = 2


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: ``"ok"``, ``"warning"`` or ``"error"``.
        text: What was found.
        fix: What to type, where something is wrong.
    """

    level: Level
    text: str
    fix: str = ""


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


def _ports() -> Iterator[Finding]:
    """Takes as many ports at once as a group of eight needs, and gives them back."""
    with ExitStack() as taken:
        for count in range(TRIED_PORTS):
            try:
                taken.enter_context(socket.create_server(("127.0.0.1", 0)))
            except OSError as error:
                is_limit = error.errno == errno.EMFILE
                text = f"only {count} of {TRIED_PORTS} ports could be taken: {error.strerror}"
                yield Finding("error", text, _more_files() if is_limit else "ss -tan | wc -l")
                return
    yield Finding("ok", f"{TRIED_PORTS} free ports taken and given back")


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


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (_versions, _ports, _limits, _start)


def doctor(*, as_json: bool) -> int:
    """Looks at everything and prints a line for each; returns 1 if there is an error, else 0."""
    findings = []
    for check in CHECKS:
        for found in check():
            findings.append(found)
            if not as_json:
                print(f"{found.level:8} {found.text}", flush=True)
                if found.fix:
                    print(f"{'':8} fix: {found.fix}", flush=True)
    if as_json:
        print(json.dumps([asdict(each) for each in findings], indent=2))
    return int(any(each.level == "error" for each in findings))


def _read(file: str) -> str:
    return Path(file).read_text()
