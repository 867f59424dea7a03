"""Processes of a cell that wait: where is shown, nothing is done unasked, two interrupts end it.

Most run with ``check="off"``, as plain JAX: where processes agree, the plainest do not begin.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jaxnb
from jaxnb.cells.card_cell import waits_text
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import NoSink, SaysWaits
from jaxnb.errors import CellError, CellTimeoutError, SessionBrokenError
from jaxnb.model.dispatches import CheckMode
from jaxnb.model.group import Waits
from jaxnb.session import Session, panel
from support import faults as shared
from support.faults import cleared, show_waits_soon
from support.fixtures import assert_usable

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


class Notices(SaysWaits, NoSink):
    """Keeps jaxnb's own sentences."""

    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


class Presses(Notices):
    """Interrupts when processes are said to wait, and again when that is offered."""

    def __init__(self) -> None:
        super().__init__()
        self.interrupted = threading.Event()

    def notice(self, text: str) -> None:
        super().notice(text)
        if "Interrupt ends the cell" in text or "Interrupt again" in text:
            self.interrupted.set()


class LostPresses(Presses):
    """Interrupts when a message is said to be lost, too."""

    def notice(self, text: str) -> None:
        super().notice(text)
        if "message was lost" in text:
            self.interrupted.set()


class Panels(NoSink):
    """Keeps where processes are; calls something when that is shown again, or Interrupt asked."""

    def __init__(self, call: Callable[[], object]) -> None:
        self.panels: list[Waits] = []
        self._call = call

    def waits(self, waits: Waits) -> None:
        self.panels.append(waits)
        if len(self.panels) == 2:
            self._call()

    def notice(self, text: str) -> None:
        if "Interrupt again" in text:
            self._call()


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Session]:
    with jaxnb.start(PROCESSES, platform="cpu", check="off") as session:
        yield session


@pytest.fixture
def group(shared_group: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    show_waits_soon(monkeypatch)
    session = cleared(shared_group)
    session.run(SETUP)
    return session


def assert_kept(session: Session) -> None:
    assert session.state == "ready"
    shared.assert_kept(session, CHECK)
    assert_usable(session)


def types_of(result: CellResult) -> dict[int, str]:
    return {i: e.type_name for i, e in result.errors.items()}


def ended_by_force(session: Session, code: str, **settings: object) -> tuple[CellResult, list[str]]:
    """Runs a cell that two interrupts end; returns its result and what was said."""
    sink = Presses()
    with pytest.raises(CellError) as caught:
        session.run(code, sink=sink, interrupted=sink.interrupted, **settings)  # type: ignore[arg-type]
    return caught.value.result, sink.notices


def test_left_behind_by_one_that_raised(group: Session) -> None:
    pids = [process.pid for process in group.processes]
    code = "if process_index == 1:\n    raise ValueError('boom')\nfloat(f(x))"
    result, (*shown, told, anew) = ended_by_force(group, code)
    assert any("Process 1 raised ValueError at line 2" in each for each in shown)
    assert "Processes 0,2 have been at line 3: `float(f(x))` for " in " ".join(shown)
    assert told.startswith("Processes 0,2 did not answer the interrupt within ")
    assert "they are at line 3: `float(f(x))`" in told
    assert anew.startswith("New processes in ")
    assert "Processes 0,2 did not respond; their variables were read from memory" in anew
    assert types_of(result) == {0: "NoAnswer", 1: "ValueError", 2: "NoAnswer"}
    assert result.cause == "missing"
    assert {process.pid for process in group.processes}.isdisjoint(pids)
    assert_kept(group)


def test_after_a_time_out_nothing_is_done_unasked(group: Session) -> None:
    pids = [process.pid for process in group.processes]
    code = "import time\nif process_index == 0: time.sleep(1000)\nfloat(f(x))"
    with pytest.raises(CellTimeoutError, match=r"time-out of 1 s.*type `%spmd_recover`") as caught:
        group.run(code, timeout=1)
    assert types_of(caught.value.result) == {0: "KeyboardInterrupt", 1: "NoAnswer", 2: "NoAnswer"}
    with pytest.raises(SessionBrokenError, match="%spmd_recover"):
        group.run("1")
    assert [process.pid for process in group.processes] == pids
    recovered = group.recover()
    assert recovered.unended == (1, 2)
    assert recovered.lost == ()
    assert_kept(group)


@pytest.mark.timing
@pytest.mark.parametrize("stopped", [[1], [0, 1, 2]], ids=["one", "all"])
def test_who_is_stopped_is_told_of_until_it_goes_on(group: Session, stopped: list[int]) -> None:
    """The cell does not hang in silence, and nothing is done: the stopped may go on."""
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
    assert [i for each in second.places for i in each.processes] == [
        i for i in range(PROCESSES) if i not in stopped
    ]
    assert [first.has_ended, second.has_ended, last.has_ended] == [False, False, True]
    assert_kept(group)


LOSES = """
class _Nowhere:
    def send_multipart(self, *args, **named):
        pass

def _lose(kind, text, session=get_ipython().kernel.session):
    real = session.send
    def send(stream, message, content=None, *args, **named):
        is_dict = isinstance(message, dict)
        said = message["content"] if is_dict else content
        if (message["msg_type"] if is_dict else message) == kind and text in str(said):
            session.send = real
            stream = _Nowhere()
        return real(stream, message, content, *args, **named)
    session.send = send
if process_index == 1: _lose({kind!r}, {text!r})
print("Its end follows.")
"""


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        pytest.param("apply_reply", "ok", id="answer"),
        pytest.param("status", "idle", id="end", marks=pytest.mark.thorough),
    ],
)
def test_a_message_that_is_lost_is_told_of(
    group: Session, monkeypatch: pytest.MonkeyPatch, kind: str, text: str
) -> None:
    monkeypatch.setattr(panel, "LOST_SECONDS", 1.0)
    sink = LostPresses()
    with pytest.raises(CellError):
        group.run(LOSES.format(kind=kind, text=text), sink=sink, interrupted=sink.interrupted)
    told = [each for each in sink.notices if "message was lost" in each]
    assert len(told) == 1
    assert told[0].startswith("Process 1 is running no cell and has not answered for 1 s")
    group.run(CHECK)
    assert_usable(group)


@pytest.mark.thorough
@pytest.mark.parametrize("check", ["off", "strict"])
def test_a_cell_that_shows_nothing_is_seen_to_be_at_work(
    group: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check: CheckMode
) -> None:
    monkeypatch.setattr(panel, "QUIET_SECONDS", 0.5)
    go = tmp_path / "go"
    sink = Panels(go.touch)
    ends = f"os.path.exists({str(go)!r})"
    if check == "strict":
        ends = f"mh.broadcast_one_to_all({ends})"
    group.run(f"import os\nwhile not {ends}: pass\nprint('ends')", sink=sink, check=check)
    *shown, last = sink.panels
    assert (shown[-1].dispatches > 0) == (check == "strict")
    assert [i for each in shown[-1].places for i in each.processes] == [0, 1, 2]
    assert last.has_ended
    assert waits_text(last) == ""
    assert check == "strict" or last.cause == ""  # one may just wait for another
