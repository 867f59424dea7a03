"""How much memory can still be had: control groups of both versions, and a real one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jaxnb.launch import host
from support.memory_group import memory_group

MIB = 1 << 20


def v2(folder: Path, limit: str, used: int, cache: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\nactive_file 7\n")


def v1(folder: Path, limit: int, used: int, cache: int = 0, own_cache: int = 0) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"cache 5\ninactive_file {own_cache}\ntotal_inactive_file {cache}\n"
    )


def rooms(tmp_path: Path, membership: str) -> list[int]:
    file = tmp_path / "membership"
    file.write_text(membership)
    return host._cgroup_rooms(tmp_path / "root", file)


def test_version_2_counts_every_group_above(tmp_path: Path) -> None:
    root = tmp_path / "root"
    v2(root / "a", str(100 * MIB), 30 * MIB)
    v2(root / "a" / "b", str(60 * MIB), 30 * MIB, cache=10 * MIB)
    assert rooms(tmp_path, "0::/a/b\n") == [40 * MIB, 70 * MIB]


def test_version_1_counts_every_group_above_and_the_cache_of_those_within(tmp_path: Path) -> None:
    root = tmp_path / "root" / "memory"
    v1(root / "a", 100 * MIB, 50 * MIB, cache=20 * MIB, own_cache=0)
    v1(root / "a" / "b", 80 * MIB, 50 * MIB, cache=20 * MIB, own_cache=20 * MIB)
    membership = "5:cpu,cpuacct:/a\n4:memory:/a/b\n1:name=systemd:/x\n"
    assert rooms(tmp_path, membership) == [50 * MIB, 70 * MIB]


def test_both_versions_at_once(tmp_path: Path) -> None:
    root = tmp_path / "root"
    v1(root / "memory" / "a", 100 * MIB, 50 * MIB)
    v2(root / "b", str(30 * MIB), 20 * MIB)
    assert rooms(tmp_path, "4:cpu,memory:/a\n0::/b\n") == [50 * MIB, 10 * MIB]


def test_no_limit_is_none(tmp_path: Path) -> None:
    v2(tmp_path / "root" / "a", "max", 30 * MIB)
    assert rooms(tmp_path, "0::/a\n") == []


@pytest.mark.parametrize("missing", ["memory.max", "memory.current"])
def test_files_that_are_not_there_are_no_limit(tmp_path: Path, missing: str) -> None:
    v2(tmp_path / "root" / "a", str(MIB), 0)
    v2(tmp_path / "root", str(2 * MIB), 0)
    (tmp_path / "root" / "a" / missing).unlink()
    assert rooms(tmp_path, "0::/a\n") == [2 * MIB]


def test_a_limit_holds_where_its_statistics_cannot_be_read(tmp_path: Path) -> None:
    v2(tmp_path / "root", str(2 * MIB), MIB)
    (tmp_path / "root" / "memory.stat").unlink()
    assert rooms(tmp_path, "0::/\n") == [MIB]


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """Its membership names the path on the host, or one that leads out of what is mounted."""
    v2(tmp_path / "root", str(50 * MIB), 10 * MIB)
    for path in ("/docker/0123", "/../../docker/0123", "/"):
        assert rooms(tmp_path, f"0::{path}\n") == [40 * MIB]


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert host._cgroup_rooms(tmp_path / "none", tmp_path / "none") == []
    assert rooms(tmp_path, "") == []
    assert rooms(tmp_path, "0::/\n") == []


def test_more_than_the_limit_in_use_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_cgroup_rooms", lambda: [-5])
    assert host.available_bytes() == 0


def test_the_host_is_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "_cgroup_rooms", list)
    assert 0 < host.available_bytes() <= psutil.virtual_memory().total


ASK = "from jaxnb.launch.host import available_bytes; print(available_bytes())"


def test_the_limit_of_the_address_space_is_one() -> None:
    code = (
        "import psutil, resource; from jaxnb.launch.host import available_bytes\n"
        f"limit = psutil.Process().memory_info().vms + {100 * MIB}\n"
        "resource.setrlimit(resource.RLIMIT_AS, (limit, limit)); print(available_bytes())"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 80 * MIB < int(ended.stdout) <= 100 * MIB


@pytest.mark.may_be_skipped
def test_a_real_control_group_is_a_limit() -> None:
    limit = 256 * MIB
    words = [sys.executable, "-c", f"input(); {ASK}"]
    with memory_group(limit) as put:
        asker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        put(asker.pid)
        out, _ = asker.communicate("\n")
    assert limit // 2 < int(out) < limit
