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
from importlib.metadata import PackageNotFoundError, distributions, requires, version
from pathlib import Path
from typing import Literal

import psutil

from jaxnb.compat.versions import installed, newer_than_tested
from jaxnb.errors import JaxnbError, UsageError
from jaxnb.labels import format_bytes, format_seconds, plural
from jaxnb.launch.host import available_bytes, place, visible_gpus
from jaxnb.options import StartOptions

Level = Literal["ok", "warning", "error"]

LEAST_SHM_BYTES = 256 << 20
LEAST_FILES = 1024
LEAST_PORTS = 2000
TRIED_PORTS = 64
LEAST_TASKS = 512
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


def _ok(text: str) -> Finding:
    return Finding("ok", text)


def _warning(text: str, fix: str) -> Finding:
    return Finding("warning", text, fix)


def _error(text: str, fix: str) -> Finding:
    return Finding("error", text, fix)


def _python() -> Iterator[Finding]:
    yield _ok(f"Python {platform.python_version()} at {sys.executable}, {platform.platform()}")


def _packages() -> Iterator[Finding]:
    try:
        jax, jaxlib = version("jax"), version("jaxlib")
    except PackageNotFoundError as error:
        yield _error(f"{error.name} is not installed", f"pip install {error.name}")
        return
    if jax.split(".")[:2] == jaxlib.split(".")[:2]:
        yield _ok(f"jax {jax} with jaxlib {jaxlib}")
    else:
        fix = f"pip install --upgrade jax=={jax} jaxlib=={jax}"
        yield _error(f"jax {jax} and jaxlib {jaxlib} do not belong together", fix)
    yield from _requirements()
    plugins = {
        d.name: d.version for d in distributions() if d.name.startswith(("jax-cuda", "jax_cuda"))
    }
    for name, its in sorted(plugins.items()):
        if its.split(".")[:2] == jaxlib.split(".")[:2]:
            yield _ok(f"plug-in {name} {its}")
        else:
            fix = f"pip install --upgrade {name}=={jaxlib}"
            yield _error(f"plug-in {name} {its} does not belong to jaxlib {jaxlib}", fix)
    for text in newer_than_tested(installed()):
        yield _warning(text, "pip install --upgrade jaxnb")
    yield from _gpus(has_plugin=bool(plugins))


def _requirements() -> Iterator[Finding]:
    """Compares what is installed with what jaxnb's own record says that it needs."""
    from packaging.requirements import Requirement  # which ipykernel brings

    fits = []
    with suppress(PackageNotFoundError):  # a checkout on the path
        for text in requires("jaxnb") or ():
            asked = Requirement(text)
            if asked.marker and not asked.marker.evaluate({"extra": ""}):
                continue
            fix = f"pip install --upgrade '{asked.name}{asked.specifier}'"
            try:
                its = version(asked.name)
            except PackageNotFoundError:
                yield _error(f"{asked.name} is not installed", fix)
                continue
            if asked.specifier.contains(its, prereleases=True):
                fits.append(f"{asked.name} {its}")
            else:
                yield _error(f"{asked.name} {its}: jaxnb needs {asked.specifier}", fix)
    if fits:
        yield _ok(", ".join(fits))


def _gpus(*, has_plugin: bool) -> Iterator[Finding]:
    gpus = visible_gpus()
    if not gpus and shutil.which("nvidia-smi"):
        fix = "nvidia-smi; echo $CUDA_VISIBLE_DEVICES"
        yield _warning("nvidia-smi is there, but no GPU can be used", fix)
    elif not gpus:
        yield _ok("no GPU: processes use the CPU")
        return
    elif has_plugin:
        yield _ok(f"{plural(len(gpus), 'GPU')}: {', '.join(gpus)}")
    else:
        fix = 'pip install "jaxnb[gpu]"'
        yield _error(f"{plural(len(gpus), 'GPU')}, which this JAX has no plug-in for", fix)
    try:
        import pynvml

        pynvml.nvmlInit()
        cuda = pynvml.nvmlSystemGetCudaDriverVersion()
        driver = pynvml.nvmlSystemGetDriverVersion()
        yield _ok(f"NVML: driver {driver}, CUDA up to {cuda // 1000}.{cuda % 1000 // 10}")
    except ImportError:
        fix = "pip install nvidia-ml-py"
        yield _warning("NVML is missing: statistics have no utilisation of GPUs", fix)
    except Exception as error:  # NVML's own
        yield _warning(f"NVML does not answer: {error}", "nvidia-smi")


def _network() -> Iterator[Finding]:
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as server,
            socket.create_connection(server.getsockname(), 5),
        ):
            yield _ok("loopback: 127.0.0.1 answers")
    except OSError as error:
        yield _error(f"loopback does not work: {error}", "sudo ip link set lo up")
    name = socket.gethostname()
    try:
        found = sorted({str(each[4][0]) for each in socket.getaddrinfo(name, None)})
        yield _ok(f"host name {name} is {', '.join(found)}")
    except OSError:
        fix = f"echo '127.0.0.1 {name}' | sudo tee -a /etc/hosts"
        yield _warning(f"host name {name} has no address; plain JAX's gloo needs one", fix)
    with suppress(OSError, ValueError):
        first, last = map(int, _read("/proc/sys/net/ipv4/ip_local_port_range").split())
        if last - first < LEAST_PORTS:
            fix = "sudo sysctl net.ipv4.ip_local_port_range='32768 60999'"
            yield _warning(f"only {last - first} ports can be given out", fix)
        else:
            yield _ok(f"ports {first} to {last}")
    yield _free_ports()
    yield from _proxies()


def _free_ports() -> Finding:
    """Takes as many ports at once as a group of eight needs, and gives them back."""
    with ExitStack() as taken:
        for count in range(TRIED_PORTS):
            try:
                taken.enter_context(socket.create_server(("127.0.0.1", 0)))
            except OSError as error:
                if error.errno == errno.EMFILE:
                    text = f"ports were not tried: {count} more files are all that may be open"
                    return _error(text, _more_files())
                text = f"only {count} of {TRIED_PORTS} ports could be taken: {error.strerror}"
                return _error(text, "ss -tan | wc -l")
    return _ok(f"{TRIED_PORTS} free ports taken and given back")


def _proxies() -> Iterator[Finding]:
    names = [n for n in os.environ if n.lower() in ("http_proxy", "https_proxy", "grpc_proxy")]
    if not names:
        yield _ok("no proxy")
        return
    exempt = os.environ.get("no_proxy", os.environ.get("NO_PROXY", ""))
    if "localhost" in exempt or "127.0.0.1" in exempt or exempt == "*":
        yield _ok(f"{', '.join(names)} set, not for this host (no_proxy)")
    else:
        text = f"{', '.join(names)} set: plain JAX reaches its coordinator through the proxy"
        yield _warning(text, "export no_proxy=localhost,127.0.0.1")


def _system() -> Iterator[Finding]:
    with suppress(OSError):
        free = shutil.disk_usage("/dev/shm").free
        fix = "docker run --shm-size=2g …, or: sudo mount -o remount,size=2g /dev/shm"
        text = f"/dev/shm: {format_bytes(free)} free"
        yield _ok(text) if free >= LEAST_SHM_BYTES else _warning(text, fix)
    try:
        scope = _read("/proc/sys/kernel/yama/ptrace_scope").strip()
    except OSError:
        yield _ok("ptrace: this kernel has no Yama, which would limit it")
    else:
        text = f"ptrace_scope {scope}"
        slow = f"{text}: arrays are pulled through messages, which is slower"
        fix = "sudo sysctl kernel.yama.ptrace_scope=1"
        yield _ok(text) if scope in ("0", "1") else _warning(slow, fix)
    yield from _limits()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with suppress(OSError, ValueError):
        quota, period = _read("/sys/fs/cgroup/cpu.max").split()
        cores = cores if quota == "max" else min(cores or 1, max(1, int(quota) // int(period)))
    yield _ok(f"{plural(cores or 1, 'core')}, {format_bytes(available_bytes())} of memory free")


def _limits() -> Iterator[Finding]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files per process"
    yield _ok(text) if soft >= LEAST_FILES or soft < 0 else _warning(text, _more_files())
    yield _tasks()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = f"locked memory (ulimit -l): {format_bytes(soft) if soft >= 0 else 'no limit'}"
    if soft >= 0 and os.path.exists("/dev/infiniband"):
        yield _warning(f"{text}; NCCL over InfiniBand needs more", "ulimit -l unlimited")
    else:
        yield _ok(text)


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
        return _ok("processes and threads: no limit")
    fix = min(left, key=lambda each: left[each])
    text = f"{left[fix]} more processes and threads may be started"
    return _ok(text) if left[fix] >= LEAST_TASKS else _warning(text, fix)


_SETS = {
    "Slurm": ("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"),
    "Open MPI": ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "MPICH": ("PMI_SIZE", "PMI_RANK"),
    "PMIx": ("PMIX_NAMESPACE", "PMIX_RANK"),
}
"""What JAX and mpi4py tell a cluster by; some without the others make them wait for processes that
never come."""


_MPI = ("PMI_", "PMIX_", "MPICH_", "MPI_LOCAL")


def _variables() -> Iterator[Finding]:
    for system, names in _SETS.items():
        unset = [name for name in names if name not in os.environ]
        if not unset:
            yield _ok(f"{system}: {', '.join(names)}")
        elif len(unset) < len(names):
            there = [name for name in names if name not in unset]
            text = f"{system} is set in part ({', '.join(there)}, not {', '.join(unset)}): plain "
            text += "JAX or mpi4py waits for processes that never come"
            yield _warning(text, f"unset {' '.join(there)}")
    others = {each for names in _SETS.values() for each in names}
    more = [n for n in sorted(os.environ) if n.startswith(_MPI) and n not in others]
    if more:
        yield _ok(f"also set by MPI: {', '.join(more)}")
    unfit = ""
    try:
        place(StartOptions(), visible_gpus())
    except UsageError as error:
        unfit = str(error)
        yield _error(f"a start says: {unfit}", "unset the variable")
    for name in ("JAX_PLATFORMS", "XLA_FLAGS", "JAX_NUM_CPU_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if os.environ.get(name) and f"{name}=" not in unfit:
            yield _ok(f"{name}={os.environ[name]}")


def _start() -> Iterator[Finding]:
    from jaxnb.session import Session

    began = time.perf_counter()
    try:
        with Session(StartOptions(num_processes=PSUM_PROCESSES, platform="cpu")) as session:
            seconds = format_seconds(time.perf_counter() - began)
            notes = session.group.notes
    except JaxnbError as error:
        yield _error(f"two processes do not start: {error}", "jaxnb clean; jaxnb doctor")
        return
    yield _ok(
        f"{PSUM_PROCESSES} CPU processes started, and a psum over them was right, in {seconds}"
    )
    for note in notes:
        yield _warning(note, "pip install --upgrade jaxnb")


CHECKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    _python, _packages, _network, _system, _variables, _start
)  # fmt: skip


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
