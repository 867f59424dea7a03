"""A process that compiles a program for all: killed, stopped, interrupted; others wait for it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError, CellTimeoutError, ProcessDiedError
from jaxnb.model.group import Waits
from jaxnb.session import Session
from support.faults import show_waits_soon
from support.fixtures import PATIENT_SECONDS

Make = Callable[..., Session]

ARRAYS = """
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((n,), NamedSharding(mesh, P("d")), lambda i: np.ones(1, "f4"))
def tripled(a):
    return (a * 3).sum()
"""
HOLD = """
import os
from jaxnb.launch import process_compiling
kept = process_compiling.serialized
def held_up(executable):  # with the lock, before anybody can load it
    if os.path.exists(gate):
        open(gate).close()
    return kept(executable)
process_compiling.serialized = held_up
"""
CELL = "y = float(jax.jit(tripled)(x))\ny"


DOING = "compiling `jit(tripled)`"


class OnCompiling(NoSink):
    """Calls something once it is shown who compiles.

    Args:
        call: Called then, with that process.
    """

    def __init__(self, call: Callable[[int], object]) -> None:
        self.holder: int | None = None
        self._call = call

    def waits(self, waits: Waits) -> None:
        """Takes what is shown; at first others may be waited for."""
        found = [each.processes for each in waits.places if each.doing == DOING]
        if found and self.holder is None:
            ((self.holder,),) = found
            self._call(self.holder)


@pytest.fixture
def group(make_session: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    show_waits_soon(monkeypatch)
    session = make_session(2, devices_per_process=2, compile_cache=tmp_path / "programs")
    os.mkfifo(tmp_path / "gate")
    session.run(f"gate = {str(tmp_path / 'gate')!r}\n{ARRAYS}{HOLD}")
    return session


def test_the_wait_is_shown(group: Session, tmp_path: Path) -> None:
    sink = OnCompiling(lambda _: (tmp_path / "gate").write_text(""))  # lets it go on
    assert group.run(CELL, sink=sink, timeout=PATIENT_SECONDS).value == 12.0
    assert sink.holder in (0, 1)


def test_others_go_on_once_the_holder_has_died(group: Session) -> None:
    sink = OnCompiling(lambda holder: os.kill(group.processes[holder].pid, signal.SIGKILL))
    with pytest.raises((ProcessDiedError, CellError)):
        group.run(CELL, sink=sink, timeout=PATIENT_SECONDS)
    group.recover()
    assert group.run(f"{ARRAYS}\nfloat(jax.jit(tripled)(x))").value == 12.0


def test_a_time_out_ends_the_holder_and_those_who_wait(group: Session) -> None:
    with pytest.raises(CellTimeoutError) as caught:
        group.run(CELL, timeout=1)
    assert sorted(caught.value.result.errors) == [0, 1]
    group.run("if process_index == 0: os.remove(gate)\nprocess_compiling.serialized = kept")
    assert group.run(CELL, timeout=PATIENT_SECONDS).value == 12.0
