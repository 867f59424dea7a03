"""What the tests of pulls and pushes that go wrong have in common."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from jaxnb.arrays import moving
from jaxnb.errors import JaxnbError, ProcessDiedError, SessionBrokenError
from jaxnb.session import Session
from jaxnb.wire import peer_memory
from support.faults import pressing_beside
from support.fixtures import PATIENT_SECONDS, until

PROCESSES = 3


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

OPEN_TRANSFERS = """
import gc
sum(len(o._open) for o in gc.get_objects() if type(o).__name__ == "Exposures")
"""


def expected() -> np.ndarray[Any, Any]:
    return np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)


def use_path(
    session: Session, path: str, monkeypatch: pytest.MonkeyPatch, *, small: bool = True
) -> None:
    """Sends the data of a group through memory or through messages, in small pieces."""
    if path == "messages":
        monkeypatch.setenv(peer_memory.SWITCH, "0")
    else:
        monkeypatch.delenv(peer_memory.SWITCH, raising=False)
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

    def acting(move: Callable[[int, Any], None]) -> Callable[[int, Any], None]:
        def work(pid: int, pieces: Any) -> None:
            # One thread at a time: else the other might have done the rest by now.
            with lock:
                is_amid = any(p.move.process_index == which and p.offset for p in pieces)
                if is_amid and not acted.is_set():
                    acted.set()
                    act()
                move(pid, pieces)

        return work

    for name in ("_read_direct", "_write_direct"):
        monkeypatch.setattr(moving, name, acting(getattr(moving, name)))
    return acted


class Called:
    """Does something, and remembers that it has been asked to."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._act = act
        self.was_called = False

    def __call__(self) -> None:
        self.was_called = True
        self._act()


def kill(pid: int) -> None:
    """Kills a process and waits until it is dead."""
    os.kill(pid, signal.SIGKILL)

    def is_dead() -> bool:
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        return True

    until(is_dead, f"process {pid} was dead")


def press_interrupt() -> None:
    """What Jupyter does: SIGINT to the notebook's process."""
    os.kill(os.getpid(), signal.SIGINT)


@contextmanager
def pressed_when_asked(session: Session) -> Iterator[None]:
    """Presses interrupt once the main threads of all processes are in a request."""

    def press_when_asked(press: Callable[[], None]) -> None:
        until(lambda: session._work.channel is not None, "processes were asked")
        threading.Event().wait(0.2)  # most have begun then; who has not, is interrupted too
        press()

    with pressing_beside(press_when_asked):
        yield


def bears_interrupts(seed: int, seconds: float, attempt: Callable[[int], None]) -> Iterator[bool]:
    """Tries something many times, and interrupts it at any moment; tells each time if it ended.

    Args:
        seed: Of the moments.
        seconds: The latest moment after a try has begun.
        attempt: What is tried, with the number of the try; -1 is not interrupted.
    """
    chance = np.random.default_rng(seed)
    attempt(-1)  # imports what is imported late: an import that is interrupted leaves files open
    for n in range(40):
        done, problem = False, None
        timer = threading.Timer(chance.random() * seconds, press_interrupt)
        try:
            timer.start()
            try:
                attempt(n)
                done = True
            except Exception as error:
                problem = error
            timer.join()
            threading.Event().wait(0.05)  # what has not struck yet strikes here
        except KeyboardInterrupt:
            timer.join()
        if problem is not None:
            raise problem
        yield done


def assert_names_who_dies_halfway(
    session: Session,
    path: str,
    which: int,
    move: Callable[[], object],
    doing: str,
    monkeypatch: Any,
) -> None:
    """Kills a process halfway; fails unless the error says so."""
    pid = session.processes[which].pid
    die = Called(lambda: kill(pid))
    at_half(session, path, die, which, monkeypatch)
    with pytest.raises(ProcessDiedError) as caught:
        move()
    assert die.was_called
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

    try:
        with pytest.raises(JaxnbError, match=f"rocess {which}") as caught:
            move_until_it_fails()
    finally:
        timer.cancel()
        timer.join()
    return which, caught.value


def assert_ends_with_its_group(
    session: Session, path: str, move: Callable[[], object], monkeypatch: Any
) -> None:
    """Restarts a group while something is moved, which has to fail."""
    halfway, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        halfway.set()
        assert go_on.wait(PATIENT_SECONDS)

    at_half(session, path, wait, 1, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        moved = pool.submit(move)
        assert halfway.wait(PATIENT_SECONDS)
        conversation = session._work.channel
        assert conversation is not None
        ended = pool.submit(session.restart)
        until(lambda: conversation._abandoned is not None, "the group was being ended")
        go_on.set()
        with pytest.raises(SessionBrokenError, match="while data were on the way"):
            moved.result(PATIENT_SECONDS)
        ended.result(PATIENT_SECONDS)


def assert_nothing_open(session: Session) -> None:
    """Fails if a process keeps a buffer of a transfer that has ended."""
    result = session.run(OPEN_TRANSFERS)
    assert {i: r.value for i, r in result.per_process.items()} == dict.fromkeys(
        result.per_process, 0
    )
