"""A computation that all have agreed on, and that fails on one process only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jaxnb
from faults.shared import cleared
from faults.test_waits import Panels, Presses
from jaxnb.errors import CellError
from jaxnb.session import Session
from jaxnb.stalls import panel

DEVICES = 2
"""So many each: a dispatch returns before its collectives have run."""

SETUP = """
import contextlib
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
spread = NamedSharding(mesh, P("d"))
def of(values):
    return jax.make_array_from_callback(values.shape, spread, lambda i: values[i])
x = of(np.arange(1.0 * n, dtype=np.float32))
total = jax.jit(lambda x, host: (x * host).sum())
host = np.ones(n, np.float32)
kept = float(total(x, host))
def guarded(*processes):
    it_is = process_index in processes
    return jax.transfer_guard("disallow") if it_is else contextlib.nullcontext()
def call(a):
    if process_index in odd: raise ValueError("no")
    return np.asarray(a)
def called(a):
    return jax.pure_callback(call, jax.ShapeDtypeStruct(a.shape, a.dtype), a)
@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P("d"), out_specs=P())
def called_before(a):
    return jax.lax.psum(called(a).sum(), "d")
@jax.jit
@jax.shard_map(mesh=mesh, in_specs=P("d"), out_specs=P("d"))
def called_after(a):
    return called(a + jax.lax.psum(a.sum(), "d"))
"""

FAILS_AND_GOES_ON = """
try:
    with guarded(*{processes}): y = total(x, host)
except jax.errors.JaxRuntimeError: pass
"""


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Session]:
    with jaxnb.start(2, platform="cpu", devices_per_process=DEVICES) as session:
        yield session


@pytest.fixture
def group(shared_group: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(panel, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(panel, "ALL_WAIT_SECONDS", 1.0)
    session = cleared(shared_group)
    session.run(SETUP)
    return session


def pids(session: Session) -> list[int]:
    return [each.pid for each in session.processes]


def assert_new_group(session: Session, before: list[int], told: list[str]) -> None:
    """Fails unless new processes have the variables, and compute what is right."""
    assert session.state == "ready"
    assert not set(pids(session)) & set(before)
    assert any("New processes in" in each for each in told)
    right = session.run("float(total(x, host)) == kept and float(total(x * 2, host)) == 2 * kept")
    assert right.value is True


def test_what_one_has_not_begun_is_told_at_once_and_costs_no_variable(group: Session) -> None:
    """The others' arrays never come: else the next cell would wait for them for ever."""
    before, sink = pids(group), Presses()
    with pytest.raises(CellError, match="process 0 raised JaxRuntimeError") as caught:
        group.run("with guarded(0): y = total(x, host)", sink=sink)
    assert sink.notices[0] == (
        f"Process 0 failed in `jit(<lambda>)` at line 1 of cell [{caught.value.result.cell}], "
        "which process 1 had begun, too, and waits in: there it never ends."
    )
    assert "`y` (float32[]) on process 1: its computation had not ended" in sink.notices[1]
    assert_new_group(group, before, sink.notices)


def test_who_waits_in_it_is_told_why_and_one_interrupt_ends_it(group: Session) -> None:
    before, sink = pids(group), Presses()
    with pytest.raises(CellError) as caught:
        group.run(
            "with guarded(0): y = float(total(x, host))", sink=sink, interrupted=sink.interrupted
        )
    assert {i: e.type_name for i, e in caught.value.result.errors.items()} == {
        0: "JaxRuntimeError",
        1: "KeyboardInterrupt",
    }
    assert "Process 0 failed in `jit(<lambda>)` at line 1" in sink.notices[0]
    assert "Interrupt ends the cell" in sink.notices[0]
    assert_new_group(group, before, sink.notices)


def test_what_comes_after_it_does_not_meet_the_wrong_one(group: Session) -> None:
    """In plain JAX the sum of `x * 2` on process 0 meets the one of `x` that 1 waits in."""
    before, sink = pids(group), Presses()
    code = FAILS_AND_GOES_ON.format(processes=(0,)) + "wrong = float(total(x * 2, host))"
    with pytest.raises(CellError) as caught:
        group.run(code, sink=sink)
    errors = caught.value.result.errors
    assert {each.type_name for each in errors.values()} == {"DivergenceError"}
    assert "Process 0 failed in `jit(<lambda>)` at line 3 of cell" in str(errors[1])
    assert caught.value.result.cause == "missing"
    assert group.run("'wrong' in globals()").value is False
    assert_new_group(group, before, sink.notices)


def test_what_fails_on_all_alike_is_gone_on_with(group: Session) -> None:
    before = pids(group)
    group.run(FAILS_AND_GOES_ON.format(processes=(0, 1)) + "assert float(total(x, host)) == kept")
    with pytest.raises(CellError, match="JaxRuntimeError"):
        group.run("with guarded(0, 1): y = total(x, host)")
    assert group.run("float(total(x, host)) == kept").value is True
    assert pids(group) == before


def test_a_failure_that_nobody_looked_at_is_found_by_who_waits_after_it(group: Session) -> None:
    """Process 1's next sum meets the one of process 0 that it has left: it is wrong, as told."""
    before, sink = pids(group), Presses()
    group.run("odd = {1}; y = called_before(x)", sink=sink)
    if not sink.notices:  # else it was found as the cell ended
        with pytest.raises(CellError):
            group.run("z = float(total(x, host))", sink=sink, interrupted=sink.interrupted)
        assert "collectives have met the wrong ones since" in sink.notices[0]
        assert "Process 1 failed in `jit(called_before)` at line 1 of cell" in sink.notices[0]
    assert "calling callback: ValueError: no." in sink.notices[-1]
    assert_new_group(group, before, sink.notices)


def test_one_that_fails_after_they_have_met_costs_nothing(group: Session) -> None:
    before, sink = pids(group), Panels(lambda: None)
    with pytest.raises(CellError, match="process 1 raised"):
        group.run("odd = {1}; y = called_after(x).block_until_ready()", sink=sink)
    assert group.run("float(total(x, host)) == kept").value is True
    assert pids(group) == before
    assert not sink.panels
