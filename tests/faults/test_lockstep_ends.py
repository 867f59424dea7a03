"""What is told of a cell, however a process has left it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxnb
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError
from jaxnb.session import Session, panel
from support.fixtures import PATIENT_SECONDS

SETUP = """
import signal, time
mesh = jax.make_mesh((3,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def make(value):
    host = np.full(6, value, np.float32)
    return jax.make_array_from_callback(
        host.shape, NamedSharding(mesh, P("d")), lambda index: host[index])
x = make(1)
total = jax.jit(jnp.sum)
float(total(x))
"""


@pytest.fixture(scope="module")
def group() -> Iterator[Session]:
    with jaxnb.start(3, platform="cpu") as session:
        session.run(SETUP)
        yield session


def divergence_of(session: Session, code: str) -> str:
    """Runs a cell that process 0 leaves, or that parts; returns what another one was told."""
    with pytest.raises(CellError) as caught:
        session.run(code, timeout=PATIENT_SECONDS)
    error = caught.value.result.per_process[2].error
    assert error is not None
    assert error.type_name == "DivergenceError"
    assert session.run("float(total(x))").value == 6.0
    return error.message


@pytest.mark.parametrize("seconds", [0.01, 0.3], ids=["in its lines", "after its lines"])
def test_who_waits_for_one_that_a_handler_took_out_of_the_cell_is_told(
    group: Session, seconds: float
) -> None:
    """Of code that runs after the cell's own, too, which a handler may strike as well."""
    group.run(
        "from jaxnb.wire import process_features\n"
        "class Late(Exception): pass\n"
        "def late(*_): raise Late\n"
        "kept, handler = process_features.over, signal.signal(signal.SIGALRM, late)\n"
        "def over(cell):\n    time.sleep(1)\n    return kept(cell)\n"
        "process_features.over = over"
    )
    code = (
        f"if process_index == 0:\n    signal.setitimer(signal.ITIMER_REAL, {seconds})\n"
        f"    if {seconds} < 0.1: time.sleep(1000)\n"
        "else:\n    process_features.over = kept\n    total(x)"
    )
    try:
        assert "process 0" in divergence_of(group, code)
    finally:
        group.run("process_features.over = kept; signal.signal(signal.SIGALRM, handler);")


class Opens(NoSink):
    """Lets a process that waits at a FIFO go on when something is said."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self.path, self.said = path, list[str]()
        self.opened: int | None = None

    def notice(self, text: str) -> None:
        self.said.append(text)
        self.opened = os.open(self.path, os.O_RDWR) if self.opened is None else self.opened


@pytest.mark.parametrize("others", ["total(x)", "1"], ids=["waits for it", "does not"])
def test_what_was_raised_is_told_while_another_process_is_at_work(
    group: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, others: str
) -> None:
    monkeypatch.setattr(panel, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(panel, "WAIT_SECONDS", 0.5)
    sink = Opens(tmp_path / "gate")
    at_work = f"if process_index == 2: open({str(sink.path)!r}).close()"
    with pytest.raises(CellError) as caught:
        group.run(f"if process_index == 1: los\n{at_work}\n{others};", sink=sink)
    assert sink.opened is not None
    os.close(sink.opened)
    assert sink.said[0].startswith(
        "Process 1 raised NameError at line 1: name 'los' is not defined. Process"
    )
    assert "still in the cell" in sink.said[0]
    assert sink.said[0].endswith("; Interrupt ends it.")
    told = {i: e.message for i, e in caught.value.result.errors.items() if i != 1}
    if others == "1":
        assert f"Process 2 is still in the cell, at line 2: `{at_work}`;" in sink.said[0]
        assert told == {}
    else:
        assert told[0] == told[2]
        assert "process 1: raised NameError at line 1" in told[0]
    assert group.run("float(total(x))").value == 6.0
