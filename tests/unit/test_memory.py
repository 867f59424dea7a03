"""Reading and writing memory of a process: whole, checked, and only of the right one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jaxnb.wire import peer_memory

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="process_vm_readv is Linux's"
)


@pytest.fixture
def nonce() -> np.ndarray[Any, Any]:
    return np.frombuffer(os.urandom(16), dtype=np.uint8)


@pytest.fixture
def ended_pid() -> int:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_an_array_is_read_and_written_whole() -> None:
    there = np.arange(1000, dtype=np.int64)
    here = np.zeros_like(there)
    peer_memory.read(os.getpid(), there.ctypes.data, here)
    np.testing.assert_array_equal(here, there)
    peer_memory.write(os.getpid(), there.ctypes.data, here * 2)
    np.testing.assert_array_equal(there, here * 2)


def test_nothing_is_moved_for_an_array_of_no_bytes() -> None:
    peer_memory.read(os.getpid(), 0, np.empty(0))
    peer_memory.write(os.getpid(), 0, np.empty((3, 0)))


def at_most(call: Callable[..., int], nbytes: int, calls: list[int]) -> Callable[..., int]:
    """The system call, moving no more at once, as the kernel does beyond 2 GiB."""

    def limited(pid: int, here: Any, n: int, there: Any, m: int, flags: int) -> int:
        for vector in (here, there):
            iovec = ctypes.cast(vector, ctypes.POINTER(peer_memory._IoVec)).contents
            iovec.length = min(iovec.length, nbytes)
        calls.append(call(pid, here, n, there, m, flags))
        return calls[-1]

    return limited


def test_what_the_kernel_moves_in_parts_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    writes: list[int] = []
    monkeypatch.setattr(peer_memory, "_READ", at_most(peer_memory._READ, 16, reads))
    monkeypatch.setattr(peer_memory, "_WRITE", at_most(peer_memory._WRITE, 16, writes))
    there = np.arange(101, dtype=np.uint8)
    here = np.zeros_like(there)
    peer_memory.read(os.getpid(), there.ctypes.data, here)
    np.testing.assert_array_equal(here, there)
    peer_memory.write(os.getpid(), there.ctypes.data, here[::-1].copy())
    np.testing.assert_array_equal(there, here[::-1])
    assert reads == writes == [16] * 6 + [5]


def test_a_call_that_moves_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_memory, "_READ", lambda *_: 0)
    with pytest.raises(OSError, match="cannot be reached"):
        peer_memory.read(os.getpid(), 0, np.zeros(1))


@pytest.mark.parametrize("move", [peer_memory.read, peer_memory.write])
def test_an_array_with_gaps_is_refused(move: Callable[..., None]) -> None:
    there, here = np.ones(100), np.zeros(200)
    with pytest.raises(ValueError, match="C-contiguous"):
        move(os.getpid(), there.ctypes.data, here[::2])
    assert there.all()
    assert not here.any()


def test_an_array_that_must_not_be_written_to_is_refused() -> None:
    there, here = np.ones(4, np.uint8), np.frombuffer(b"text", dtype=np.uint8)
    with pytest.raises(ValueError, match="cannot be written to"):
        peer_memory.read(os.getpid(), there.ctypes.data, here)
    assert here.tobytes() == b"text"


@pytest.mark.parametrize("move", [peer_memory.read, peer_memory.write])
def test_errors_say_which_process_and_why(move: Callable[..., None], ended_pid: int) -> None:
    with pytest.raises(OSError, match=rf"process id {ended_pid} .*: No such process"):
        move(ended_pid, 4096, np.zeros(4))
    with pytest.raises(OSError, match=rf"process id {os.getpid()} .*: Bad address") as caught:
        move(os.getpid(), 8, np.zeros(4))
    assert caught.value.errno == 14


def test_a_process_is_within_reach_if_its_nonce_is_there(
    nonce: np.ndarray[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(peer_memory.SWITCH, raising=False)
    here = (os.getpid(), nonce.ctypes.data, nonce.tobytes())
    assert peer_memory.is_within_reach(*here)
    monkeypatch.setenv(peer_memory.SWITCH, "0")
    assert not peer_memory.is_within_reach(*here)
    monkeypatch.setenv(peer_memory.SWITCH, "1")
    assert peer_memory.is_within_reach(*here)
    monkeypatch.setattr(peer_memory, "_WRITE", None)
    assert not peer_memory.is_within_reach(*here)


def test_another_nonce_is_not_within_reach(nonce: np.ndarray[Any, Any]) -> None:
    address = nonce.ctypes.data
    assert not peer_memory.is_within_reach(os.getpid(), address, os.urandom(16))
    assert not peer_memory.is_within_reach(os.getpid(), address + 1, nonce.tobytes())
    assert not peer_memory.is_within_reach(os.getpid(), 8, nonce.tobytes())


def test_another_process_is_not_within_reach(nonce: np.ndarray[Any, Any], ended_pid: int) -> None:
    for pid in (1, os.getppid(), ended_pid):
        assert not peer_memory.is_within_reach(pid, nonce.ctypes.data, nonce.tobytes())
