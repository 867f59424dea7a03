"""What a host has: GPUs, memory, and processes that are stopped."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from jaxnb.launch import host
from jaxnb.launch.host import look, stopped_text, visible_gpus
from jaxnb.recovery.messages import MOST_NAMED, Lost, Recovered
from jaxnb.session.reasons import silent_text
from jaxnb.session.starting import WAITING, untold
from support.memory_group import memory_group

# ---------------------------------------------------------------------- network


@pytest.mark.parametrize("own", ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])])
def test_the_address_towards_a_host_is_that_of_the_route(own: str) -> None:
    interfaces = psutil.net_if_addrs()
    found = host.network_towards(own)
    assert found["address"] == own
    assert own in {each.address for each in interfaces[found["interface"]]}


# ---------------------------------------------------------------------- memory


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


@pytest.mark.parametrize(
    ("missing", "found"),
    [("memory.max", [2 * MIB]), ("memory.current", [2 * MIB]), ("memory.stat", [MIB, 2 * MIB])],
)
def test_files_that_are_not_there_are_no_limit(
    tmp_path: Path, missing: str, found: list[int]
) -> None:
    v2(tmp_path / "root" / "a", str(MIB), 0)
    v2(tmp_path / "root", str(2 * MIB), 0)
    v2(tmp_path / "root" / "a" / "b", "max", 0)
    (tmp_path / "root" / "a" / missing).unlink()
    assert rooms(tmp_path, "0::/a/b\n") == found


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    """Its membership names the path on the host, or one that leads out of what is mounted."""
    v2(tmp_path / "root", str(50 * MIB), 10 * MIB)
    for path in ("/docker/0123", "/../../docker/0123", "/"):
        assert rooms(tmp_path, f"0::{path}\n") == [40 * MIB]


def test_without_control_groups_there_is_no_limit(tmp_path: Path) -> None:
    assert host._cgroup_rooms(tmp_path / "none", tmp_path / "none") == []
    assert rooms(tmp_path, "") == []
    assert rooms(tmp_path, "0::/\n") == []


ASK = "from jaxnb.launch.host import available_bytes; print(available_bytes())"


def test_the_host_is_a_limit_and_more_than_the_limit_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host, "_cgroup_rooms", list)
    assert 0 < host.available_bytes() <= psutil.virtual_memory().total
    monkeypatch.setattr(host, "_cgroup_rooms", lambda: [-5])
    assert host.available_bytes() == 0


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
    with memory_group(limit) as file:
        asker = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        file.write_text(str(asker.pid))
        out, _ = asker.communicate("\n")
    assert limit // 2 < int(out) < limit


# ---------------------------------------------------------------------- GPUs


def put_nvidia_smi(folder: Path, script: str) -> None:
    """Writes a small program of that name, as a driver installs one."""
    program = folder / "nvidia-smi"
    program.write_text(script)
    program.chmod(0o755)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder on the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path


ASKED = '[ "$*" = "--query-gpu=index --format=csv,noheader" ] && '


@pytest.mark.parametrize(
    "program",
    [
        None,
        "#!/bin/sh\necho 'NVIDIA-SMI has failed because it could not reach the driver.'; exit 9\n",
        "#!/bin/sh\nexit 0\n",
        "#!/no/such/interpreter\n",
    ],
)
def test_a_driver_that_is_missing_or_has_no_card_is_no_gpu(
    folder: Path, program: str | None
) -> None:
    if program is not None:
        put_nvidia_smi(folder, program)
    assert visible_gpus() == visible_gpus({"CUDA_VISIBLE_DEVICES": "0"}) == ()


@pytest.mark.parametrize(
    ("visible", "seen"),
    [
        ("2", ("2",)),
        ("3,1", ("3", "1")),
        ("", ()),
        ("-1", ()),
        ("1,-1,2", ("1",)),
        ("1,9,2", ("1",)),
        ("GPU-8c2f,MIG-1a", ("GPU-8c2f", "MIG-1a")),
        ("NoDevFiles", ()),
    ],
)
def test_cuda_visible_devices_is_respected(
    folder: Path, visible: str, seen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    put_nvidia_smi(folder, f"#!/bin/sh\n{ASKED}printf '0\\n1\\n2\\n3\\n'\n")
    assert visible_gpus() == ("0", "1", "2", "3")
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": visible}) == seen
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert visible_gpus() == seen


# ---------------------------------------------------------------------- processes that are stopped


def test_what_a_process_does() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        process.suspend()
        os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
        assert look(child.pid).state == "stopped"
        process.resume()
        assert look(child.pid).state in ("computing", "waiting")
        child.kill()
    assert look(child.pid) == ("dead", 0)
    assert look(os.getpid()).state == "computing"


def test_who_is_stopped_is_told_with_the_command() -> None:
    assert stopped_text({2: 77}, {}) == "process 2 is stopped: `kill -CONT 77` lets it go on"
    assert stopped_text({0: 5, 2: 77}, {}).endswith("`kill -CONT 5 77` lets them go on")
    assert stopped_text({}, {}) == ""
    both = stopped_text({0: 5, 2: 77, 3: 78}, {2: "ssh b", 3: "ssh b"})
    assert both.endswith("`kill -CONT 5` and `ssh b kill -CONT 77 78` let them go on")


def test_who_asks_for_no_progress_hears_who_is_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    untold("joining", "3 processes")
    untold(WAITING, "process 2 is stopped: `kill -CONT 77` lets it go on")
    told = capsys.readouterr().err
    assert "process 2 is stopped: `kill -CONT 77` lets it go on; new processes wait" in told
    assert "joining" not in told


def test_all_that_is_lost_is_named() -> None:
    lost = [Lost(f"v{i}", "lock", (0,), f"reason {i}") for i in range(MOST_NAMED)]
    lost += [Lost(f"state['{i}']", "lock", (0,), f"reason {i}") for i in range(100, 103)]
    lost += [Lost("other", "lock", (0,), "another reason")]
    lost += [Lost(f"old[{i}]", "lock", (0,), "a reason", is_old=True) for i in range(2)]
    text = str(Recovered((), (), tuple(lost), 0.5))
    assert "`v7` (lock) on process 0: reason 7; and 4 more, `state` (3 values) and `other`." in text
    assert "Lost before, and still: `old` (2 values)." in text
    ended = {0: "was stopped", 2: "was stopped", 3: "did not answer"}
    text = str(Recovered((0, 2, 3), (), (), 0.5, given_up=ended))
    assert (
        "Processes 0,2 were stopped, and were ended by force. Process 3 did not answer, and" in text
    )


def test_after_an_interrupt_a_stopped_process_is_told_as_one() -> None:
    stopped = "process 1 is stopped (`kill -CONT 7`)"
    said = silent_text([1], {}, 4.0, caught=False, press="Interrupt", stopped=stopped)
    assert "Process 1 is stopped (`kill -CONT 7`). Interrupt again" in said
