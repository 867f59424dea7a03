"""A control group of the kernel's with little memory: what takes more in it is killed."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path("/sys/fs/cgroup")

CANNOT = (
    "no control group for memory can be made here: it takes root, and a writable /sys/fs/cgroup"
)


@contextlib.contextmanager
def memory_group(limit_bytes: int) -> Iterator[Path]:
    """Makes a control group; skips the test where none can be made.

    Memory that a process has taken before it is put in does not count.

    Args:
        limit_bytes: How much memory all processes in it may take, at most.

    Yields:
        The file that puts a process in whose id is written to it.
    """
    parent, limits = _parent_and_limits()
    group = parent / f"jaxnb-tests-{secrets.token_hex(4)}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip(CANNOT)
    try:
        try:
            for name, value in limits(limit_bytes).items():
                if (group / name).exists():  # those of swap are not, where none is counted
                    (group / name).write_text(str(value))
        except OSError as error:
            pytest.skip(f"{CANNOT} ({error})")
        yield group / "cgroup.procs"
    finally:
        for pid in (group / "cgroup.procs").read_text().split():
            (parent / "cgroup.procs").write_text(pid)
        group.rmdir()


def _parent_and_limits() -> tuple[Path, Callable[[int], dict[str, int]]]:
    if (ROOT / "memory").is_dir():  # the first version of control groups
        lines = Path("/proc/self/cgroup").read_text().splitlines()
        (own,) = [
            path for _, names, path in (ln.split(":", 2) for ln in lines) if names == "memory"
        ]
        return ROOT / "memory" / own.lstrip("/"), lambda size: {
            "memory.limit_in_bytes": size,
            "memory.memsw.limit_in_bytes": size,  # with swap; after the one without
        }
    # In the second only a group without processes has groups that count memory: the root.
    controllers = ROOT / "cgroup.subtree_control"
    if not controllers.exists() or "memory" not in controllers.read_text().split():
        pytest.skip(CANNOT)
    return ROOT, lambda size: {"memory.max": size, "memory.swap.max": 0}
