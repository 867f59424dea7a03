"""A computation that all have agreed on, and that fails on one process only."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import jaxnb
from faults.test_waits import Notices, Presses
from jaxnb.errors import CellError
from jaxnb.session import Session, interrupts_and_timeouts
from support.faults import cleared, show_waits_soon

DEVICES = 2
"""So many each: a dispatch returns before its collectives have run."""


SETUP = """
import contextlib, time
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
odd, slow = set(), {}
def call(a):
    time.sleep(slow.get(process_index, 0))
    if process_index in odd and a.max() > 0: raise ValueError("no")
    return np.asarray(a)
def called(a):
    return jax.pure_callback(call, jax.ShapeDtypeStruct(a.shape, a.dtype), a)
def mapped(f, out):
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("d"), out_specs=out))
called_before = mapped(lambda a: jax.lax.psum(called(a).sum(), "d"), P())
called_after = mapped(lambda a: called(a + jax.lax.psum(a.sum(), "d")), P("d"))
def result_of(made):
    try: return float(made.addressable_shards[0].data.sum())
    except Exception as error: return type(error).__name__
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
    show_waits_soon(monkeypatch)
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
    assert sink.notices[0].startswith(
        f"Process 0 failed in `jit(<lambda>)` at line 1 of cell [{caught.value.result.cell}] "
        "(INVALID_ARGUMENT: Disallowed host-to-device transfer: "
    )
    assert sink.notices[0].endswith(
        "), which process 1 had begun, too: if they were to meet in it after that, process 1 "
        "waits for ever."
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
    assert not any("Stopped cleanly" in each for each in sink.notices)
    assert_new_group(group, before, sink.notices)


def test_without_an_interrupt_the_group_recovers_by_itself(
    group: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Headless, nobody presses it: others would wait in the computation until the time-out."""
    monkeypatch.setattr(interrupts_and_timeouts, "APART_SECONDS", 0.5)
    before, sink = pids(group), Notices()
    with pytest.raises(CellError, match="no"):
        group.run("odd = {0}\nfloat(called_before(x + 1))", sink=sink)
    (told,) = [each for each in sink.notices if "They are interrupted." in each]
    assert "(ValueError: no), which process 1 had begun, too" in told
    assert told.endswith("waits for ever. They are interrupted.")
    assert_new_group(group, before, sink.notices)


@pytest.mark.parametrize("keeps", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_what_comes_after_it_does_not_meet_the_wrong_one(group: Session, keeps: bool) -> None:
    """In plain JAX the sum of `x * 2` on process 0 meets the one of `x` that 1 waits in."""
    before, sink = pids(group), Presses()
    code = FAILS_AND_GOES_ON.format(processes=(0,))
    if not keeps:
        code += "y = None\n"
    with pytest.raises(CellError) as caught:
        group.run(code + "wrong = float(total(x * 2, host))", sink=sink)
    errors = caught.value.result.errors
    assert {each.type_name for each in errors.values()} == {"DivergenceError"}
    assert "Process 0 failed in `jit(<lambda>)` at line 3 of cell" in str(errors[1])
    assert caught.value.result.cause == "missing"
    assert group.run("'wrong' in globals()").value is False
    assert_new_group(group, before, sink.notices)


@pytest.mark.thorough
def test_what_fails_on_all_alike_is_gone_on_with(group: Session) -> None:
    before = pids(group)
    group.run(FAILS_AND_GOES_ON.format(processes=(0, 1)) + "assert float(total(x, host)) == kept")
    with pytest.raises(CellError, match="JaxRuntimeError"):
        group.run("with guarded(0, 1): y = total(x, host)")
    assert group.run("float(total(x, host)) == kept").value is True
    group.run("odd = {0, 1}; slow = {1: 1.5}; y = called_after(x)")
    found = group.run("odd = set(); slow = {}; result_of(y)").per_process
    assert {each.value for each in found.values()} == {"JaxRuntimeError"}
    assert group.run("float(total(x, host)) == kept").value is True
    assert pids(group) == before


FLAKY = """
def call(a):  # i is in the data: the callback runs when it likes
    if {1: 1, 3: 0}.get(int(a.max() // 100)) == process_index: raise ValueError("no")
    return np.asarray(a)
called_before = mapped(lambda a: jax.lax.psum(called(a).sum(), "d"), P())
results = [called_before(x + 100 * i) for i in range(6)]
"""
NO_RESULT = """
def note(a):
    jax.debug.callback(lambda a: None, jax.lax.psum(called(a).sum(), "d")); return ()
noted = mapped(note, ())
odd = {1}; noted(x); right = float(total(x, host))
"""
POISONED = """
alone = mapped(called, P("d"))
odd = {1}; y = alone(x * 10)
right = float(total(y, host))
"""


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(FLAKY, id="flaky"),
        pytest.param(NO_RESULT, id="no result", marks=pytest.mark.thorough),
        pytest.param(POISONED, id="of an argument"),
    ],
)
def test_a_callback_that_raises_is_waited_for(group: Session, code: str) -> None:
    """Else the next sum would meet the one that process 0 waits in, and be wrong."""
    before, sink = pids(group), Presses()
    with pytest.raises(CellError):
        group.run(code, sink=sink, interrupted=sink.interrupted)
    told = [each for each in sink.notices if "Process 1 failed in `jit(" in each]
    assert told, sink.notices
    assert_new_group(group, before, sink.notices)


def test_the_error_of_a_callback_is_named_and_what_it_has_cost(group: Session) -> None:
    """Nobody knows whether the processes had met before it."""
    before, sink = pids(group), Presses()
    group.run("odd = {1}; y = called_after(x)", sink=sink)
    assert "(ValueError: no), which process 0" in sink.notices[0]
    assert "calling callback: ValueError: no." in sink.notices[-1]
    assert_new_group(group, before, sink.notices)


@pytest.mark.thorough
def test_what_is_deleted_has_not_failed(group: Session) -> None:
    before, sink = pids(group), Presses()
    group.run("y = called_after(x)\nif process_index == 0: y.delete()", sink=sink)
    with pytest.raises(CellError, match="KeyError: 'mine'"):
        group.run("y = called_after(x); y.delete(); raise KeyError('mine')", sink=sink)
    assert group.run("float(total(x, host)) == kept").value is True
    assert (pids(group), sink.notices) == (before, [])
