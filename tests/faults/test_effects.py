"""Cells whose computations print or call back: whatever hangs on the backend, nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from faults.shared import without_replica
from faults.test_freeing import Notices
from jaxnb import freeing
from jaxnb.errors import CellError, CellTimeoutError, ProcessDiedError
from jaxnb.session import Session

pytestmark = pytest.mark.timing

SETUP = """
import time, os
from jax.experimental import io_callback, multihost_utils
n, last = jax.device_count(), num_processes - 1
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
def make(size):
    whole = np.arange(float(size), dtype=np.float32)
    return jax.make_array_from_callback((size,), NamedSharding(mesh, P("d")), lambda i: whole[i])
x, mine = make(4 * n), jnp.arange(3.0) + process_index
total = jax.jit(jnp.sum)
expected = float(total(x))
def split(body):
    return jax.jit(lambda v: jnp.sum(
        jax.shard_map(body, mesh=mesh, in_specs=P("d"), out_specs=P("d"))(v)))
def host(v):
    if process_index == last and trouble == "raises": raise ValueError("told")
    if process_index == last and trouble == "sleeps": time.sleep(1000)
    return v
def like(v): return jax.ShapeDtypeStruct(v.shape, v.dtype)
def printed(v): jax.debug.print("of {}", v); return v
def debugged(v): jax.debug.callback(host, v); return v
@jax.jit
def printed_in_order(v): jax.debug.print("of {}", v, ordered=True); return v + 1
here = {
    "ordered": jax.jit(lambda v: io_callback(host, like(v), v, ordered=True)),
    "local": jax.jit(lambda v: jax.pure_callback(host, like(v), v)),
}
steps = {
    "print": split(printed), "debug.callback": split(debugged),
    "io_callback": split(lambda v: io_callback(host, like(v), v)),
    "pure_callback": split(lambda v: jax.pure_callback(host, like(v), v)),
    **dict.fromkeys(here, total),
}
trouble = ""
"""

CHECK = """
assert mine.tolist() == [process_index + i for i in range(3)]
assert float(total(x)) == expected
v = jnp.arange(1.0)
for _ in range(4): v = printed_in_order(v)
jax.effects_barrier()
"""
IN_ORDER = "of [0.]\nof [1.]\nof [2.]\nof [3.]\n"

KINDS = "print", "debug.callback", "io_callback", "pure_callback", "ordered", "local"

# On one device what sleeps keeps the main thread, which is in the cell then.
TROUBLES = {"print": ("",), "ordered": ("raises",), "local": ("raises",)}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Frees sooner who is left behind: these tests are about what comes after."""
    monkeypatch.setattr(freeing, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(freeing, "LEFT_BEHIND_SECONDS", 0.6)


def loop(kind: str, trouble: str, fault: str) -> str:
    """Returns a cell that queues steps, at one of which one process does something else."""
    return (
        f"trouble, result, kept = {trouble!r}, None, here.get({kind!r}, lambda v: v)\n"
        f"for i in range(20):\n"
        f"    result, local = steps[{kind!r}](x), kept(mine)\n"
        f"    if i == 10 and process_index == last: {fault}\n"
        f"float(result)"
    )


def check(session: Session) -> None:
    """Fails unless the processes have their variables, and print in order."""
    assert session.state == "ready"
    assert {each.stdout for each in session.run(CHECK).per_process.values()} == {IN_ORDER}


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4)], ids=["4x2", "2x4"])
def test_no_variable_is_lost_with_effects_that_were_broken_off(
    make_session: Callable[..., Session], sizes: tuple[int, int]
) -> None:
    """In one group, one after the other: nothing of an earlier one is in the way of the next.

    Who waits for a callback that sleeps is freed by a time-out: a callback may read something for
    long, so nobody is freed unasked.
    """
    session = make_session(sizes[0], devices_per_process=sizes[1], check="off")
    session.run(SETUP)
    kinds = KINDS if sizes == (4, 2) else ("print", "debug.callback")
    # A callback that sleeps does so until the end, and while it does nobody is freed unasked.
    for trouble in ("", "raises", "sleeps"):
        for kind in kinds:
            if trouble not in TROUBLES.get(kind, ("raises", "sleeps")):
                continue
            sink, timeout = Notices(), 1.0 if trouble == "sleeps" else None
            with pytest.raises(CellTimeoutError if timeout else CellError):
                session.run(loop(kind, trouble, "nosuch"), sink=sink, timeout=timeout)
            check(session)


class InterruptsAgain(Notices):
    """Interrupts once more when the user is told what that does."""

    def __init__(self, interrupted: threading.Event) -> None:
        super().__init__()
        self._interrupted = interrupted

    def notice(self, text: str) -> None:
        super().notice(text)
        if "Interrupt again to end it by force" in text:
            self._interrupted.set()


@pytest.mark.parametrize("how", ["interrupt", "timeout"])
def test_a_callback_that_sleeps_costs_nothing_when_it_is_interrupted(
    make_session: Callable[..., Session], how: str
) -> None:
    """Who waits for it in C++ is replaced when that is asked for; variables are read out first."""
    session = make_session(2, devices_per_process=2, check="off")
    session.run(SETUP)
    for kind in "debug.callback", "local":
        interrupted, timeout = threading.Event(), None
        if how == "timeout":
            timeout = 1.0
        else:
            threading.Timer(1.0, interrupted.set).start()
        with pytest.raises(CellTimeoutError if timeout else CellError):
            session.run(
                loop(kind, "sleeps", "pass"),
                timeout=timeout,
                interrupted=interrupted,
                sink=InterruptsAgain(interrupted),
            )
        if session.state != "ready":
            session.recover()
        check(session)


@pytest.mark.parametrize("kind", ["print", "ordered"])
def test_a_death_amid_effects_costs_the_others_nothing(
    make_session: Callable[..., Session], kind: str
) -> None:
    session = make_session(4, devices_per_process=2, check="off")
    session.run(SETUP)
    with pytest.raises(ProcessDiedError):
        session.run(loop(kind, "", "os._exit(1)"))
    recovered = session.recover()
    assert recovered.died == (3,)
    assert "x" in without_replica(recovered)
    session.run("assert process_index == last or mine.tolist()[0] == process_index")
    session.run(SETUP)
    check(session)


KEYS = """
def spread(make): return jax.jit(make, out_shardings=NamedSharding(mesh, P("d")))()
words = spread(lambda: jax.random.bits(jax.random.key(1), (n, 2), "uint32"))
good = spread(lambda: jax.random.split(jax.random.key(3), n))
def dies(v):
    if process_index == last: os._exit(3)
    raise ValueError("told")
bad = jax.random.wrap_key_data(jax.jit(jax.shard_map(
    lambda v: jax.pure_callback(dies, like(v), v), mesh=mesh, in_specs=P("d"), out_specs=P("d")
))(words))
while True: time.sleep(1)
"""


def test_keys_whose_words_were_broken_off_cost_the_others_nothing(
    make_session: Callable[..., Session],
) -> None:
    """A process dies with shards of them: what is left of keys is that of the array of words."""
    session = make_session(3, devices_per_process=2, check="off")
    session.run(SETUP)
    with pytest.raises(ProcessDiedError):
        session.run(KEYS)
    recovered = session.recover()
    assert recovered.died == (2,)
    assert {"x", "words"} <= without_replica(recovered)
    assert {"good", "bad"} <= {lost.path for lost in recovered.lost}
    session.run(SETUP)
    check(session)


def test_what_an_earlier_reconnect_has_lost_is_not_in_the_way_of_the_next(
    make_session: Callable[..., Session],
) -> None:
    session = make_session(4, devices_per_process=2, check="off")
    session.run(SETUP)
    gather = "multihost_utils.process_allgather(np.arange(3.0) * process_index)"
    for code in (
        f"for i in range(5):\n    if process_index + i == 6: raise ValueError\n    o = {gather}",
        f"if process_index == 3: o = {gather}",
        "if process_index: float(total(x))",
    ):
        with pytest.raises(CellError):
            session.run(code)
        check(session)
