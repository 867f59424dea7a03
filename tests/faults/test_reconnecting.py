"""Reconnects that go wrong on a process: it is asked again, or replaced with its variables."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from faults.test_freeing import Notices
from jaxnb.errors import CellError, ProcessDiedError, SessionBrokenError, StartError
from jaxnb.recovery import putting_away
from jaxnb.session import Session

pytestmark = pytest.mark.timing

SETUP = """
import ctypes, os
from jaxnb.errors import ArrayGoneError
has_died = False
from jaxnb.engine import bootstrap, leaving
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
whole = np.arange(2 * n, dtype=np.float32)
x = jax.make_array_from_callback((2 * n,), NamedSharding(mesh, P("d")), lambda i: whole[i])
mine, plain = jnp.arange(3.0) + process_index, process_index
total = jax.jit(jnp.sum)
expected = float(total(x))
weak, strong = jnp.asarray(2.0), jnp.asarray(np.float32(2))
full = jax.lax.full((n,), 2.0)
weak_split, weak_whole = (
    jax.jit(lambda: jax.lax.full((n,), 2.0), out_shardings=NamedSharding(mesh, spec))()
    for spec in (P("d"), P()))
"""
WEAK = """
assert [each.weak_type for each in (weak, strong, full, weak_whole)] == [True, False, True, True]
assert (jnp.ones(2, jnp.bfloat16) * weak).dtype == jnp.bfloat16
try: assert weak_split.weak_type
except ArrayGoneError: assert has_died
"""
CHECK = (
    """
assert (mine[0], plain) == (process_index, process_index)
assert float(total(x)) == expected
"""
    + WEAK
)
FAULTS = """
def fail(*_):
    raise MemoryError("no room")
def stay(*_):
    c = ctypes.CDLL(None)
    mutex, condition = (ctypes.c_char * 64)(), (ctypes.c_char * 64)()
    c.pthread_mutex_lock(mutex)
    c.pthread_cond_wait(condition, mutex)
join_again = bootstrap.join_again
def fail_once(*how):
    bootstrap.join_again = join_again
    raise OSError("just once")
"""


@pytest.fixture
def group(make_session: Callable[..., Session], monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(putting_away, "SETTLE_SECONDS", 0.2)
    monkeypatch.setattr(putting_away, "NO_EFFECT_SECONDS", 0.5)
    session = make_session(4, devices_per_process=2, check="off")
    session.run(SETUP + FAULTS)
    return session


def pids_of(session: Session) -> list[int]:
    return [process.pid for process in session.processes]


def test_who_cannot_leave_is_replaced_with_its_variables(group: Session) -> None:
    for fault, told in {
        "fail": "raised MemoryError: no room",
        "stay": "did not come back from what it was in",
    }.items():
        before = pids_of(group)
        group.run(f"if process_index == 2: leaving.things_of_devices = {fault}")
        recovered = group.recover()
        assert recovered.given_up == {2: told}
        assert recovered.replaced == (2,)
        assert {"x", "mine", "plain"} <= set(recovered.rescued[2])
        assert [i for i, pid in enumerate(pids_of(group)) if pid != before[i]] == [2]
        group.run(CHECK)
        group.run("from jaxnb.engine import bootstrap, leaving")


def test_a_cell_says_who_could_not_leave(group: Session) -> None:
    group.run("if process_index == 1: leaving.things_of_devices = fail")
    sink = Notices()
    with pytest.raises(CellError, match="process 3 raised ValueError"):
        group.run("if process_index == 3: raise ValueError\nfloat(total(x))", sink=sink)
    *_, anew = sink.notices
    said = "Process 1 raised MemoryError: no room when it was to leave the group, and was replaced."
    assert said in anew
    group.run(CHECK)


def test_who_fails_to_join_is_asked_again(group: Session) -> None:
    """It has left its backend by then: what it put away is all it has."""
    before = pids_of(group)
    group.run("if process_index == 1: bootstrap.join_again = fail_once")
    assert group.recover().replaced == ()
    assert pids_of(group) == before
    group.run(CHECK)


def test_who_replaces_a_process_that_died_has_the_same_weak_types(group: Session) -> None:
    with pytest.raises(ProcessDiedError):
        group.run("if process_index == 3: os._exit(1)\nfloat(total(x))")
    assert group.recover().replaced == (3,)
    group.run("has_died = True" + WEAK)


def test_who_is_rescued_beside_deaths_has_no_array_that_lost_shards(group: Session) -> None:
    """Else it would compute with what the others cannot, and wait for them."""
    group.run("if process_index == 3: leaving.things_of_devices = fail")
    with pytest.raises(ProcessDiedError):
        group.run("if process_index in (0, 2): os._exit(1)\nfloat(total(x))")
    recovered = group.recover()
    assert recovered.replaced == (0, 2, 3)
    kinds = group.run("type(x).__name__").per_process.values()
    assert {each.value for each in kinds} == {"LostArray"}
    group.run("assert (mine[0], plain) == (process_index, process_index)", ranks=[1, 3])
    group.run(SETUP + CHECK)


def test_after_a_failure_to_join_every_message_says_restart(group: Session) -> None:
    group.run("if process_index == 0: bootstrap.join_again = fail")
    with pytest.raises(StartError, match="Type `%spmd_restart` for fresh processes") as caught:
        group.recover()
    assert "%spmd_recover" not in str(caught.value)
    with pytest.raises(SessionBrokenError, match="Type `%spmd_restart` for fresh") as broken:
        group.run("1")
    assert "%spmd_recover" not in str(broken.value)
    group.restart()
    group.run(SETUP + CHECK)
