"""Processes that wait for something of their own: shown, and never freed unasked."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faults.test_freeing import (
    PROCESSES,
    SETUP,
    Panels,
    assert_kept,
    press_interrupt,
)
from jaxnb import freeing
from jaxnb.errors import CellError
from jaxnb.session import Session
from jaxnb.stalls.standing import Standing

pytestmark = pytest.mark.timing

ALL = tuple(range(PROCESSES))

LOCKED = {
    "queue": "import queue; queue.Queue().get()",
    "event": "threading.Event().wait()",
    "barrier": "threading.Barrier(2).wait()",
    "thread": "gate = threading.Lock(); gate.acquire()\n"
    "def take(): threading.Event().wait()\n"
    "other = threading.Thread(target=take, daemon=True); other.start(); other.join()",
    "future": "from concurrent.futures import Future, ThreadPoolExecutor\n"
    "pool = ThreadPoolExecutor(2); pool.submit(int).result(); Future().result()",
}

# Each ends when the file is opened for writing, and something else than a lock is waited for.
GOES_ON = {
    "a thread that reads": "other = threading.Thread(target=lambda: open({path!r}).close())\n"
    "other.start(); other.join()",
    "a pool that reads": "from concurrent.futures import ThreadPoolExecutor\n"
    "ThreadPoolExecutor(1).submit(lambda: open({path!r}).close()).result()",
    "a child that reads": "import subprocess\n"
    "from concurrent.futures import ThreadPoolExecutor\n"
    "ThreadPoolExecutor(1).submit(subprocess.run, ['sh', '-c', f': < {path}']).result()",
    "an event with a time-out": "import os; opened = threading.Event()\n"
    "def read(): open({path!r}).close(); opened.set()\n"
    "threading.Thread(target=read).start()\n"
    "while not opened.wait(30): pass",
}


@pytest.fixture
def group(make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(freeing, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(freeing, "LEFT_BEHIND_SECONDS", 0.6)
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 1.0)
    session = make_session(PROCESSES, check="off")
    session.run(SETUP)
    return session


@pytest.mark.parametrize("kind", LOCKED)
def test_that_all_wait_for_something_of_their_own_is_shown(group: Session, kind: str) -> None:
    sink = Panels(press_interrupt)
    with pytest.raises(CellError) as caught:
        group.run(LOCKED[kind], sink=sink)
    assert {e.type_name for e in caught.value.result.errors.values()} == {"KeyboardInterrupt"}
    first, *_, last = sink.panels
    assert [(wait.processes, wait.last_dispatch) for wait in first.waits] == [(ALL, "")]
    assert first.cause == "lock"
    assert first.waits[0].place is not None
    assert first.waits[0].place.source == LOCKED[kind].splitlines()[-1]
    assert first.reason == (
        "Processes 0-2 wait for a lock, a queue or a thread of their own, and none of their "
        "Python threads runs."
    )
    assert last.has_ended
    assert_kept(group)


def test_who_others_wait_for_is_shown_with_its_lock(group: Session) -> None:
    sink = Panels(press_interrupt)
    with pytest.raises(CellError):
        group.run("if process_index == 0:\n    threading.Event().wait()\nfloat(f(x))", sink=sink)
    assert sink.panels[0].reason == (
        "Their recordings part at dispatch 1 over processes 0-2: processes 1-2 dispatched "
        "jit(sum) float32[6] -> float32[] at line 3; process 0 dispatched nothing (is at line 2: "
        "`threading.Event().wait()`). Process 0 waits for a lock, a queue or a thread of its own, "
        "and none of its Python threads runs. If they wait for each other this never ends."
    )
    assert_kept(group)


def test_a_lock_in_a_cells_own_line_is_not_taken_for_a_collective(group: Session) -> None:
    sink = Panels(press_interrupt)
    with pytest.raises(CellError):
        group.run(
            "if process_index == 0:\n    gate = threading.Lock(); gate.acquire()\n"
            "    gate.acquire()\nfloat(f(x))",
            sink=sink,
        )
    (work,) = sink.panels[0].at_work
    assert (work.processes, work.doing) == ((0,), "waiting for a lock")
    assert work.place is not None
    assert work.place.text == "at line 3: `gate.acquire()`"
    assert [wait.processes for wait in sink.panels[0].waits] == [(1, 2)]
    assert_kept(group)


def test_who_is_locked_when_others_have_left_is_shown_and_not_freed(group: Session) -> None:
    sink = Panels(press_interrupt)
    code = "if process_index == 1: threading.Event().wait()\nprocess_index"
    with pytest.raises(CellError) as caught:
        group.run(code, sink=sink)
    assert list(caught.value.result.errors) == [1]
    assert caught.value.result.errors[1].type_name == "KeyboardInterrupt"
    first = sink.panels[0]
    assert ([wait.processes for wait in first.waits], first.is_all) == ([(1,)], False)
    assert first.reason.startswith("Process 1 waits for a lock, a queue or a thread of its own")
    assert_kept(group)


@pytest.mark.parametrize(
    ("kind", "some"), [*((kind, ALL) for kind in GOES_ON), ("a thread that reads", (1,))]
)
def test_who_waits_for_something_that_may_come_is_not_shown(
    group: Session,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    kind: str,
    some: tuple[int, ...],
) -> None:
    paths = [tmp_path / f"fifo{i}" for i in some]
    for path in paths:
        os.mkfifo(path)
    opened: list[int] = []
    looks: list[float] = []

    see = Standing.see

    def note_look(standing: Standing, *look: Any) -> None:
        looks.append(time.monotonic())
        if not opened and looks[-1] - looks[0] > 3 * freeing.ALL_WAIT_SECONDS:
            opened.extend(os.open(path, os.O_RDWR) for path in paths)
        see(standing, *look)

    monkeypatch.setattr(Standing, "see", note_look)
    code = f"path = {str(tmp_path / 'fifo')!r} + str(process_index)\n"
    code += f"if process_index in {some}:\n    "
    code += GOES_ON[kind].replace("{path!r}", "path").replace("\n", "\n    ")
    sink = Panels(lambda: None)
    group.run(code, sink=sink)
    assert len(opened) == len(some)
    for each in opened:
        os.close(each)
    assert sink.panels == []
    assert_kept(group)
