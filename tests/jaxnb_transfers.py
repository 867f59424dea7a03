"""What the tests of pulls and pushes that go wrong have in common."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from jaxnb import asking, moving
from jaxnb.errors import JaxnbError, ProcessDiedError, SessionBrokenError, SessionClosedError
from jaxnb.session import Session
from jaxnb.transport import memory

PROCESSES = 3

SOON_SECONDS = 10.0
"""Long before anybody's patience ends, on a busy machine too. Benchmarks measure how soon."""

PATHS = ["direct", "messages"]

SHARDED = """
mesh = jax.make_mesh((jax.device_count(),), ("data",))
def spread(shape, spec, start=0.0):
    whole = np.arange(start, start + np.prod(shape), dtype=np.float32).reshape(shape)
    return jax.make_array_from_callback(shape, NamedSharding(mesh, spec), lambda i: whole[i])
"""
"""Makes arrays whose elements are their own flat indices."""

ROWS, COLUMNS = 48, 1 << 16
NBYTES = ROWS * COLUMNS * 4
PIECE_BYTES = 1 << 20
"""So small that each of three processes has four pieces of the 12 MiB."""

OPEN_BYTES = """
import gc
sum(o.open_bytes for o in gc.get_objects() if type(o).__name__ == "Exposures")
"""


def expected() -> np.ndarray[Any, Any]:
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


def use_path(
    session: Session, path: str, monkeypatch: pytest.MonkeyPatch, *, small: bool = True
) -> None:
    """Sends the data of a group through memory or through messages, in small pieces."""
    if path == "messages":
        monkeypatch.setenv(memory.SWITCH, "0")
    else:
        monkeypatch.delenv(memory.SWITCH, raising=False)
    if small:
        monkeypatch.setattr(moving, "PIECE_BYTES", PIECE_BYTES)
        monkeypatch.setattr(moving, "CHUNK_BYTES", PIECE_BYTES // 4)
    session._puller._mover._reach.clear()


def assert_path(session: Session, path: str) -> None:
    """Fails if data went another way than the test is about."""
    reach = set(session._puller._mover._reach.values())
    assert reach == {path == "direct"}


class Meter:
    """Calls something once, in the thread that waits, when some bytes have been moved."""

    def __init__(self, act: Callable[[], None], after_bytes: int = NBYTES // 4) -> None:
        self._act = act
        self._after_bytes = after_bytes
        self.acted = threading.Event()
        self.done_bytes = 0

    @contextmanager
    def __call__(self, label: str, total_bytes: int) -> Iterator[Callable[[int], None]]:
        yield lambda done_bytes: self._tick(done_bytes, total_bytes)

    def _tick(self, done_bytes: int, total_bytes: int) -> None:
        self.done_bytes = done_bytes
        if self._after_bytes <= done_bytes < total_bytes and not self.acted.is_set():
            self.acted.set()
            self._act()


def at_half(
    session: Session, path: str, act: Callable[[], None], which: int, monkeypatch: Any
) -> threading.Event:
    """Calls something once, when a process has given or got some of its bytes and not all.

    By messages the processes answer in turns: after a quarter of all bytes none is through.
    The threads that copy memory run ahead of the meter, so there it is one of them that calls.
    """
    if path == "messages":
        meter = Meter(act)
        session.meter = meter
        return meter.acted
    acted, lock = threading.Event(), threading.Lock()

    def acting(move: Callable[[Any], None]) -> Callable[[Any], None]:
        def work(piece: Any) -> None:
            # One thread at a time: else the other might have done the rest by now.
            with lock:
                if piece.move.process_index == which and piece.offset and not acted.is_set():
                    acted.set()
                    act()
                move(piece)

        return work

    for name in ("_read_direct", "_write_direct"):
        monkeypatch.setattr(moving, name, acting(getattr(moving, name)))
    return acted


class Timed:
    """Does something, and remembers when it had been done."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self._done_at: float | None = None

    def __call__(self) -> None:
        self._act()
        self._done_at = time.monotonic()

    def assert_recent(self, seconds: float = SOON_SECONDS) -> None:
        """Fails if it was not done, or longer ago."""
        assert self._done_at is not None
        assert time.monotonic() - self._done_at < seconds


def kill(pid: int) -> None:
    """Kills a process and waits until it is dead."""
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return
        except psutil.NoSuchProcess:
            return
        time.sleep(0.001)
    raise AssertionError(f"process {pid} did not die")


def press_interrupt() -> None:
    """What Jupyter does: SIGINT to the notebook's process."""
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def pressed_when_asked(session: Session) -> Iterator[Timed]:
    """Presses interrupt once the main threads of all processes are in a request."""
    press = Timed(press_interrupt)

    def wait_and_press() -> None:
        deadline = time.monotonic() + 20
        while session._conversations.current is None and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.2)
        press()

    presser = threading.Thread(target=wait_and_press)
    presser.start()
    try:
        yield press
    finally:
        presser.join()


def bears_interrupts(seed: int, seconds: float, attempt: Callable[[int], None]) -> Iterator[bool]:
    """Tries something many times, and interrupts it at any moment; tells each time if it ended.

    Args:
        seed: Of the moments.
        seconds: The latest moment after a try has begun.
        attempt: What is tried, with the number of the try.
    """
    chance = np.random.default_rng(seed)
    for n in range(40):
        timer = threading.Timer(chance.random() * seconds, press_interrupt)
        done = False
        try:
            timer.start()
            attempt(n)
            done = True
            timer.join()
            time.sleep(1)  # if the interrupt has not struck yet, it strikes here
        except KeyboardInterrupt:
            timer.join()
        yield done


def assert_names_who_dies_halfway(
    session: Session,
    path: str,
    which: int,
    move: Callable[[], object],
    doing: str,
    monkeypatch: Any,
) -> None:
    """Kills a process halfway; fails unless the error says so, and soon."""
    pid = session.processes[which].pid
    die = Timed(lambda: kill(pid))
    at_half(session, path, die, which, monkeypatch)
    with pytest.raises(ProcessDiedError) as caught:
        move()
    die.assert_recent()
    assert_path(session, path)
    error = caught.value
    assert (error.process_index, error.pid) == (which, pid)
    who = f"Process {which} of {PROCESSES} (pid {pid})"
    for part in (f"{who} was killed by SIGKILL while {doing}.", "%spmd_restart"):
        assert part in str(error)
    assert session.state == "broken"


def until_someone_dies(
    session: Session, seed: int, move: Callable[[], None]
) -> tuple[int, JaxnbError]:
    """Moves again and again, and kills a process at any moment.

    Returns:
        Which process, and the error, which names it.
    """
    chance = np.random.default_rng(seed)
    which = int(chance.integers(PROCESSES))
    move()
    timer = threading.Timer(chance.random() * 0.1, os.kill, (session.processes[which].pid, 9))
    timer.start()

    def move_until_it_fails() -> None:
        while True:
            move()

    with pytest.raises(JaxnbError, match=f"rocess {which}") as caught:
        move_until_it_fails()
    timer.join()
    return which, caught.value


def assert_ends_with_its_group(
    session: Session, path: str, end: str, move: Callable[[], object], monkeypatch: Any
) -> None:
    """Ends a group while something is moved, which has to fail, and soon."""
    halfway, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        halfway.set()
        assert go_on.wait(20)

    at_half(session, path, wait, 1, monkeypatch)
    kind = {"restart": SessionBrokenError, "close": SessionClosedError}[end]
    with ThreadPoolExecutor(2) as pool:
        moved = pool.submit(move)
        assert halfway.wait(20)
        conversation = session._conversations.current
        assert conversation is not None
        ended = pool.submit(getattr(session, end))
        while conversation._abandoned is None:
            time.sleep(0.001)
        go_on.set()
        started = time.monotonic()
        with pytest.raises(kind, match="while data were on the way"):
            moved.result(20)
        assert time.monotonic() - started < SOON_SECONDS
        ended.result(20)


def shorten_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives silent processes one second, however much there is to move."""
    monkeypatch.setattr(asking, "REPLY_SECONDS", 1.0)
    monkeypatch.setattr(asking, "BYTES_PER_SECOND", 1e12)


def assert_nothing_open(session: Session) -> None:
    """Fails if a process keeps a buffer of a transfer that has ended."""
    result = session.run(OPEN_BYTES)
    assert {i: r.value for i, r in result.per_process.items()} == dict.fromkeys(
        result.per_process, 0
    )
