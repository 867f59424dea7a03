"""Processes that wait for a collective that never comes: freed, with their variables."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from faults import shared
from jaxnb import freeing
from jaxnb.display.cards_error import error_groups
from jaxnb.errors import CellError, CellTimeoutError
from jaxnb.model import Waits
from jaxnb.result import CellResult
from jaxnb.session import Session
from jaxnb.sinks import NoSink, SaysWaits, StderrNotices
from jaxnb.watch import waits_in_jax
from jaxnb_fixtures import PATIENT_SECONDS, assert_usable

pytestmark = pytest.mark.timing

PROCESSES = 3

SETUP = """
import threading, time
from jax.experimental import multihost_utils as mh
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((2 * n,), NamedSharding(mesh, P("d")),
                                 lambda i: np.arange(2.0 * n, dtype=np.float32)[i])
f = jax.jit(jnp.sum)
state = {"x": [x], "mine": jnp.full(3, process_index)}
assert float(f(x)) == n * (2 * n - 1)
"""

CHECK = """
assert mesh is x.sharding.mesh and set(mesh.devices.flat) == set(jax.devices())
assert state["x"][0] is x and state["mine"].tolist() == [process_index] * 3
assert np.concatenate([s.data for s in x.addressable_shards]).tolist() == [
    v for s in x.addressable_shards for v in range(s.index[0].start, s.index[0].stop)]
assert float(f(x)) == n * (2 * n - 1)
"""

# The table of faults has the other waits, with one device each. With several devices a first
# collective of a clique ends by itself only, after 30 s.
BLOCKED = {
    "block_until_ready": (1, "f(x).block_until_ready()"),
    "fast path, two devices": (2, "float(f(x))"),
    "block_until_ready, two devices": (2, "f(x).block_until_ready()"),
    "first compile, two devices": (2, "float(jax.jit(lambda a: (a * 3).sum())(x))"),
}


class Notices(SaysWaits, NoSink):
    """Keeps jaxnb's own sentences; calls something at the first."""

    def __init__(self, call: Callable[[], object] = lambda: None) -> None:
        self.notices: list[str] = []
        self._call = call

    def notice(self, text: str) -> None:
        self.notices.append(text)
        if len(self.notices) == 1:
            self._call()


class Panels(NoSink):
    """Keeps where it was shown that all wait; calls something when it is shown again."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.panels: list[Waits] = []
        self._call = call

    def waits(self, waits: Waits) -> None:
        self.panels.append(waits)
        if len(self.panels) == 2:
            self._call()


@pytest.fixture
def group(make_session: Callable[..., Session]) -> Session:
    session = make_session(PROCESSES, check="off")
    session.run(SETUP)
    return session


@pytest.fixture
def quick_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes false alarms more likely, and sooner."""
    monkeypatch.setattr(freeing, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(freeing, "LEFT_BEHIND_SECONDS", 0.6)


@contextmanager
def when_stuck(
    session: Session, stuck: Iterable[int], call: Callable[[], object]
) -> Iterator[None]:
    """Calls something once processes wait in JAX; prints how long the block took from then on."""
    called: list[float] = []
    given_up = threading.Event()

    def wait_and_call() -> None:
        while not given_up.wait(0.05):
            found = session.where(stuck)
            if set(found) == set(stuck) and all(map(waits_in_jax, found.values())):
                called.append(time.monotonic())
                call()
                return

    thread = threading.Thread(target=wait_and_call)
    thread.start()
    try:
        yield
    finally:
        given_up.set()
        thread.join()
    assert called, "the processes never waited in JAX"
    seconds = time.monotonic() - called[0]
    print(f"{seconds:.2f} s to the end of the cell")


def assert_kept(session: Session) -> None:
    assert session.state == "ready"
    shared.assert_kept(session, CHECK)
    assert_usable(session)


def types_of(result: CellResult) -> dict[int, str]:
    return {i: e.type_name for i, e in result.errors.items()}


def unless(index: int, code: str, otherwise: str = "time.sleep(1000)") -> str:
    return f"if process_index != {index}:\n    {code}\nelse:\n    {otherwise}"


def press_interrupt() -> None:
    """What Jupyter does: SIGINT to the notebook's process."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("absent", [0, PROCESSES - 1])
@pytest.mark.parametrize("kind", BLOCKED)
def test_interrupt_frees_every_kind_of_wait(
    make_session: Callable[..., Session], kind: str, absent: int
) -> None:
    devices, code = BLOCKED[kind]
    session = make_session(PROCESSES, devices_per_process=devices, check="off")
    session.run(SETUP)
    stuck = sorted(set(range(PROCESSES)) - {absent})
    sink = Notices()
    with when_stuck(session, stuck, session.interrupt), pytest.raises(CellError) as caught:
        session.run(unless(absent, code), sink=sink)
    assert types_of(caught.value.result) == dict.fromkeys(range(PROCESSES), "KeyboardInterrupt")
    # Whoever is interrupted while it compiles has dispatched nothing: nothing is pending.
    assert sink.notices or "compile" in kind
    for notice in sink.notices[-1:]:
        assert "New processes in" in notice
        assert "Lost" not in notice
    assert_kept(session)


def test_all_of_several_interrupts_in_a_row_free(group: Session) -> None:
    for absent in (0, 1, 2, 0):
        stuck = sorted({0, 1, 2} - {absent})
        with when_stuck(group, stuck, group.interrupt), pytest.raises(CellError):
            group.run(unless(absent, "float(f(x))"))
        assert_kept(group)


def test_an_impatient_user_does_no_harm(group: Session) -> None:
    def press_often() -> None:
        for _ in range(5):
            group.interrupt()
            threading.Event().wait(0.05)

    with when_stuck(group, [0, 1], press_often), pytest.raises(CellError):
        group.run(unless(2, "float(f(x))"))
    assert_kept(group)


@pytest.mark.parametrize("devices", [1, 2])
def test_a_timeout_frees(make_session: Callable[..., Session], devices: int) -> None:
    session = make_session(PROCESSES, devices_per_process=devices, check="off")
    session.run(SETUP)
    started = time.monotonic()
    with pytest.raises(CellTimeoutError, match=r"time-out of 0\.5 s.*The group is ready") as caught:
        session.run(unless(0, "float(f(x))"), timeout=0.5)
    print(f"{time.monotonic() - started - 0.5:.2f} s from the time-out to the end of the cell")
    assert sorted(caught.value.result.errors) == [0, 1, 2]
    assert_kept(session)


@pytest.mark.parametrize("devices", [1, 2])
def test_left_behind_by_one_that_raised(make_session: Callable[..., Session], devices: int) -> None:
    session = make_session(PROCESSES, devices_per_process=devices, check="off")
    session.run(SETUP)
    started = time.monotonic()
    sink = Notices()
    with pytest.raises(CellError) as caught:
        session.run("if process_index == 1:\n    raise ValueError('boom')\nfloat(f(x))", sink=sink)
    print(f"{time.monotonic() - started:.2f} s to the end of the cell")
    assert types_of(caught.value.result) == {
        0: "LeftBehindError",
        1: "ValueError",
        2: "LeftBehindError",
    }
    assert str(caught.value) == (
        "process 1 raised ValueError: boom at line 2; processes 0,2 raised LeftBehindError: waited "
        "in a collective at line 3: `float(f(x))`; process 1 raised ValueError at line 2 (cell [2])"
    )
    assert caught.value.result.errors[0].message == (
        "waited in a collective at line 3: `float(f(x))`; process 1 raised ValueError at line 2"
    )
    assert "New processes in" in sink.notices[0]
    assert_kept(session)


def test_what_a_mistake_cost_is_told_once_by_names(make_session: Callable[..., Session]) -> None:
    session = make_session(PROCESSES, devices_per_process=2, check="off")
    session.run(SETUP)
    session.run(
        "step = jax.jit(lambda p: {k: v + v.sum() for k, v in p.items()})\n"
        "p = step({'a': x, 'b': x * 2})\n"
        "jax.block_until_ready(p);"
    )
    sink = Notices()
    mistake = "if process_index == 1:\n    raise ValueError('boom')\np = step(p)\n"
    with pytest.raises(CellError) as caught:
        session.run(f"{mistake}jax.block_until_ready(p);", sink=sink)
    (notice,) = sink.notices
    # What process 1 still has nobody knows: without checks nothing is recorded.
    assert "Lost: `p` (2 arrays) on processes 0,2: its computation was broken off. Using" in notice
    cause, behind = error_groups(caught.value.result)
    assert (cause.processes, behind.processes) == ((1,), (0, 2))
    assert "block_until_ready(p);" in behind.error.traceback
    assert "site-packages" not in behind.error.traceback
    with pytest.raises(CellError, match=r"ArrayGoneError: `p\['a'\]` \(float32\[12\]\) was not"):
        session.run("p['a'] + 1", ranks=[0])
    assert_kept(session)


COMPARES = """
import jaxnb
if process_index == 1: raise ValueError('boom')
jaxnb.compare(lambda a: a, (np.ones(6),), specs={'a': P()}, mesh={'i': 3})
"""


def test_left_behind_in_a_comparison(group: Session) -> None:
    """They wait for each other's word, which they do in Python."""
    with pytest.raises(CellError) as caught:
        group.run(COMPARES)
    left = ["LeftBehindError", "ValueError", "LeftBehindError"]
    assert types_of(caught.value.result) == dict(enumerate(left))
    assert caught.value.result.errors[0].message == (
        f"waited for the others at line 4: `{COMPARES.splitlines()[-1]}`; process 1 raised "
        "ValueError at line 3"
    )
    assert_kept(group)


def test_left_behind_by_those_that_were_not_asked(group: Session) -> None:
    with pytest.raises(CellError) as caught:
        group.run("float(f(x))", ranks=[0, 2])
    assert types_of(caught.value.result) == {0: "LeftBehindError", 2: "LeftBehindError"}
    assert caught.value.result.errors[0].message.endswith(
        "; process 1 had not been asked to run the cell"
    )
    assert_kept(group)


@pytest.mark.usefixtures("quick_look")
def test_who_reads_what_others_have_dispatched_and_left_is_not_freed(
    make_session: Callable[..., Session],
) -> None:
    """Only process 0 logs: the others leave while their computations wait for the last one's."""
    session = make_session(PROCESSES, devices_per_process=2, check="off")
    session.run(SETUP + "y = f(x)")
    sink = Notices()
    code = (
        "for i in range(20):\n    y = f(x)\n"
        "    if i == 10 and process_index == 2: time.sleep(2)\n"
        "    if process_index == 0: print(i, float(y))\n"
        "float(y)"
    )
    for _ in range(3):
        result = session.run(code, sink=sink)
        assert result.value == 66.0  # 0 + 1 + … + 11
        assert len(result.stdout.splitlines()) == 20
    assert sink.notices == []
    assert_kept(session)


BESIDE_A_LOOP = """
stop = threading.Event()
def spin():
    while not stop.is_set(): pass
threading.Thread(target=spin, daemon=True).start()
if process_index == 0: raise ValueError("boom")
try: float(f(x))
finally: stop.set()
"""


def test_left_behind_with_threads_of_the_users(group: Session) -> None:
    """They work on something else."""
    with pytest.raises(CellError) as caught:
        group.run(BESIDE_A_LOOP, timeout=PATIENT_SECONDS)
    assert types_of(caught.value.result) == {
        0: "ValueError",
        1: "LeftBehindError",
        2: "LeftBehindError",
    }
    assert_kept(group)


LONG = {
    "sleep": "time.sleep(2); value = 1",
    "NumPy": "t = time.monotonic()\nwhile time.monotonic() < t + 2: np.ones((200, 200)) @ "
    "np.ones((200, 200))\nvalue = 1",
    "jitted": "spin = jax.jit(lambda a: jax.lax.fori_loop(0, 40, lambda i, a: a @ a / 300, a))\n"
    "t = time.monotonic()\n"
    "while time.monotonic() < t + 2: value = int(spin(jnp.ones((300, 300)))[0, 0] > 0)",
    "one long call": "spin = jax.jit(lambda a, n: jax.lax.fori_loop(\n"
    "    0, n, lambda i, a: a @ a / 300, a))\na = jnp.ones((300, 300))\n"
    "spin(a, 1).block_until_ready()\n"
    "t = time.monotonic(); spin(a, 50).block_until_ready()\n"
    "value = int(spin(a, int(150 / (time.monotonic() - t)))[0, 0] > 0)",
    "subprocess": "import subprocess; value = int(subprocess.run(\n"
    "    'sleep 2; echo 1', shell=True, capture_output=True).stdout)",
    "queue": "import queue\nq = queue.Queue()\nthreading.Timer(2, q.put, [1]).start()\n"
    "value = q.get()",
    "join": "t = threading.Timer(2, print); t.start(); t.join(); value = 1",
    "FIFO": "import os, tempfile\n"
    "path = os.path.join(tempfile.mkdtemp(), 'fifo')\nos.mkfifo(path)\n"
    "def write():\n    with open(path, 'w') as pipe: time.sleep(2); pipe.write('1')\n"
    "threading.Thread(target=write).start()\n"
    "with open(path) as pipe: value = int(pipe.read())",
    "await": "import asyncio; await asyncio.sleep(2); value = 1",
    "callback of a computation": "def read(a):\n    time.sleep(2); return a\n"
    "value = int(jax.jit(lambda a: jax.pure_callback(read, a, a))(jnp.ones(())))",
    "callback with an effect": "from jax.experimental import io_callback\n"
    "def read(a):\n    time.sleep(2); return a\n"
    "value = int(jax.jit(lambda a: io_callback(read, a, a))(jnp.ones(())).block_until_ready())",
    "callback for its effect alone": "def read(a): time.sleep(2)\n"
    "jax.jit(lambda a: jax.debug.callback(read, a))(jnp.ones(()))\n"
    "jax.effects_barrier(); value = 1",
    "compilation": "t = time.monotonic(); k = 0\n"
    "while time.monotonic() < t + 2:\n"
    "    k += 1; jax.jit(lambda a, k=k: sum(a * j for j in range(100 + k))).lower(1.0).compile()\n"
    "value = 1",
}


CALLED_BACK = """
import jax.experimental, threading
def read(a):
    assert threading.current_thread() is not threading.main_thread()
    time.sleep(2)
    return a
own = jax.sharding.Mesh(np.array(jax.local_devices()), "o")
def by_callback(how):
    return jax.jit(jax.shard_map(how, mesh=own, in_specs=P("o"), out_specs=P("o")))
value = jax.device_put(np.ones(2), NamedSharding(own, P("o")))
"""
WAYS_BACK = {
    "pure": "lambda a: jax.pure_callback(read, a, a)",
    "with an effect": "lambda a: jax.experimental.io_callback(read, a, a)",
}


@pytest.mark.usefixtures("quick_look")
@pytest.mark.parametrize("way", WAYS_BACK)
def test_who_is_called_back_in_a_thread_is_not_freed(
    make_session: Callable[..., Session], way: str
) -> None:
    """On several devices JAX runs computations in threads of its own, and callbacks with them."""
    session = make_session(PROCESSES, devices_per_process=2, check="off")
    session.run(SETUP + CALLED_BACK)
    sink = Notices()
    code = f"if process_index:\n    value = by_callback({WAYS_BACK[way]})(value)\n"
    assert session.run(f"{code}np.asarray(value).tolist()", sink=sink).value == [1, 1]
    assert sink.notices == []
    assert_kept(session)


def test_who_is_called_back_for_long_is_shown(
    make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may wait for ever: JAX's own calls do, in a callback."""
    path = tmp_path / "both are shown"

    class UntilShown(Panels):
        def waits(self, waits: Waits) -> None:
            super().waits(waits)
            if [each.processes for each in waits.waits] == [(1, 2)]:
                path.touch()

    monkeypatch.setattr(freeing, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 0.6)
    session = make_session(PROCESSES, devices_per_process=2, check="off")
    session.run(SETUP + CALLED_BACK)
    session.run(
        "import pathlib\ndef read(a):\n"
        f"    while not pathlib.Path({str(path)!r}).exists(): time.sleep(0.01)\n"
        "    return a"
    )
    sink = UntilShown(lambda: None)
    code = f"if process_index:\n    value = by_callback({WAYS_BACK['pure']})(value)\n"
    assert session.run(f"{code}np.asarray(value).tolist()", sink=sink).value == [1, 1]
    assert path.exists()
    assert not any(panel.is_all for panel in sink.panels)
    assert {panel.reason for panel in sink.panels} == {""}
    assert sink.panels[-1].has_ended
    assert_kept(session)


@pytest.mark.usefixtures("quick_look")
@pytest.mark.parametrize("kind", LONG)
def test_who_does_something_else_is_not_freed(group: Session, kind: str) -> None:
    sink = Notices()
    code = LONG[kind].replace("\n", "\n    ")
    result = group.run(f"value = 1\nif process_index:\n    {code}\nvalue", sink=sink)
    assert result.value == 1
    seconds = max(r.seconds for r in result.per_process.values())
    assert seconds > 1.5
    # On a busy machine it may take so long that who waits is shown, and no more than that.
    allowed = ["This may be as it should be" in text for text in sink.notices]
    assert allowed == [] if seconds < freeing.ALL_WAIT_SECONDS else all(allowed)
    assert_kept(group)


@pytest.mark.usefixtures("quick_look")
def test_one_that_works_keeps_the_others_from_being_freed(group: Session) -> None:
    """It may still join."""
    sink = Notices()
    code = (
        "if process_index == 2: time.sleep(3)\nif process_index == 1: pass\n"
        "own = jax.make_mesh((2,), ('o',), devices=[jax.devices()[0], jax.devices()[2]])\n"
        "if process_index != 1:\n"
        "    y = jax.make_array_from_callback((2,), NamedSharding(own, P('o')),\n"
        "                                     lambda i: np.ones(2, np.float32)[i])\n"
        "    print(float(jax.jit(jnp.sum)(y)))"
    )
    result = group.run(code, sink=sink)
    assert result.per_process[0].stdout == "2.0\n"
    assert sink.notices == []
    assert_kept(group)


def test_a_lock_in_a_cells_own_line_ends_right(group: Session) -> None:
    """It looks like a wait in JAX: the processes are replaced, which does no harm."""
    result = group.run(
        "gate = threading.Lock(); gate.acquire()\n"
        "def wait():\n    return gate.acquire(timeout=5)\n"
        "value = process_index == 0\n"
        "if not value:\n    threading.Timer(4, gate.release).start()\n    value = wait()\nvalue"
    )
    assert result.value is True
    assert_kept(group)


WAIT = """
if process_index == 0:
    mh.process_allgather(np.ones(3))
else:
    float(f(x))"""


def test_where_all_wait_is_shown_until_they_are_freed(
    group: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 1.0)
    sink = Panels(press_interrupt)
    with pytest.raises(CellError):
        group.run(WAIT, sink=sink)
    first, second, last = sink.panels
    assert [first.has_ended, second.has_ended, last.has_ended] == [False, False, True]
    assert 1 <= first.seconds < second.seconds <= last.seconds
    zero, others = second.waits
    assert (zero.processes, others.processes) == ((0,), (1, 2))
    assert zero.place is not None
    assert zero.place.text == "at line 3: `mh.process_allgather(np.ones(3))`"
    assert_kept(group)


def test_without_a_sink_what_would_be_silent_is_said_on_standard_error(
    group: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a script runs cells: until somebody interrupts, that is all that can be known."""
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 1.0)
    said = StderrNotices.notice

    def notice(sink: StderrNotices, text: str) -> None:
        said(sink, text)
        if "all processes have waited" in text:
            group.interrupt()

    monkeypatch.setattr(StderrNotices, "notice", notice)
    with pytest.raises(CellError, match="raised KeyboardInterrupt: waited in a coll"):
        group.run(WAIT)
    err = capsys.readouterr().err
    assert "jaxnb: all processes have waited for " in err  # on a busy machine some answer late
    assert "jaxnb: New processes in" in err
    assert_kept(group)


OPENED = """
from jax._src import distributed
client = distributed.global_state.client
def release():
    open({path!r} + str(process_index)).close()
    client.key_value_set(f"go {{process_index}}", "on")
threading.Thread(target=release).start()
client.blocking_key_value_get(f"go {{process_index}}", 60_000)"""


def test_that_all_waited_is_shown_when_they_have_gone_on(
    group: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 1.0)
    paths = [tmp_path / f"gate{i}" for i in range(PROCESSES)]
    for path in paths:
        os.mkfifo(path)
    opened: list[int] = []
    sink = Panels(lambda: opened.extend(os.open(path, os.O_RDWR) for path in paths))
    code = OPENED.format(path=str(tmp_path / "gate"))
    assert group.run(code, sink=sink).value == "on"
    for each in opened:
        os.close(each)
    assert [each.has_ended for each in sink.panels].count(True) == 1
    assert sink.panels[-1].has_ended
    assert_kept(group)


def test_who_is_interrupted_is_not_shown_to_wait(
    group: Session, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Not even while the code handles the interrupt."""
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 1.0)
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    seen: list[bool] = []

    class Opens(Panels):
        def notice(self, text: str) -> None:
            if "caught the interrupt" in text:
                seen.append(self.panels[-1].has_ended)
                seen.append(bool(os.open(gate, os.O_RDWR)))

    code = f"try:\n    {WAIT.strip().replace(chr(10), chr(10) + '    ')}\n"
    code += f"finally:\n    open({str(gate)!r}).close()"
    with pytest.raises(CellError):
        group.run(code, sink=Opens(press_interrupt))
    assert seen == [True, True]
    assert_kept(group)


@pytest.mark.parametrize("stopped", [[1], [0, 1, 2]], ids=["one", "all"])
def test_who_is_stopped_is_told_of_until_it_goes_on(
    group: Session, monkeypatch: pytest.MonkeyPatch, stopped: list[int]
) -> None:
    """The cell does not hang in silence, and nobody is freed: the stopped may go on."""
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 1.0)
    pids = [group.processes[index].pid for index in stopped]

    def send(number: signal.Signals) -> None:
        for pid in pids:
            os.kill(pid, number)

    class Stops(Panels):
        def lines(self, lines: object) -> None:
            send(signal.SIGSTOP)

    sink = Stops(lambda: send(signal.SIGCONT))
    try:
        code = "print('in')\nif process_index == 1: time.sleep(0.5)\nfloat(f(x))"
        if len(stopped) > 1:
            code = "print('in')\ntime.sleep(0.5); float(f(x))"
        result = group.run(code, sink=sink)
    finally:
        send(signal.SIGCONT)
    assert result.value == 15
    first, second, last = sink.panels
    assert first.silent == second.silent == last.silent == tuple(stopped)
    assert [i for wait in second.waits for i in wait.processes] == [
        i for i in range(PROCESSES) if i not in stopped
    ]
    assert [first.has_ended, second.has_ended, last.has_ended] == [False, False, True]
    assert_kept(group)


def test_all_wait_for_each_other(group: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freeing, "ALL_WAIT_SECONDS", 2.0)
    sink = Notices(press_interrupt)
    started = time.monotonic()
    with pytest.raises(CellError) as caught:
        group.run(
            "if process_index == 0:\n    mh.process_allgather(np.ones(3))\nelse:\n    float(f(x))",
            sink=sink,
        )
    print(f"{time.monotonic() - started:.2f} s to the end of the cell, the notice's 2 s included")
    told, anew = sink.notices
    assert "all processes have waited for 2 s" in told
    assert "process 0 at line 2: `mh.process_allgather(np.ones(3))`" in told
    assert "processes 1-2 at line 4: `float(f(x))`" in told
    assert "Interrupt frees them" in told
    assert "New processes in" in anew
    assert types_of(caught.value.result) == dict.fromkeys(range(3), "KeyboardInterrupt")
    assert_kept(group)
