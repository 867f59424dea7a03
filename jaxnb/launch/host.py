"""This host: what it has, its network, and what processes on it do."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import psutil

from jaxnb._version import __version__
from jaxnb.labels import processes_label
from jaxnb.model.group import HostFacts

# A notebook that has touched CUDA cannot hand it to forked processes, so neither CUDA nor jax
# is asked here.


def visible_gpus(environment: dict[str, str] | None = None) -> tuple[str, ...]:
    """Returns the GPUs that processes started now would see.

    ``CUDA_VISIBLE_DEVICES`` is respected; a host without ``nvidia-smi`` has none.

    Returns:
        Their names as ``CUDA_VISIBLE_DEVICES`` takes them: indices or UUIDs.
    """
    environment = dict(os.environ) if environment is None else environment
    present = _present_gpus(environment.get("PATH"))
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not present:
        return present
    chosen = []
    for name in (part.strip() for part in visible.split(",")):
        # CUDA stops at the first name that it does not know, "-1" included.
        if name not in present and not name.startswith(("GPU-", "MIG-")):
            break
        chosen.append(name)
    return tuple(chosen)


def _present_gpus(path: str | None) -> tuple[str, ...]:
    program = shutil.which("nvidia-smi", path=path)
    if program is None:
        return ()
    try:
        listing = subprocess.run(
            [program, "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
    except (subprocess.SubprocessError, OSError):
        # A driver that is installed without a card makes it fail: no GPU either way.
        return ()
    return tuple(line.strip() for line in listing.stdout.splitlines() if line.strip())


_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def facts(folder: str, environment: dict[str, str] | None, peer: str | None = None) -> HostFacts:
    """Returns what there is on this host; no package is imported.

    Args:
        folder: The group's folder here.
        environment: What decides which GPUs are visible; None if nobody needs to know.
        peer: Another host, towards which address and network interface are wanted.
    """
    return HostFacts(
        host=socket.gethostname(),
        folder=folder,
        directory=os.getcwd(),
        python=platform.python_version(),
        jax=_version("jax"),
        jaxnb=__version__,
        cores=os.cpu_count() or 1,
        gpus=() if environment is None else visible_gpus(environment),
        available_bytes=available_bytes(),
        rank=rank_of(os.environ),
        **(network_towards(peer) if peer else {}),
    )


def rank_of(environment: Mapping[str, str]) -> int:
    """Returns which of the programs that MPI or Slurm started together this one is."""
    names = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return int(next((environment[each] for each in names if each in environment), 0))


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # it is imported from where nobody has installed it
        return ""


def available_bytes() -> int:
    """Returns the bytes that this process can still allocate without harm.

    The least of what the host has free, what the control groups (a container's memory limit)
    leave, and what the address space's limit (``ulimit -v``) leaves. Others may take it in the
    meantime.
    """
    limits = [psutil.virtual_memory().available, *_cgroup_rooms(), *_address_space_room()]
    return max(0, min(limits))


def _cgroup_rooms(root: Path = _CGROUPS, membership: Path = _MEMBERSHIP) -> list[int]:
    """Returns what each control group above this process leaves, versions 1 and 2."""
    rooms = []
    for group, is_first in control_groups(root, membership):
        names = ("limit_in_bytes", "usage_in_bytes") if is_first else ("max", "current")
        with suppress(OSError, ValueError):  # "max" is not a number
            limit, usage = (int((group / f"memory.{name}").read_text()) for name in names)
            rooms.append(limit - usage + _cache_bytes(group / "memory.stat"))
    return rooms


def control_groups(
    root: Path = _CGROUPS, membership: Path = _MEMBERSHIP
) -> Iterator[tuple[Path, bool]]:
    """Yields the control groups for memory that this process is in, the innermost first.

    Each with whether it is one of version 1. In a container the own one is the root.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers or "memory" in controllers.split(","):
            folder = root / "memory" if controllers else root
            parts = [part for part in path.split("/") if part and part != ".."]
            for count in range(len(parts), -1, -1):
                yield folder.joinpath(*parts[:count]), bool(controllers)


def _cache_bytes(stat_file: Path) -> int:
    """Returns how much of the usage is pages of files, given back when there is need."""
    try:
        stat = dict(line.split() for line in stat_file.read_text().splitlines())
    except (OSError, ValueError):
        return 0
    # Version 1 counts those of the groups within apart; its usage has them.
    return int(stat.get("total_inactive_file", stat.get("inactive_file", 0)))


def _address_space_room() -> list[int]:
    if sys.platform == "win32":
        return []
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return []
    return [limit - psutil.Process(os.getpid()).memory_info().vms]


def network_towards(peer: str) -> dict[str, str]:
    """Returns by which ``address`` and ``interface`` this host reaches another; sends nothing.

    Args:
        peer: The other's address or name, of either family. For this host's own, that is returned.

    Returns:
        An empty interface for an address that no interface has: one of the loopback network, say.

    Raises:
        OSError: There is no route, or no such name.
    """
    family, *_, where = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(where)  # of a datagram's socket: the system looks up the route, no more
        address, _, *scope = probe.getsockname()
    if scope and scope[1]:  # valid on one link, which its number names
        interface = socket.if_indextoname(scope[1])
        return {"address": f"{address}%{interface}", "interface": interface}
    found = (
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(each.address == address for each in addresses)
    )
    return {"address": address, "interface": next(found, "")}


_STATES = {
    psutil.STATUS_RUNNING: "computing",
    psutil.STATUS_SLEEPING: "waiting",
    psutil.STATUS_TRACING_STOP: "stopped",
}
"""The kernel's words for what a process does, where ours say more."""


class Look(NamedTuple):
    """What a process does now.

    Attributes:
        state: ``"computing"``, ``"waiting"``, ``"stopped"`` or ``"dead"``.
        cpu_seconds: The processor time that it has used so far.
    """

    state: str
    cpu_seconds: float


def look(pid: int) -> Look:
    """Returns what a process of this host does."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            status, times = process.status(), process.cpu_times()
    except psutil.NoSuchProcess:
        return Look(psutil.STATUS_DEAD, 0.0)
    return Look(_STATES.get(status, status), times.user + times.system)


def continue_command(pids: Iterable[int], on: str = "") -> str:
    """Returns what to type so that stopped processes go on.

    Args:
        pids: Their process ids.
        on: What to type before a command to run it on their host; empty for the notebook's.
    """
    command = f"kill -CONT {' '.join(map(str, pids))}"
    return f"{on} {command}" if on else command


def stopped_text(stopped: Mapping[int, int], hosts: Mapping[int, str]) -> str:
    """Returns who is stopped, and what lets it go on, as a clause; empty if none is.

    Args:
        stopped: Process index to process id.
        hosts: Process index to what to type before a command to run it on its host, for those on
            other hosts than the notebook's.
    """
    if not stopped:
        return ""
    is_one = len(stopped) == 1
    by_host: dict[str, list[int]] = {}
    for index, pid in stopped.items():
        by_host.setdefault(hosts.get(index, ""), []).append(pid)
    commands = " and ".join(f"`{continue_command(p, host)}`" for host, p in by_host.items())
    lets = "lets" if len(by_host) == 1 else "let"
    return (
        f"{processes_label(stopped)} {'is' if is_one else 'are'} stopped: {commands} "
        f"{lets} {'it' if is_one else 'them'} go on"
    )
