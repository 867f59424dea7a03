"""A computation that does not end: a cell that waits for it does, and is told what runs on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import jaxnb
from jaxnb.cells.merge_output import MergedLine
from jaxnb.errors import CellError, CellTimeoutError, SessionBrokenError
from jaxnb.model.group import Waits
from jaxnb.session import Session, run_cells
from support.faults import OnWaits, assert_kept, cleared, pressing_beside, show_waits_soon
from support.fixtures import PATIENT_SECONDS, until

SETUP = """
import threading, time
from pathlib import Path
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
one = np.ones(1, np.float32)
x = jax.make_array_from_callback((n,), NamedSharding(mesh, P("d")), lambda i: one)
def spmd(f, out=P("d")):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=out, check_vma=False))
def in_vain(value):
    while not gate.exists():
        time.sleep(0.01)
    return value
def called_back(a):
    return jax.pure_callback(in_vain, jax.ShapeDtypeStruct(a.shape, a.dtype), a)
turning = spmd(lambda a: jax.lax.fori_loop(0, 10**8, lambda i, c: jax.lax.psum(c, "d") / n, a))
blocked = spmd(lambda a: jax.lax.psum(called_back(a), "d"), P())
y = None
"""


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Session]:
    with jaxnb.start(2, devices_per_process=2, platform="cpu") as session:
        yield session


@pytest.fixture
def group(shared_group: Session, tmp_path: Path) -> Session:
    group = cleared(shared_group)
    group.run(f"{SETUP}\ngate = Path({str(tmp_path / 'gate')!r})", timeout=PATIENT_SECONDS)
    return group


@pytest.fixture(autouse=True)
def is_soon_told(monkeypatch: pytest.MonkeyPatch) -> None:
    show_waits_soon(monkeypatch)
    monkeypatch.setattr(run_cells, "COMPUTED_SECONDS", 0.5)


class OnWaitsOrLines(OnWaits):
    """Calls it when the cell has printed, too."""

    def lines(self, lines: list[MergedLine]) -> None:
        self.waits(Waits((), 0.0))


VALUES = {
    "of several processes": "turning(x)",
    "equal on all": "y = blocked(x)\ny",
    "described, not formatted": "import dataclasses\n"
    "@dataclasses.dataclass\n"
    "class Pair:\n"
    "    a: object\n"
    "    def __repr__(self): return 'a pair'\n"
    "Pair(blocked(x))",
    "waited for by the user, and held by nobody": "turning(x).block_until_ready()",
}
IN_THE_GATE = ("of several processes", "equal on all")
PLAYED = [
    pytest.param(name, marks=() if name in IN_THE_GATE else pytest.mark.thorough) for name in VALUES
]


@pytest.mark.parametrize("name", PLAYED)
def test_a_time_out_ends_a_cell_whose_value_does_not_come(group: Session, name: str) -> None:
    with pytest.raises(CellTimeoutError, match=r"Still computing: `jit\(.*`%spmd_recover`"):
        group.run(VALUES[name], timeout=0.5)
    assert group.state == "broken"
    with pytest.raises(SessionBrokenError, match=r"still computes .*`jit\(.* on processes 0-1"):
        group.run("x.sum()")


def test_interrupt_ends_it_and_says_what_is_still_computed(group: Session) -> None:
    sink = OnWaitsOrLines(group.interrupt)
    with pytest.raises(CellError, match="KeyboardInterrupt"):
        group.run("turning(x)", sink=sink)
    assert group.state == "broken"
    assert "still computes what a cell dispatched" in group.group.notes[0]
    assert any("still computing: `jit(" in each for each in sink.notices)
    group.recover()
    assert_kept(group, "float(x.sum())", 4.0)


def test_a_second_interrupt_makes_new_processes(
    group: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cells, "COMPUTED_SECONDS", PATIENT_SECONDS)
    pids = [each.pid for each in group.processes]

    def press(press_once: Callable[[], None]) -> None:
        until(lambda: has_waited)
        press_once()
        until(lambda: group.state != "busy")  # sooner it would count as one with the first
        press_once()

    has_waited: list[bool] = []
    with pressing_beside(press), pytest.raises(CellError, match="KeyboardInterrupt"):
        group.run("y = blocked(x)\ny", sink=OnWaitsOrLines(lambda: has_waited.append(True)))
    assert group.state == "ready"
    assert not {each.pid for each in group.processes} & set(pids)
    assert_kept(group, "float(x.sum())", 4.0)


def test_once_it_has_ended_cells_run_again(group: Session, tmp_path: Path) -> None:
    with pytest.raises(CellTimeoutError, match="Still computing"):
        group.run("y = blocked(x)\ny", timeout=0.5)
    with pytest.raises(SessionBrokenError):
        group.run("1")
    (tmp_path / "gate").touch()

    def runs() -> bool:
        try:
            group.run("1")
        except SessionBrokenError:
            return False
        return True

    until(runs)
    assert group.state == "ready"
    assert_kept(group, "float(y[0])", 4.0)


def test_what_ends_soon_after_an_interrupt_breaks_nothing(
    group: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_cells, "COMPUTED_SECONDS", PATIENT_SECONDS)
    sink = OnWaitsOrLines(lambda: ((tmp_path / "gate").touch(), group.interrupt()))
    with pytest.raises(CellError, match="KeyboardInterrupt"):
        group.run("y = blocked(x)\nprint('in')\ntime.sleep(1000)", sink=sink)
    assert group.state == "ready"
    assert_kept(group, "float(y[0])", 4.0)
