"""Lockstep: nothing runs before all agree, so what goes wrong costs nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxnb.cells.result import CellResult
from jaxnb.session import Session
from support.fixtures import PATIENT_SECONDS

SETUP = """
import os, threading, time
mesh = jax.make_mesh((8,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def make(value, on=mesh):
    host = np.full(2 * on.size, value, np.float32)
    return jax.make_array_from_callback(
        host.shape, NamedSharding(on, P("d")), lambda index: host[index], dtype=host.dtype)
x = make(1)
step = jax.jit(lambda x: x + 1)
total = jax.jit(jnp.sum)
float(total(step(x)))
"""
ALL = range(4)


class Opened:
    """A pipe that a process opens once it is where the test wants it."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.open = f"open({str(path)!r}, 'w').close()"
        self.path = path

    def wait(self) -> None:
        """Waits until it is open."""
        self.path.read_bytes()


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "opened")


@pytest.fixture
def group(session: Session) -> Iterator[Session]:
    """A group with variables in it; after the test it is the same one, and computes."""
    session.run(SETUP)
    pids = [process.pid for process in session.processes]
    yield session
    if session.state == "ready":
        assert session.run("float(total(x))").value == 16.0
        assert [process.pid for process in session.processes] == pids


def failed(group: Session, code: str, **settings: Any) -> CellResult:
    """Runs a cell that fails on all processes."""
    result = group.run(code, raise_on_error=False, timeout=PATIENT_SECONDS, **settings)
    assert set(result.errors) == set(result.per_process)
    return result


def told(result: CellResult) -> str:
    """Returns the message that all processes have that did not agree."""
    (said,) = {e.message for e in result.errors.values() if e.type_name == "DivergenceError"}
    return said


def test_a_typo_in_a_loop_is_told_by_all_and_costs_nothing(group: Session) -> None:
    result = failed(
        group,
        "for i in range(20):\n"
        "    if process_index == 2 and i == 7:\n        tiem.sleep(1)\n"
        "    y = step(y if i else x)",
    )
    assert result.errors[2].type_name == "NameError"
    assert "processes 0-1,3: were to dispatch jit(<lambda>)" in told(result)
    assert " at line 4, 8th time (`y = step(y if i else x)`); " in told(result)
    assert "process 2: raised NameError at line 3" in told(result)
    # What was bound before is of the same step on all.
    assert group.run("float(total(y))").value == 16.0 * 8


@pytest.mark.thorough
def test_a_child_that_a_cell_forks_takes_no_part(group: Session) -> None:
    code = (
        "read, write = os.pipe()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: total(x)\n"
        "    except BaseException as error: os.write(write, str(error).encode())\n"
        "    finally: os._exit(0)\n"
        "os.waitpid(pid, 0)\n"
        "os.read(read, 200).decode().partition(' of')[0], float(total(x))"
    )
    result = group.run(code, timeout=PATIENT_SECONDS)
    values = [each.value for each in result.per_process.values()]
    assert values == [("This is a forked child", 16.0)] * 4


def test_some_processes_compute_alone(group: Session) -> None:
    code = (
        "some = jax.sharding.Mesh(np.array(jax.devices()[:4]), ('d',))\n"
        "float(total(make(2, some))) if process_index < 2 else None"
    )
    values = group.run(code).value
    assert [values[i] for i in ALL] == [16.0, 16.0, None, None]
    # Those whose devices have no part in it ask nobody, and get an array without shards.
    code = "y = step(make(2, some)); len(y.addressable_shards)"
    values = group.run(code).value
    assert [values[i] for i in ALL] == [2, 2, 0, 0]


def interrupted(group: Session, code: str, opened: Opened, **settings: Any) -> CellResult:
    """Interrupts a cell once process 0 has opened the pipe."""
    results: list[CellResult] = []

    def run() -> None:
        results.append(group.run(code, raise_on_error=False, **settings))

    thread = threading.Thread(target=run)
    thread.start()
    opened.wait()
    group.interrupt()
    thread.join(PATIENT_SECONDS)
    (result,) = results
    return result


@pytest.mark.filterwarnings("ignore::jaxnb.errors.PitfallWarning")
def test_other_threads_dispatch_in_other_orders(group: Session) -> None:
    result = group.run(
        "sums = [jax.jit(lambda a, k=k: (a * k).sum()) for k in range(1, 9)]\n"
        "loaded = {}\n"
        "def load(mine):\n"
        "    for k in mine: loaded[k] = float(sums[k](x))\n"
        "order = range(8) if process_index % 2 else range(7, -1, -1)\n"
        "threads = [threading.Thread(target=load, args=([k],)) for k in order]\n"
        "for each in threads: each.start()\n"
        "y = x\n"
        "for _ in range(20): y = step(y)\n"
        "for each in threads: each.join()\n"
        "sorted(loaded.items()), float(total(y))",
        timeout=PATIENT_SECONDS,
    )
    loaded, y = result.value
    assert loaded == [(k, 16.0 * (k + 1)) for k in range(8)]
    assert y == 16.0 * 21


ALARM = """
import signal
import subprocess
import sys
def alarm(*_): raise TimeoutError
signal.signal(signal.SIGALRM, alarm)
def until_alarm():
    global y
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        while True: y = step(y)
    finally: signal.setitimer(signal.ITIMER_REAL, 0)  # who is stopped sooner is struck no more
y = x
"""


def test_what_is_raised_while_a_process_waits_is_raised_once_it_is_made(group: Session) -> None:
    """What it was let make is made, so the others do not wait for it in the next cell."""
    group.run(ALARM)
    result = failed(group, "if process_index == 2: until_alarm()\nwhile True: y = step(y)")
    assert result.errors[2].type_name == "TimeoutError"
    assert "process 2: raised TimeoutError" in told(result)
    assert group.run("float(total(step(x)))", timeout=PATIENT_SECONDS).value == 32.0
    caught = "try: until_alarm()\nexcept TimeoutError: pass"
    group.run(f"y = x\n{caught}", timeout=PATIENT_SECONDS, raise_on_error=False)
    assert group.run("float(total(step(x)))", timeout=PATIENT_SECONDS).value == 32.0


@pytest.mark.thorough
def test_an_interrupt_that_code_ignores_for_a_while_is_not_lost(
    group: Session, opened: Opened, tmp_path: Path
) -> None:
    """As a checkpoint does: the signal never comes then, and nobody waits for it.

    Signals are sent in the order of processes: once process 1 has its own, that of process 0 was.
    """
    pressed = tmp_path / "pressed"
    os.mkfifo(pressed)
    code = (
        f"import signal\npressed = {str(pressed)!r}\n"
        "if process_index == 0:\n"
        "    old = signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"    {opened.open}; open(pressed).read()\n"
        "    signal.signal(signal.SIGINT, old)\n"
        "elif process_index == 1:\n"
        "    try: time.sleep(1000)\n"
        "    finally: open(pressed, 'w').close()\n"
        "y = step(x)"
    )
    result = interrupted(group, code, opened)
    assert {e.type_name for e in result.errors.values()} == {"KeyboardInterrupt"}
    own = "if process_index == 1: os.kill(os.getpid(), signal.SIGINT)\nfloat(total(x))"
    assert failed(group, own).errors[3].type_name == "KeyboardInterrupt"


def test_what_a_handler_raises_between_cells_is_told(group: Session, opened: Opened) -> None:
    """It would end the process's event loop, and so the process."""
    group.run(
        "import signal\n"
        "def late(*_):\n"
        f"    {opened.open}\n"
        "    raise TimeoutError('late')\n"
        "old = signal.signal(signal.SIGALRM, late)\n"
        "if process_index == 1: signal.setitimer(signal.ITIMER_REAL, 0.2)"
    )
    opened.wait()
    result = group.run("signal.signal(signal.SIGALRM, old); float(total(x))")
    assert result.value == 16.0
    assert "[1] Between cells the handler of SIGALRM raised:" in result.stderr
    assert "TimeoutError: late" in result.stderr
