"""What the tests of pulls and pushes that go wrong have in common."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import pytest

from jaxnb import moving
from jaxnb.session import Session
from jaxnb.transport import memory

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


def assert_nothing_open(session: Session) -> None:
    """Fails if a process keeps a buffer of a transfer that has ended."""
    result = session.run(OPEN_BYTES)
    assert {i: r.value for i, r in result.per_process.items()} == dict.fromkeys(
        result.per_process, 0
    )
