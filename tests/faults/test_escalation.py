"""Processes that nothing frees, and those that may go on: replaced, or shown and left alone."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.test_freeing import PROCESSES, SETUP, Notices, Panels, assert_kept, types_of
from jaxnb import freeing
from jaxnb.errors import CellError, CellTimeoutError
from jaxnb.model import Waits
from jaxnb.session import Session
from jaxnb.sinks import NoSink, StderrNotices
from jaxnb.stalls import escalation

pytestmark = pytest.mark.timing

# Its own side of freeing is taken out of a process, which then waits in gloo like one that freeing
# has no effect on.
UNFREEABLE = """
if process_index == 1:
    from jaxnb.engine import collective_sockets
    collective_sockets.cutter.cut = lambda ports, **how: 0
    only_here, numbers = "kept too", np.arange(100_000.0)
    numbers[0] = 7; np.random.seed(3)
"""
ONLY_HERE = """
if process_index == 1:
    assert (only_here, numbers[0], numbers.sum()) == ("kept too", 7, 4999950007)
    drawn = np.random.rand(); np.random.seed(3); assert drawn == np.random.rand()
"""
IN_C = """
import ctypes
if process_index == 2:
    c = ctypes.CDLL(None)
    mutex, condition = (ctypes.c_char * 64)(), (ctypes.c_char * 64)()
    c.pthread_mutex_lock(mutex)
    c.pthread_cond_wait(condition, mutex)
float(f(x))"""


@pytest.fixture
def group(make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(freeing, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(freeing, "LEFT_BEHIND_SECONDS", 0.6)
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 1.0)
    monkeypatch.setattr(escalation, "SHUT_ALL_SECONDS", 0.4)
    monkeypatch.setattr(escalation, "NO_EFFECT_SECONDS", 0.8)
    session = make_session(PROCESSES, check="off")
    session.run(SETUP)
    return session


def test_who_cannot_be_freed_is_replaced_with_its_variables(group: Session) -> None:
    """After an error of another, an interrupt, and a time-out: the same steps."""
    ends = {
        "raise ValueError('boom')": ("LeftBehindError", None),
        "time.sleep(1000) # interrupted": ("KeyboardInterrupt", None),
        "time.sleep(1000)": ("KeyboardInterrupt", 2.0),
    }
    for how, (kind, timeout) in ends.items():
        pids = [process.pid for process in group.processes]
        sink, interrupted = Notices(), threading.Event()
        if "interrupted" in how:
            threading.Timer(1.0, interrupted.set).start()
        code = f"{UNFREEABLE}if process_index == 2: {how}\nfloat(f(x))"
        with pytest.raises(CellError if timeout is None else CellTimeoutError) as caught:
            group.run(code, sink=sink, interrupted=interrupted, timeout=timeout)
        error = caught.value.result.errors[1]
        assert error.type_name == kind
        assert "waited in a collective at line" in error.message
        assert error.message.endswith("; it could not be freed, and is replaced")
        *_, anew = sink.notices
        (told,) = (text for text in sink.notices if "has had no effect within" in text)
        assert "Now it is ended and replaced; its variables are read out first." in told
        assert "with a new process 1" in anew
        assert "Read out of process 1 before it was ended, and given back:" in anew
        now = [process.pid for process in group.processes]
        assert [i for i in range(PROCESSES) if pids[i] != now[i]] == [1]
        group.run(ONLY_HERE)
        assert_kept(group)


def test_who_waits_in_c_code_of_the_users_is_shown_and_ended_at_the_users_word(
    group: Session,
) -> None:
    pids = [process.pid for process in group.processes]

    class Asks(Panels):
        notices: list[str]

        def notice(self, text: str) -> None:
            self.notices.append(text)
            if "Interrupt again" in text:
                os.kill(os.getpid(), signal.SIGINT)

    sink = Asks(lambda: os.kill(os.getpid(), signal.SIGINT))
    sink.notices = []
    with pytest.raises(CellError) as caught:
        group.run(IN_C, sink=sink)
    panel = sink.panels[1]
    assert panel.is_neutral
    assert [(each.processes, each.doing) for each in panel.at_work] == [((2,), "waiting in C code")]
    assert [wait.processes for wait in panel.waits] == [(0, 1)]
    assert types_of(caught.value.result)[2] == "NoAnswer"
    assert "Read out of process 2 before it was ended" in sink.notices[-1]
    assert [process.pid for process in group.processes][:2] == pids[:2]
    assert_kept(group)


AT_WORK = {
    "asleep": "while not pathlib.Path({path!r}).exists(): time.sleep(0.1)",
    "computing": "while not os.path.exists({path!r}): pass",
}


@pytest.mark.parametrize("doing", AT_WORK)
def test_who_others_wait_for_is_shown_until_they_go_on(
    group: Session, tmp_path: Path, doing: str
) -> None:
    path = str(tmp_path / "shown")
    sink = Panels(lambda: Path(path).touch())
    work = AT_WORK[doing].format(path=path)
    code = f"import os, pathlib\nif process_index == 1:\n    {work}\nfloat(f(x))"
    assert group.run(code, sink=sink).value == 15
    first, *_, last = sink.panels
    assert first.is_neutral
    (worker,) = first.at_work
    assert worker.processes == (1,)
    assert worker.place is not None
    assert worker.place.line == 3
    assert worker.doing in (doing, "")  # between two sleeps
    assert [wait.processes for wait in first.waits] == [(0, 2)]
    assert last.has_ended
    assert_kept(group)


def test_nothing_is_silent_for_five_seconds(make_session: Callable[..., Session]) -> None:
    """With the times as they are; scripts are told on standard error."""
    session = make_session(PROCESSES, check="off")
    session.run(SETUP)
    shown: list[float] = []
    started = time.monotonic()

    class Notes(NoSink):
        def waits(self, waits: Waits) -> None:
            shown.append(time.monotonic() - started)
            if waits.seconds >= 4:
                session.interrupt()

    with pytest.raises(CellError):
        session.run("if process_index == 0: time.sleep(1000)\nfloat(f(x))", sink=Notes())
    print(f"shown after {shown[0]:.2f} s")
    assert shown[0] < 5
    assert_kept(session)


def test_a_straggler_in_a_loop_is_told_of_once(
    group: Session, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "for i in range(2):\n    if process_index == 2: time.sleep(3)\n    y = float(f(x))\ny"
    assert group.run(code, sink=StderrNotices()).value == 15
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("jaxnb: process 2 has been at line 2: `if process_index == 2: ")
    assert "asleep. Waiting for it for 1 s: processes 0-1 at line 3: `y = float(f(x))`." in line
    assert_kept(group)
