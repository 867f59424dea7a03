"""Memory of another process is read and written whole, checked, and only of the right one."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxnb.arrays import moving
from jaxnb.arrays.moving import Move, Mover
from jaxnb.arrays.regions import boxes
from jaxnb.errors import JaxnbError
from jaxnb.model.arrays import Exposure, MemoryPass
from jaxnb.wire import peer_memory
from jaxnb.wire.asking import Channel

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@given(shapes, st.integers(1, 200), st.booleans())
def test_boxes_are_all_elements_in_order(shape: tuple[int, ...], limit: int, turned: bool) -> None:
    array = np.arange(np.prod(shape, dtype=int), dtype=np.int32).reshape(shape)
    array = array.T if turned else array
    found = list(boxes(array, limit))
    assert all(box.nbytes <= max(limit, array.itemsize) for box in found)
    flat = [box.reshape(-1) for box in found]
    np.testing.assert_array_equal(np.concatenate([*flat, []]), array.reshape(-1))
    assert all(np.shares_memory(box, array) for box in found if box.size)


class Group:
    """This process's memory in the place of a process's, and a channel to nobody."""

    def __init__(self) -> None:
        self.interrupted = threading.Event()
        self.signals: list[tuple[list[int], int]] = []
        self.channel = Channel(
            None,  # type: ignore[arg-type]  # nothing is asked
            list,
            {},
            1,
            self.interrupted,
            lambda indices, sig: self.signals.append((indices, sig)),
            lambda: None,
            lambda text: None,
            dict,
            lambda indices: "",
        )
        self._nonce = np.frombuffer(os.urandom(16), np.uint8)

    def move(self, there: np.ndarray[Any, Any], here: np.ndarray[Any, Any], **more: Any) -> Move:
        access = MemoryPass(os.getpid(), self._nonce.ctypes.data, self._nonce.tobytes())
        return Move(0, access, "t", Exposure(0, there.ctypes.data, there.nbytes), here, **more)


@pytest.fixture
def group() -> Group:
    return Group()


@pytest.fixture(params=[64, 1 << 10, 1 << 30], ids=["tiny", "small", "whole"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(moving, "PIECE_BYTES", request.param)
    monkeypatch.setattr(moving, "SCRATCH_BYTES", request.param // 2)
    return int(request.param)


@pytest.fixture(params=[0, 1 << 30], ids=["threads", "inline"])
def inline_below(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(moving, "INLINE_BYTES", request.param)
    return int(request.param)


LAYOUTS = {
    "contiguous": lambda a: a,
    "rows": lambda a: a[::2],
    "columns": lambda a: a[:, 1:-1],
    "turned": lambda a: a.T,
    "backwards": lambda a: a[::-1, ::-1],
}


@pytest.mark.usefixtures("pieces", "inline_below")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_is_read_stands_where_it_belongs(group: Group, layout: str) -> None:
    whole = np.full((40, 30), -1.0)
    here = LAYOUTS[layout](whole)
    there = np.arange(here.size, dtype=float).reshape(here.shape)
    done: list[int] = []
    mover = Mover(lambda: meter(done))
    mover.read(group.channel, [group.move(there, here)], "`x`")
    np.testing.assert_array_equal(here, there)
    assert (whole == -1).sum() == whole.size - here.size
    assert done == sorted(done)
    assert done[-1] == there.nbytes


@pytest.mark.usefixtures("pieces", "inline_below")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float64", "float32", "complex64"])
def test_what_is_written_is_converted(group: Group, layout: str, dtype: str) -> None:
    here = LAYOUTS[layout](np.arange(1200.0).reshape(40, 30))
    there = np.full(here.shape, -1, dtype)
    move = group.move(there, here, dtype=np.dtype(dtype))
    done: list[int] = []
    Mover(lambda: meter(done)).write(group.channel, [move], "`x`")
    np.testing.assert_array_equal(there, here.astype(dtype))
    assert done[-1] == there.nbytes


@pytest.mark.usefixtures("inline_below")
@pytest.mark.filterwarnings("error")
def test_infinities_stay_without_a_warning(group: Group) -> None:
    here, there = np.array([np.inf, -np.inf, np.nan, 1e-300] * 8), np.zeros(32, np.float32)
    Mover(lambda: moving.no_meter).write(
        group.channel, [group.move(there, here, dtype=there.dtype)], "`x`"
    )
    np.testing.assert_array_equal(there[:4], [np.inf, -np.inf, np.nan, 0])


def meter(done: list[int]) -> Any:
    @contextmanager
    def shown(label: str, total_bytes: int) -> Iterator[Any]:
        yield done.append

    return shown


@pytest.mark.usefixtures("inline_below")
def test_an_error_in_a_thread_is_raised_and_no_thread_is_left(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(moving, "_read_direct", fail)
    with pytest.raises(ZeroDivisionError):
        Mover(lambda: moving.no_meter).read(
            group.channel, [group.move(np.ones(100), np.ones(100))], "`x`"
        )
    assert not [t for t in threading.enumerate() if t.name.startswith("jaxnb-move")]


def test_an_interrupt_and_an_abandonment_end_a_move(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving, "INLINE_BYTES", 0)
    monkeypatch.setattr(moving, "PIECE_BYTES", 800)
    there, here = np.ones(1000), np.zeros(1000)
    mover = Mover(lambda: moving.no_meter)
    group.interrupted.set()
    with pytest.raises(KeyboardInterrupt):
        mover.read(group.channel, [group.move(there, here)], "`x`")
    group.channel.abandon(JaxnbError("the group is no more"))
    with pytest.raises(JaxnbError, match="no more"):
        mover.read(group.channel, [group.move(there, here)], "`x`")
    assert not [t for t in threading.enumerate() if t.name.startswith("jaxnb-move")]


def test_reach_is_asked_once_for_each_pass(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    original = moving.peer_memory.is_within_reach

    def ask(pid: int, address: int, nonce: bytes) -> bool:
        asked.append(pid)
        return original(pid, address, nonce)

    monkeypatch.setattr(moving.peer_memory, "is_within_reach", ask)
    mover = Mover(lambda: moving.no_meter)
    for _ in range(3):
        here = np.zeros(10)
        mover.read(group.channel, [group.move(np.ones(10), here)], "`x`")
        assert here.all()
    assert asked == [os.getpid()]


# ---------------------------------------------------------------------- one call


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
    peer_memory.read(os.getpid(), (there.ctypes.data, here))
    np.testing.assert_array_equal(here, there)
    peer_memory.write(os.getpid(), (there.ctypes.data, here * 2))
    np.testing.assert_array_equal(there, here * 2)


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
    peer_memory.read(os.getpid(), (there.ctypes.data, here))
    np.testing.assert_array_equal(here, there)
    peer_memory.write(os.getpid(), (there.ctypes.data, here[::-1].copy()))
    np.testing.assert_array_equal(there, here[::-1])
    assert reads == writes == [16] * 6 + [5]


def test_several_arrays_are_moved_by_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    original = peer_memory._READ

    def cut(pid: int, here: Any, n: int, there: Any, m: int, flags: int) -> int:
        """The system call, as it may end: amid an array, or between two."""
        few = max(1, n - len(calls))
        cut_off = here[few - 1].length > 1
        there[few - 1].length -= cut_off
        here[few - 1].length -= cut_off
        calls.append(original(pid, here, few, there, few, flags))
        return calls[-1]

    monkeypatch.setattr(peer_memory, "_READ", cut)
    monkeypatch.setattr(peer_memory, "MOST_AT_ONCE", 7)
    there = [np.arange(i, dtype=np.uint8) for i in range(20)]
    here = [np.zeros_like(each) for each in there]
    peer_memory.read(os.getpid(), *zip((each.ctypes.data for each in there), here, strict=True))
    for one, other in zip(here, there, strict=True):
        np.testing.assert_array_equal(one, other)
    assert sum(calls) == sum(range(20))


def test_a_call_that_moves_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_memory, "_READ", lambda *_: 0)
    with pytest.raises(OSError, match="cannot be reached"):
        peer_memory.read(os.getpid(), (0, np.zeros(1)))


@pytest.mark.parametrize("move", [peer_memory.read, peer_memory.write])
def test_an_array_with_gaps_is_refused(move: Callable[..., None]) -> None:
    there, here = np.ones(100), np.zeros(200)
    with pytest.raises(ValueError, match="C-contiguous"):
        move(os.getpid(), (there.ctypes.data, here[::2]))
    assert there.all()
    assert not here.any()


def test_an_array_that_must_not_be_written_to_is_refused() -> None:
    there, here = np.ones(4, np.uint8), np.frombuffer(b"text", dtype=np.uint8)
    with pytest.raises(ValueError, match="cannot be written to"):
        peer_memory.read(os.getpid(), (there.ctypes.data, here))
    assert here.tobytes() == b"text"


@pytest.mark.parametrize("move", [peer_memory.read, peer_memory.write])
def test_errors_say_which_process_and_why(move: Callable[..., None], ended_pid: int) -> None:
    with pytest.raises(OSError, match=rf"process id {ended_pid} .*: No such process"):
        move(ended_pid, (4096, np.zeros(4)))
    with pytest.raises(OSError, match=rf"process id {os.getpid()} .*: Bad address") as caught:
        move(os.getpid(), (8, np.zeros(4)))
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


def test_another_nonce_or_process_is_not_within_reach(
    nonce: np.ndarray[Any, Any], ended_pid: int
) -> None:
    mine, address, right = os.getpid(), nonce.ctypes.data, nonce.tobytes()
    for here in ((mine, address, os.urandom(16)), (mine, address + 1, right), (mine, 8, right)):
        assert not peer_memory.is_within_reach(*here)
    for pid in (1, os.getppid(), ended_pid):
        assert not peer_memory.is_within_reach(pid, address, right)


STRANGER = """
import os, sys
import numpy as np
room = np.frombuffer(bytearray(b"stranger" * 1000), np.uint8)
print(os.getpid(), room.ctypes.data, flush=True)
sys.stdin.readline()
print(room.tobytes() == b"stranger" * 1000, flush=True)
"""


def test_nothing_is_written_to_a_process_that_happens_to_have_the_pid(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process on another host has told its pid, which here is another process's of this user."""
    requests: list[Any] = []

    def ask_all(asked: dict[int, Any]) -> Iterator[tuple[int, None]]:
        for index, each in asked.items():
            for request in each:
                requests.append(request)
                yield index, None

    monkeypatch.setattr(group.channel, "ask_all", ask_all)
    words = [sys.executable, "-c", STRANGER]
    with subprocess.Popen(words, stdin=-1, stdout=subprocess.PIPE, text=True) as stranger:
        assert stranger.stdout is not None
        pid, address = map(int, stranger.stdout.readline().split())
        assert peer_memory.is_within_reach(pid, address, b"strangerstranger")
        access = MemoryPass(pid, address, os.urandom(16))
        here = np.ones(4000, np.uint8)
        move = Move(0, access, "t", Exposure(0, address + 16, here.nbytes), here)
        Mover(lambda: moving.no_meter).write(group.channel, [move], "`x`")
        assert stranger.communicate("\n")[0] == "True\n"
    assert [request.arguments["data"].raw().tobytes() for request in requests] == [here.tobytes()]
