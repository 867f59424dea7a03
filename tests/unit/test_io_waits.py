"""Which input or output a thread waits in; with real threads, files and children."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jaxnb.engine.io_waits import io_waited_in

pytestmark = pytest.mark.timing


@contextmanager
def thread_in(wait: Callable[[], Any], end: Callable[[], Any]) -> Iterator[int]:
    thread = threading.Thread(target=wait)
    thread.start()
    try:
        yield thread.native_id or 0
    finally:
        end()
        thread.join()


def said_of(wait: Callable[[], Any], end: Callable[[], Any]) -> str:
    """Returns what is said of a thread once it waits; it is looked at until something is."""
    with thread_in(wait, end) as thread:
        deadline = time.monotonic() + 10
        while not (said := io_waited_in(thread)) and time.monotonic() < deadline:
            time.sleep(0.01)
        return said


def test_a_pipe_and_a_socket() -> None:
    reading, writing = os.pipe()
    assert said_of(lambda: os.read(reading, 1), lambda: os.write(writing, b"x")) == "reading a pipe"
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    assert said_of(poll.poll, lambda: os.write(writing, b"x")) == "waiting for a pipe"
    os.close(reading)
    os.close(writing)
    here, there = socket.socketpair()
    with here, there:
        assert said_of(lambda: here.recv(1), lambda: there.send(b"x")) == "reading a socket"


def test_a_fifo(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    said = said_of(lambda: path.open().close(), lambda: path.open("w").close())
    assert said == f"opening {path}"


def test_a_child() -> None:
    with subprocess.Popen(["sleep", "1000"]) as child:
        said = said_of(lambda: os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT), child.kill)
        assert said == f"waiting for child process {child.pid} (sleep)"
        assert child.wait() != 0


def test_what_is_no_input_or_output() -> None:
    gate = threading.Lock()
    gate.acquire()
    with thread_in(gate.acquire, gate.release) as thread:
        assert io_waited_in(thread) == ""
    assert io_waited_in(1 << 30) == ""  # there is none
    ended = threading.Event()
    with thread_in(lambda: select.select([], [], [], 0.5), ended.set) as thread:
        assert io_waited_in(thread) == ""
