"""Interrupting code that is in Python, in a sleep, in a subprocess, in an await.

The tests marked ``timing`` are about what comes after the first interrupt: who misses it, swallows
it, goes on, or has to be ended by force; and about stopping at one step.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from jaxnb.cells.merge_output import MergedLine
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError, CellTimeoutError
from jaxnb.session import Session, interrupts_and_timeouts
from support.faults import cleared, pressing_beside
from support.fixtures import PATIENT_SECONDS, assert_usable, still_running
from support.transfers import press_interrupt


@pytest.fixture
def session(
    request: pytest.FixtureRequest,
    shared_session: Session,
    make_session: Callable[..., Session],
) -> Session:
    """The group of all tests; for a test marked ``timing`` one of its own, which it may hurt."""
    is_of_timing = request.node.get_closest_marker("timing") is not None
    return make_session(4) if is_of_timing else cleared(shared_session)


@pytest.fixture(autouse=True)
def nobody_is_late(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a healthy process may take longer than is told to the user."""
    if not request.node.get_closest_marker("timing"):
        monkeypatch.setattr(interrupts_and_timeouts, "CAUGHT_SECONDS", 3600.0)
        monkeypatch.setattr(interrupts_and_timeouts, "INTERRUPT_GRACE_SECONDS", 3600.0)


BODIES = {
    "sleep": "import time; print('in'); time.sleep(1000)",
    "subprocess": "!echo in; sleep 1000",
    "subprocess that ignores it": "!trap '' INT; echo in; sleep 1000",
    "await": "import asyncio; print('in'); await asyncio.sleep(1000)",
    "await of nothing": "import asyncio; print('in')\nwhile True: await asyncio.sleep(0)",
}
"""Beside those of the table of faults."""


class OnFirstLine(NoSink):
    """A sink that calls something once when all processes have printed."""

    def __init__(self, call: Callable[[], Any], processes: int) -> None:
        self._call: Callable[[], Any] | None = call
        self._seen: set[int] = set()
        self._processes = processes
        self.notices: list[str] = []

    def lines(self, lines: list[MergedLine]) -> None:
        for line in lines:
            self._seen |= line.processes
        if len(self._seen) == self._processes and self._call is not None:
            call, self._call = self._call, None
            call()

    def notice(self, text: str) -> None:
        self.notices.append(text)


def assert_interrupted(result: CellResult) -> None:
    """Fails unless each process raised KeyboardInterrupt, wherever that was."""
    assert {i: e.type_name for i, e in result.errors.items()} == dict.fromkeys(
        result.per_process, "KeyboardInterrupt"
    )


def interrupted(
    session: Session, code: str, processes: int | None = None, **settings: Any
) -> CellResult:
    """Interrupts a cell when all have printed; fails unless that ends it, without another word."""
    sink = OnFirstLine(press_interrupt, processes or session.num_processes)
    with pytest.raises(CellError) as caught:
        session.run(code, sink=sink, **settings)
    assert sink.notices == []
    assert_interrupted(caught.value.result)
    return caught.value.result


@pytest.mark.parametrize("body", BODIES)
def test_sigint_ends_the_cell_on_every_process(session: Session, body: str) -> None:
    session.run("kept = jnp.arange(3.0)")
    interrupted(session, BODIES[body])
    assert session.state == "ready"
    assert session.run("float(kept.sum())").value == 3.0
    assert_usable(session)


@pytest.mark.parametrize(
    "code",
    [
        "v=!cat {}",
        "os.system('cat {}')",
        "subprocess.Popen(['cat', '{}']); step()",
        "p = await asyncio.create_subprocess_exec('cat', '{}'); await p.wait()",
    ],
)
def test_programs_that_a_cell_has_started_are_interrupted_too(
    session: Session, tmp_path: Path, code: str
) -> None:
    """As in a terminal and in Jupyter, SIGINT goes to all of the process's group.

    IPython's `v=!` and C's `system` take the interrupt for the program's alone, and go on. A shell
    may lose it where it starts a program (dash does), so these have begun to read by then.
    """
    session.run("import asyncio, os, subprocess\ndef step():\n    while True: jnp.ones(3).sum()")
    read = tmp_path / "read"
    os.mkfifo(read)
    opened: list[int] = []

    def when_it_reads(press: Callable[[], None]) -> None:
        opened.append(os.open(read, os.O_WRONLY))
        press()

    with pressing_beside(when_it_reads):
        session.run(code.format(read), ranks=[1], raise_on_error=False)
    programs = psutil.process_iter(["name", "cmdline"])  # no command line of one that has ended
    running = [
        p for p in programs if p.info["name"] == "cat" and str(read) in (p.info["cmdline"] or ())
    ]
    assert not still_running(running)
    os.close(*opened)
    assert_usable(session)


def test_who_begins_late_is_interrupted_too(session: Session) -> None:
    """A process outside cells ignores SIGINT: one press must do for it as well."""
    process = psutil.Process(session.processes[0].pid)
    process.suspend()

    def press_and_wake() -> None:
        press_interrupt()
        while session.where([1])[1].in_cell is not None:
            threading.Event().wait(0.02)
        process.resume()

    waker = threading.Thread(target=press_and_wake)
    sink = OnFirstLine(waker.start, 3)
    with pytest.raises(CellError) as caught:
        session.run(BODIES["sleep"], sink=sink)
    assert_interrupted(caught.value.result)
    waker.join()
    assert_usable(session)


STRIKES = """
import asyncio, signal
from jaxnb.cells.process_runner import Runner
shell = get_ipython()
whole = shell.showtraceback, Runner._keep_error
def struck(call):
    def strike_and_call(*arguments, **settings):
        signal.raise_signal(signal.SIGINT)
        return call(*arguments, **settings)
    return strike_and_call
def strike():
    shell.showtraceback, Runner._keep_error = map(struck, whole)
    return 1 / 0
"""


def test_sigint_on_the_way_out_of_a_cell_that_awaits_ends_no_process(session: Session) -> None:
    session.run(STRIKES)
    result = session.run("await asyncio.sleep(0); strike()", raise_on_error=False)
    assert_interrupted(result)
    session.run("shell.showtraceback, Runner._keep_error = whole")
    assert_usable(session)


IGNORES = """
import time
class Thing:
    def __del__(self): print('in'); time.sleep(1000)
Thing()
while True: pass
"""


@pytest.mark.timing
def test_an_interrupt_that_python_ignores_strikes_what_goes_on(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupts_and_timeouts, "CAUGHT_SECONDS", 3600.0)
    monkeypatch.setattr(interrupts_and_timeouts, "INTERRUPT_GRACE_SECONDS", 3600.0)
    assert interrupted(session, IGNORES).stderr == ""
    assert_usable(session)


@pytest.mark.timing
def test_an_interrupt_in_jaxs_own_callback_strikes_at_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Most of this loop's time is JAX's: it was printed there."""
    monkeypatch.setattr(interrupts_and_timeouts, "AGAIN_SECONDS", 3600.0)  # it is sent once
    code = "import gc\nprint('in')\nwhile True: gc.collect(0)"
    for _ in range(10):
        assert interrupted(session, code).stderr == ""
    assert_usable(session)


@pytest.mark.parametrize("gap_seconds", [0.0, pytest.param(0.1, marks=pytest.mark.timing)])
def test_interrupt_pressed_twice_is_one_interrupt(
    session: Session, tmp_path: Path, gap_seconds: float
) -> None:
    """A second SIGINT must not make a process forget that it was interrupted."""
    fifo, has_begun, opened = tmp_path / "fifo", threading.Event(), []
    os.mkfifo(fifo)

    def press_twice(press: Callable[[], None]) -> None:
        if has_begun.wait(PATIENT_SECONDS):
            press()
            threading.Event().wait(gap_seconds)
            press()
        opened.append(os.open(fifo, os.O_RDWR))

    # The cell lasts until the second one has come.
    body = f"import time\nprint('in')\ntry: time.sleep(1000)\nfinally: open({str(fifo)!r}).close()"
    sink = OnFirstLine(has_begun.set, session.num_processes)
    with pressing_beside(press_twice), pytest.raises(CellError) as caught:
        session.run(body, sink=sink)
    os.close(opened[0])
    assert_interrupted(caught.value.result)
    assert_usable(session)


def test_an_interrupt_at_the_very_beginning_of_a_cell(session: Session) -> None:
    """Before it has been sent to any process."""

    class AtBegin(NoSink):
        def begin(self, processes: tuple[int, ...]) -> None:
            assert session._work.current is None
            session.interrupt()

    with pytest.raises(CellError) as caught:
        session.run(BODIES["sleep"], sink=AtBegin(), timeout=PATIENT_SECONDS)
    assert not isinstance(caught.value, CellTimeoutError)
    assert_interrupted(caught.value.result)
    assert_usable(session)


def test_code_that_catches_the_interrupt_may_finish(session: Session) -> None:
    sink = OnFirstLine(press_interrupt, session.num_processes)
    result = session.run(
        "import time\ntry:\n    print('in'); time.sleep(1000)\n"
        "except KeyboardInterrupt:\n    print('saved')\n'done'",
        sink=sink,
    )
    assert result.value == "done"
    assert [r.stdout for r in result.per_process.values()] == ["in\nsaved\n"] * 4


def test_a_timeout_interrupts(session: Session) -> None:
    with pytest.raises(CellTimeoutError, match=r"time-out of 0.5 s"):
        session.run("import time; time.sleep(1000)", timeout=0.5)
    assert_usable(session)


class PressWhenTold(OnFirstLine):
    """Presses Interrupt when all have printed, and does something once it is told of them."""

    def __init__(self, when_told: Callable[[], Any], processes: int = 4) -> None:
        super().__init__(press_interrupt, processes)
        self._when_told = when_told

    def notice(self, text: str) -> None:
        super().notice(text)
        if "caught the interrupt" in text:
            self._when_told()


SPIN = """
def spin():
    while True: pass
"""


GOES_ON = f"""{SPIN}
try:
    print("in")
    spin()
except KeyboardInterrupt:
    if process_index != 2: raise
spin()
"""


@pytest.mark.timing
def test_who_goes_on_elsewhere_is_told_of_and_a_second_interrupt_strikes_that(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be about to end, in a cell of a plain notebook too."""
    monkeypatch.setattr(interrupts_and_timeouts, "INTERRUPT_GRACE_SECONDS", 3600.0)
    pids = [process.pid for process in session.processes]
    sink = PressWhenTold(press_interrupt)
    with pytest.raises(CellError) as caught:
        session.run(GOES_ON, sink=sink)
    assert_interrupted(caught.value.result)
    assert caught.value.result.errors[2].line == 3  # which line of the others is left to chance
    (told,) = sink.notices
    assert told.startswith("Process 2 caught the interrupt and went on: it is at line 3: `while")
    assert "Interrupt again (earlier ones count once) to interrupt what it does now" in told
    assert told.endswith("it is ended by force, and new processes take over the variables.")
    assert [process.pid for process in session.processes] == pids
    assert_usable(session)


@pytest.mark.timing
def test_a_timeout_ends_what_an_interrupt_before_it_did_not(session: Session) -> None:
    deaf = (
        "import time\nprint('in')\nwhile True:\n"
        "    try: time.sleep(1000)\n    except KeyboardInterrupt: pass"
    )
    with pytest.raises(CellTimeoutError, match=r"time-out of 2 s"):
        session.run(deaf, sink=PressWhenTold(lambda: None), timeout=2)


TRAINING = """
mesh = jax.make_mesh((jax.device_count(),), ("data",))
whole = NamedSharding(mesh, P())
step = jax.jit(lambda w, k: (jnp.tanh(w @ w), k + 1))
w, k = jax.jit(lambda: (jnp.eye(256), jnp.zeros((), int)), out_shardings=whole)()
"""

LOOPS = (
    "w, k = step(w, k)\n    if process_index == 0: int(k)",
    "w, k = step(w, k)\n    time.sleep(0.002 * process_index)",
)


def test_processes_stop_at_the_same_dispatch(make_session: Callable[..., Session]) -> None:
    """Nothing is broken off: the loop can be run on, with all variables of the same step."""
    session = make_session(4, devices_per_process=2)
    session.run(TRAINING)
    before = 0
    for body in LOOPS:
        loop = f"import time\nfor i in range(10**6):\n    {body}\n    if i == 20: print('in')"
        sink = OnFirstLine(press_interrupt, 4)
        with pytest.raises(CellError) as caught:
            session.run(loop, sink=sink)
        assert_interrupted(caught.value.result)
        assert "Stopped cleanly: none of processes 0-3 is ahead" in " ".join(sink.notices)
        assert "anew" not in " ".join(sink.notices)
        assert caught.value.result.divergence is None
        after = session.run("int(k)").value  # raises where they differ
        assert after > before + 20
        before = after
    assert_usable(session)
