"""How much memory can still be had here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

_CGROUPS = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Returns the bytes that this process can still allocate without harm.

    The least of what the host has free, what the control groups (a container's memory limit)
    leave, and what the address space's limit (``ulimit -v``) leaves. Others may take it in the
    meantime.
    """
    limits = [psutil.virtual_memory().available, *_cgroup_rooms(), *_address_space_room()]
    return max(0, min(limits))


def _cgroup_rooms(root: Path = _CGROUPS, membership: Path = Path("/proc/self/cgroup")) -> list[int]:
    """Returns what each control group above this process leaves, versions 1 and 2."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:  # not Linux
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            names = ("memory.max", "memory.current")
            folder = root
        elif "memory" in controllers.split(","):
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            folder = root / "memory"
        else:
            continue
        for group in _upwards(folder, path):
            room = _room(group / names[0], group / names[1], group / "memory.stat")
            rooms.extend([] if room is None else [room])
    return rooms


def _upwards(folder: Path, path: str) -> Iterator[Path]:
    """Yields the group and those it is in; in a container the own one is the root."""
    parts = [part for part in path.split("/") if part and part != ".."]
    for count in range(len(parts), -1, -1):
        yield folder.joinpath(*parts[:count])


def _room(limit_file: Path, usage_file: Path, stat_file: Path) -> int | None:
    try:
        limit, usage = limit_file.read_text().strip(), int(usage_file.read_text())
    except (OSError, ValueError):
        return None
    if limit == "max":
        return None
    return int(limit) - usage + _cache_bytes(stat_file)


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
