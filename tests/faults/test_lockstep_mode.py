"""Lockstep: nothing runs before all agree, so what goes wrong costs nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import jaxnb
from jaxnb.cells import card_cell
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellTimeoutError, ProcessDiedError
from jaxnb.model.group import Waits
from jaxnb.session import Session
from support.faults import show_waits_soon
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


@pytest.fixture(scope="module")
def module_group() -> Iterator[Session]:
    with jaxnb.start(4, devices_per_process=2, platform="cpu", check="strict") as session:
        yield session


@pytest.fixture
def group(module_group: Session) -> Iterator[Session]:
    """A group with variables in it; after the test it is the same one, and computes."""
    if module_group.state != "ready":
        module_group.restart()
    module_group.run(SETUP)
    pids = [process.pid for process in module_group.processes]
    yield module_group
    if module_group.state == "ready":
        assert module_group.run("float(total(x))").value == 16.0
        assert [process.pid for process in module_group.processes] == pids


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
    assert " at line 4 (`y = step(y if i else x)`); " in told(result)
    assert "process 2: raised NameError at line 3" in told(result)
    # What was bound before is of the same step on all.
    assert group.run("float(total(y))").value == 16.0 * 8


def test_uneven_loops_and_calls_that_are_skipped(group: Session) -> None:
    uneven = failed_on(group, "for i in range(10 + (process_index == 1)):\n    y = step(x)", {1})
    assert "process 1: was to dispatch jit(<lambda>)" in uneven
    assert "processes 0,2-3: had finished" in uneven
    skipped = failed_on(group, "if process_index: float(total(x))", {1, 2, 3})
    assert "process 0: had finished" in skipped
    asked = failed_on(group, "float(total(x))", {0, 2}, ranks=[0, 2])
    assert "processes 1,3: were not asked to run the cell" in asked


@pytest.mark.thorough
def test_what_a_cell_runs_within_itself_does_not_end_it(group: Session) -> None:
    result = failed(group, "get_ipython().run_cell('1 / 0', silent=True)\nlater = float(total(x))")
    assert {e.type_name for e in result.errors.values()} == {"ZeroDivisionError"}
    assert group.run("later").value == 16.0


def failed_on(group: Session, code: str, who: set[int], **settings: Any) -> str:
    result = group.run(code, raise_on_error=False, timeout=PATIENT_SECONDS, **settings)
    assert set(result.errors) == who
    return told(result)


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


def test_barriers_of_the_coordination_service_are_agreed_on(group: Session) -> None:
    group.run("from jax._src import distributed\nclient = distributed.global_state.client")
    assert group.run("client.wait_at_barrier('all', 60_000); 7").value == 7
    code = "if process_index: client.wait_at_barrier('some', 60_000)"
    said = failed_on(group, code, {1, 2, 3})
    assert "were to dispatch the barrier 'some' of the coordination service at line 1" in said
    assert "process 0: had finished" in said


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


LOOP = """
y, i = x, 0
while True:
    y, i = step(y), i + 1
    if process_index == 0 and i == 50:
        {open}
    if process_index == i % 4:
        np.ones(10000).sum()
"""


@pytest.mark.thorough
def test_what_handles_an_interrupt_computes_on_all(group: Session, opened: Opened) -> None:
    loop = "    ".join(LOOP.format(open=opened.open).splitlines(keepends=True))
    code = f"try:{loop}\nexcept KeyboardInterrupt:\n    saved = float(total(y))"
    result = interrupted(group, code, opened)
    assert not result.errors
    steps, saved = group.run("i, saved").value
    assert saved == 16.0 * (steps + 1)


@pytest.mark.parametrize("sleep", ["time.sleep(1000)", "import asyncio; await asyncio.sleep(1000)"])
def test_one_that_sleeps_is_woken(group: Session, opened: Opened, sleep: str) -> None:
    code = f"if process_index == 0:\n    {opened.open}; {sleep}\nfloat(total(x))"
    result = interrupted(group, code, opened)
    assert {e.type_name for e in result.errors.values()} == {"KeyboardInterrupt"}


@pytest.mark.thorough
def test_a_time_out_ends_it(group: Session) -> None:
    with pytest.raises(CellTimeoutError) as raised:
        group.run("if process_index == 3: time.sleep(1000)\nfloat(total(x))", timeout=0.5)
    assert raised.value.result is not None
    errors = raised.value.result.errors
    assert {i: e.type_name for i, e in errors.items()} == dict.fromkeys(ALL, "KeyboardInterrupt")


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


AMID = """
from jax._src.interpreters import pxla
call, came = pxla.InputsHandler.__call__, []
def late(self, arguments):
    if process_index == 1 and not came:
        came.append(1)
        signal.raise_signal(signal.SIGALRM)  # JAX has not handed the computation over
    return call(self, arguments)
"""


@pytest.mark.thorough
def test_what_is_raised_amid_a_dispatch_is_raised_once_it_is_made(group: Session) -> None:
    """Else the others would wait in it for the process that did not make it."""
    group.run(ALARM + AMID)
    result = failed(
        group,
        "pxla.InputsHandler.__call__ = late\n"
        "try: y = x * jax.jit(jnp.prod)(x)\n"
        "finally: pxla.InputsHandler.__call__ = call\n"
        "while True: y = step(y)",
    )
    assert result.errors[1].type_name == "TimeoutError"
    assert "process 1: raised TimeoutError" in told(result)
    is_his = "signal.getsignal(signal.SIGALRM) is alarm"
    code = f"({is_his}, float(total(step(x))))"
    assert group.run(code, timeout=PATIENT_SECONDS).value == (True, 32.0)


@pytest.mark.thorough
def test_a_thread_goes_on_over_cells(group: Session) -> None:
    """Its arrays are known by what they come from, wherever a cell ends on each process."""
    group.run(
        "ends = []\n"
        "def work():\n"
        "    z = x\n"
        "    for _ in range(60): z = step(z)\n"
        "    ends.append(z)\n"
        "thread = threading.Thread(target=work); thread.start()"
    )
    for _ in range(5):
        result = group.run("for _ in range(5): y = step(x)\nfloat(total(y))")
        assert (result.value, result.divergence) == (32.0, None)
    code = "thread.join(); float(total(ends[0]))"
    assert group.run(code, timeout=PATIENT_SECONDS).value == 16.0 * 61


@pytest.mark.thorough
def test_main_does_not_wait_for_a_threads_first_call(group: Session) -> None:
    """C++ has all threads of a process wait for the first call of a function."""
    code = (
        "import sys\n"
        "new, ends, may_begin = jax.jit(lambda x: x * 3), [], threading.Event()\n"
        "def work(): may_begin.wait(); ends.append(new(x))\n"
        "thread = threading.Thread(target=work); thread.start()\n"
        "def asks():\n"
        "    frame = sys._current_frames()[thread.ident]\n"
        "    while frame and 'process_connection' not in frame.f_code.co_filename:\n"
        "        frame = frame.f_back\n"
        "    return frame\n"
        "if process_index == 0:\n"
        "    may_begin.set()\n"
        "    while not asks(): time.sleep(0.01)\n"
        "y = new(x)\n"
        "may_begin.set(); thread.join()\n"
        "float(total(y)), float(total(ends[0]))"
    )
    assert group.run(code, timeout=PATIENT_SECONDS).value == (48.0, 48.0)


class Panel(NoSink):
    """Calls something when it is shown first that processes wait; keeps the last such panel."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.text = ""
        self._call = call

    def waits(self, waits: Waits) -> None:
        is_first, self.text = not self.text, card_cell.waits_card(waits).text
        if is_first:
            self._call()


def test_who_waits_for_a_thread_of_its_own_is_named(
    group: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread was let dispatch first, and does not: the others wait for that process."""
    show_waits_soon(monkeypatch)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    opened: list[int] = []

    class OpensOnceToldSo(NoSink):
        def waits(self, waits: Waits) -> None:
            if "until another of its threads has dispatched" in card_cell.waits_card(waits).text:
                opened.append(os.open(gate, os.O_RDWR))

    code = (
        "import sys\nmade, let = [], threading.Event()\n"
        "def hold(frame, event, _):\n"
        "    if event == 'return' and frame.f_code.co_name == 'agree':\n"
        "        sys.setprofile(None)\n"
        "        let.set()\n"
        f"        open({str(gate)!r}).close()\n"
        "def work():\n"
        "    if process_index == 0: sys.setprofile(hold)\n"
        "    made.append(step(x))\n"
        "    let.set()\n"
        "thread = threading.Thread(target=work, daemon=True); thread.start(); let.wait()\n"
        "found = float(total(x)); thread.join(); float(total(made[0])), found"
    )
    try:
        result = group.run(code, sink=OpensOnceToldSo(), timeout=PATIENT_SECONDS)
    finally:
        opened.append(os.open(gate, os.O_RDWR))
        for each in opened:
            os.close(each)
    assert result.value == (32.0, 16.0)
    assert len(opened) > 1


@pytest.mark.thorough  # how it is told: tests/unit/test_reasons.py
def test_threads_that_differ_are_told_of(group: Session) -> None:
    """Nobody knows whether others will say the same: it is shown, and ends with an interrupt."""
    panel = Panel(group.interrupt)
    code = (
        "def add(): jax.jit(jnp.add)(x, np.float32(process_index % 2))\n"
        "thread = threading.Thread(target=add, daemon=True); thread.start(); thread.join()"
    )
    result = group.run(code, sink=panel, raise_on_error=False, timeout=PATIENT_SECONDS)
    assert "inputs of the one program differ on processes 0,2 / 1,3." in panel.text
    assert result.cause == "input"


@pytest.mark.thorough
@pytest.mark.parametrize("pause", [0.0, 0.3], ids=["as it waits", "in Python"])
def test_a_handler_of_the_users_own_is_called(group: Session, opened: Opened, pause: float) -> None:
    code = (
        "import signal\n"
        "stops = 0\n"
        "def handle(*_):\n    global stops; stops += 1\n"
        "old, n = signal.signal(signalnum=signal.SIGINT, handler=handle), 0\n"
        "while not stops:\n"
        f"    y = step(x); n += 1; time.sleep({pause})\n"
        f"    if n == 2 and process_index == 0: {opened.open}\n"
        "saved = float(total(y))  # it was called, so nothing is to come\n"
        "signal.signal(signal.SIGINT, old)\n(n, saved)"
    )
    result = interrupted(group, code, opened)
    assert not result.errors
    assert {each.value[1] for each in result.per_process.values()} == {32.0}
    assert pause or len({each.value for each in result.per_process.values()}) == 1


@pytest.mark.thorough
def test_code_that_ignores_interrupts_goes_on(group: Session, opened: Opened) -> None:
    code = (
        "import signal\n"
        "old = signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        f"if process_index == 0: {opened.open}\n"
        "y = x\n"
        "for n in range(4): time.sleep(0.2); y = step(y)\n"
        "signal.signal(signal.SIGINT, old)\nfloat(total(y))"
    )
    assert interrupted(group, code, opened).value == 16.0 * 5


IGNORES = {
    "SIG_IGN": "old = signal.signal(signal.SIGINT, signal.SIG_IGN); {opens}; open(pressed).read()\n"
    "signal.signal(signal.SIGINT, old)",
    "system": "os.system(f\"trap '' INT; echo > {path}; cat {{pressed}} > /dev/null\")",
}


@pytest.mark.thorough
@pytest.mark.parametrize("ignores", IGNORES)
def test_an_interrupt_that_code_ignores_for_a_while_is_not_lost(
    group: Session, opened: Opened, tmp_path: Path, ignores: str
) -> None:
    """As a checkpoint does, or `system(3)`: the signal never comes then, and nobody waits for it.

    Signals are sent in the order of processes: once process 1 has its own, that of process 0 was.
    """
    pressed = tmp_path / "pressed"
    os.mkfifo(pressed)
    ignored = IGNORES[ignores].format(opens=opened.open, path=opened.path)
    code = (
        f"import signal\npressed = {str(pressed)!r}\n"
        f"if process_index == 0:\n    {ignored.replace(chr(10), chr(10) + '    ')}\n"
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


IN_LOCKSTEP = """
import signal, sys
def in_lockstep():
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame and "process_connection" not in frame.f_code.co_filename: frame = frame.f_back
    return frame
"""
FORKS = """
came = []
def first(*_):
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)
    came.append("first")
def second(*_): came.append("second")
def fork():
    while not in_lockstep(): time.sleep(0.01)
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, lambda *_: os._exit(7))
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        until = time.monotonic() + 5
        while time.monotonic() < until: pass
        os._exit(9)
    came.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    for each in (signal.SIGUSR1, signal.SIGUSR2): os.kill(os.getpid(), each)
    open(there, "w").close()
"""


FORKED_BY_A_THREAD = f"""
import os, signal, threading, time, warnings
warnings.simplefilter("ignore")
{FORKS}
in_lockstep, there = lambda: True, os.devnull
for each in (signal.SIGUSR1, signal.SIGUSR2): signal.signal(each, signal.SIG_IGN)
thread = threading.Thread(target=fork)
thread.start(); thread.join()
os._exit(came[0])
"""
"""Exits as the child does without jaxnb: in Python 3.13 no signal reaches one of a thread."""


@pytest.mark.thorough
def test_what_a_handler_dispatches_while_a_process_waits_came_before(
    group: Session, tmp_path: Path
) -> None:
    group.run(IN_LOCKSTEP)
    there = str(tmp_path / "there")
    code = (
        "def total_of(*_):\n"
        f"    open({there!r}, 'w').close()\n"
        "    global t; t = total(x)\n"
        "old = signal.signal(signal.SIGUSR1, total_of)\n"
        "def send():\n"
        "    while not in_lockstep(): time.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGUSR1)\n"
        "if process_index == 1:\n"
        "    threading.Thread(target=send).start()\n"
        "    y = step(x)\n"
        f"while not os.path.exists({there!r}): time.sleep(0.01)\n"
        "t = total(x)\n"
        "y = x * 3"
    )
    message = told(failed(group, code))
    assert "do not agree on dispatch 2 over processes 0-3: processes 0,2-3: were to" in message
    assert (
        "process 1: was to dispatch jit(<lambda>) float32[16] -> float32[16] at line 10 (`y ="
        in message
    )
    assert "so no process waits, and earlier results are valid" in message
    assert group.run("float(t)").value == 16.0


@pytest.mark.thorough
@pytest.mark.parametrize("by", ["main", "thread"])
def test_what_another_thread_raises_loses_no_dispatch(
    group: Session, tmp_path: Path, by: str
) -> None:
    """Time-out libraries do that; Python raises it as the answer is read. All make the dispatch."""
    there = tmp_path / "there"
    os.mkfifo(there)
    code = (
        "import ctypes, sys\n"
        "came = []\n"
        "def asks(ident):\n"
        "    frame = sys._current_frames().get(ident)\n"
        "    while frame and '_connection' not in frame.f_code.co_filename: frame = frame.f_back\n"
        "    return frame\n"
        "def strike(ident):\n"
        "    while not asks(ident): time.sleep(0.01)\n"
        "    error, ident = ctypes.py_object(TimeoutError), ctypes.c_ulong(ident)\n"
        "    ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, error)\n"
        f"    open({str(there)!r}, 'w').close()\n"
        "def work():\n"
        "    if process_index == 1:\n"
        "        args = threading.get_ident(),\n"
        "        threading.Thread(target=strike, args=args).start()\n"
        f"    if process_index == 0: open({str(there)!r}).read()\n"
        "    try: step(x)\n"
        "    except TimeoutError: came.append('raised')\n"
        "    came.append(float(total(x)))\n"
    )
    runs = {
        "main": "work()",
        "thread": "thread = threading.Thread(target=work); thread.start(); thread.join()",
    }
    result = group.run(f"{code}{runs[by]}\nfloat(total(step(x))), came", timeout=PATIENT_SECONDS)
    found = {i: each.value for i, each in result.per_process.items()}
    assert found.pop(1) == (32.0, ["raised", 16.0])
    assert set(map(repr, found.values())) == {"(32.0, [16.0])"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_signals_come_as_in_python_while_a_process_waits(group: Session, tmp_path: Path) -> None:
    """A child that is forked then waits for nobody; a handler that is off by then is not called."""
    there = tmp_path / "there"
    os.mkfifo(there)
    as_in_python = subprocess.run([sys.executable, "-c", FORKED_BY_A_THREAD], check=False)
    group.run(f"there = {str(there)!r}" + IN_LOCKSTEP + FORKS)
    code = (
        "signal.signal(signal.SIGUSR1, first); signal.signal(signal.SIGUSR2, second)\n"
        "thread = threading.Thread(target=fork)\n"
        "if process_index == 1: thread.start()\n"
        "else: open(there).read() if process_index == 0 else None\n"
        "y = step(x)\n"
        "if process_index == 1: thread.join()\n"
        "came"
    )
    result = group.run(code, timeout=PATIENT_SECONDS)
    assert result.per_process[1].value == [as_in_python.returncode, "first"]


def test_who_dies_is_told_and_a_new_group_agrees(module_group: Session, opened: Opened) -> None:
    group = module_group
    group.run(SETUP)
    errors: list[BaseException] = []

    def run() -> None:
        try:
            group.run(
                f"if process_index == 1:\n    {opened.open}; time.sleep(1000)\nfloat(total(x))"
            )
        except ProcessDiedError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    opened.wait()
    os.kill(group.processes[1].pid, signal.SIGKILL)
    thread.join(PATIENT_SECONDS)
    assert errors
    group.recover()
    # In a cell that asks nobody yet: the conductor of before is no more.
    code = f"if process_index == 0: {opened.open}\nimport time; time.sleep(1000)"
    struck = interrupted(group, code, opened, check="off")
    assert {e.type_name for e in struck.errors.values()} == {"KeyboardInterrupt"}
    group.run(SETUP)
    assert "process 1: had finished" in failed_on(
        group, "if process_index != 1: float(total(x))", {0, 2, 3}
    )
