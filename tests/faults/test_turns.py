"""Cells in other threads: their order, and closing, restarting, interrupting beside them."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jaxnb.arrays.moving import request_for
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import (
    CellError,
    SessionBrokenError,
    SessionClosedError,
)
from jaxnb.session import Session
from jaxnb.wire import client, messages
from support.fixtures import PATIENT_SECONDS, assert_usable, until

ENDLESS = "import time\nprint('in')\nwhile True: time.sleep(0.01)"


class Began(NoSink):
    """A sink that tells when a cell has printed."""

    def __init__(self) -> None:
        self.event = threading.Event()

    def lines(self, lines: list[Any]) -> None:
        self.event.set()


@pytest.fixture
def beside(session: Session) -> Any:
    """Runs a cell in another thread; returns its future once the cell has begun."""
    with ThreadPoolExecutor(10) as pool:

        def start(group: Session, code: str = ENDLESS, **settings: Any) -> Any:
            sink = Began()
            future = pool.submit(group.run, code, sink=sink, **settings)
            assert sink.event.wait(PATIENT_SECONDS)
            return future

        yield start


def test_cells_run_in_the_order_in_which_they_were_asked_for(
    session: Session, beside: Callable[..., Any]
) -> None:
    session.run("order = []")
    first = beside(session)
    threads = []
    queue = session._work.turns._queue
    for n in range(8):
        thread = threading.Thread(target=session.run, args=(f"order.append({n})",))
        thread.start()
        threads.append(thread)
        until(lambda n=n: len(queue) > n + 1, f"cell {n} had its place in line")
    session.interrupt()
    assert isinstance(first.exception(PATIENT_SECONDS), CellError)
    for thread in threads:
        thread.join()
    assert session.run("order").value == list(range(8))


def test_a_waiting_cell_can_be_interrupted_alone(
    session: Session, beside: Callable[..., Any]
) -> None:
    first = beside(session)
    sink = NoSink()
    told, mine = threading.Event(), threading.Event()
    sink.notice = lambda text: told.set()  # type: ignore[method-assign]
    with ThreadPoolExecutor(1) as pool:
        second = pool.submit(session.run, "1", sink=sink, interrupted=mine)
        assert told.wait(PATIENT_SECONDS)
        mine.set()
        with pytest.raises(KeyboardInterrupt, match="nothing was run"):
            second.result(PATIENT_SECONDS)
    assert not first.done()
    session.interrupt()
    assert isinstance(first.exception(PATIENT_SECONDS), CellError)
    assert_usable(session)


def test_restart_ends_a_running_cell_and_close_a_waiting_one_too(
    make_session: Callable[..., Session], beside: Callable[..., Any]
) -> None:
    group = make_session(2)
    running = beside(group)
    group.restart()
    with pytest.raises(SessionBrokenError, match="restarted"):
        running.result(PATIENT_SECONDS)
    assert_usable(group)
    running = beside(group)
    with ThreadPoolExecutor(1) as pool:
        sink = NoSink()
        told = threading.Event()
        sink.notice = lambda text: told.set()  # type: ignore[method-assign]
        waiting = pool.submit(group.run, "1", sink=sink)
        assert told.wait(PATIENT_SECONDS)
        group.close()
        for future in (running, waiting):
            with pytest.raises(SessionClosedError):
                future.result(PATIENT_SECONDS)


@pytest.mark.timing
def test_interrupts_at_any_moment_leave_the_group_usable(session: Session) -> None:
    """Straight to the processes: before, in and after their cells."""
    chance = random.Random(7)
    for _ in range(60):
        pids = [p.pid for p in session.processes]
        timer = threading.Timer(
            chance.random() * 0.02, lambda pids=pids: [os.kill(p, signal.SIGINT) for p in pids]
        )
        timer.start()
        try:
            session.run("sum(range(30000))", raise_on_error=False, timeout=PATIENT_SECONDS)
        finally:
            timer.join()
    assert_usable(session)


def test_a_reply_comes_though_many_others_have_come_since(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "REQUESTS_KEPT", 4)
    transport, pid = session._life.transport, session.processes[1].pid
    late, request = messages.Exchange(), request_for("pushes.release", transfer="none")
    os.kill(pid, signal.SIGSTOP)
    try:
        transport.send_to(late, 1, request)
        for _ in range(8):
            other = messages.Exchange()
            transport.send_to(other, 0, request)
            assert isinstance(other.get(PATIENT_SECONDS), messages.Reply)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert isinstance(late.get(PATIENT_SECONDS), messages.Reply)
    assert_usable(session)
