"""Where arrays come from is kept through what happens to a group, and told after an interrupt."""

from __future__ import annotations

import pytest

from jaxnb.arrays.pulling import OriginsDifferWarning
from jaxnb.cells.sinks import NoSink
from jaxnb.session import Session
from support.fixtures import assert_usable

SETUP = """
import time, threading, asyncio
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
sharded, whole = NamedSharding(mesh, P("d")), NamedSharding(mesh, P())
def make(value, sharding=sharded):
    host = np.full(2 * n, value, np.float32)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])
total, step = jax.jit(jnp.sum), jax.jit(lambda x: x + 1)
x, y = make(0), {"w": make(1, whole), "v": make(2, whole)}
float(total(x)), float(total(y["w"])), step(x).sum()
"""


class Watcher(NoSink):
    """Keeps notices; interrupts at the first line that is printed."""

    def __init__(self, group: Session) -> None:
        self._group = group
        self.said: list[str] = []

    def notice(self, text: str) -> None:
        self.said.append(text)

    def lines(self, lines: object) -> None:
        self._group.interrupt()


@pytest.fixture
def group(session: Session) -> Session:
    session.run(SETUP)
    return session


def said(group: Session, *cells: str, check: str = "strict") -> str:
    """Runs cells; returns all that was said of them."""
    watcher = Watcher(group)
    for code in cells:
        result = group.run(code, sink=watcher, check=check, raise_on_error=False)  # type: ignore[arg-type]
        watcher.said += [each.message for each in result.errors.values()]
    return "\n".join(watcher.said)


def test_an_error_that_leaves_other_steps_is_told(group: Session) -> None:
    """Nothing computes on with the parts of two steps."""
    watcher = Watcher(group)
    code = "y = step(x)\ny = step(y)\nif process_index: x = y\n1 / 0"
    result = group.run(f"old = x\n{code}", sink=watcher, raise_on_error=False)
    assert [each.place for each in result.unequal_names] == ["x"]
    notice = "\n".join(watcher.said)
    assert "`x`: on process 0 made at line" in notice
    assert "on processes 1-3 result of jit(<lambda>), dispatch 2 of cell" in notice
    with pytest.warns(OriginsDifferWarning, match="`x` mixes shards of different arrays"):
        group.pull("x")
    assert "processes 1-3 passed `x` (result of jit(<lambda>), dispatch 2" in said(
        group, "total(x);"
    )
    assert said(group, "x = make(0)\ntotal(x);") == ""
    assert_usable(group)


def test_arrays_without_a_record_are_not_compared(group: Session) -> None:
    """Nobody can tell whether they are parts of one array: healthy code would be accused."""
    assert said(group, "o, p = step(x), step(x)", check="off") == ""
    assert said(group, "float(total(o)), float(total(p));") == ""
    assert said(group, "q = step(x)\nfloat(total(o if process_index else q));") == ""
    # Nor is a host value of a later dispatch taken for one of them.
    assert said(group, "jax.jit(lambda x, n: x * n)(x, 3);") == ""


def test_the_order_of_threads_and_tasks_does_not_count(group: Session) -> None:
    cells = (
        """
made, turns = {}, [threading.Event() for _ in "abc"]
def one(k, place):
    if place: turns[place - 1].wait()
    made[k] = make(ord(k))
    turns[place].set()
ts = [threading.Thread(target=one, args=(k, (i + process_index) % 3)) for i, k in enumerate("abc")]
[t.start() for t in ts], [t.join() for t in ts]
[float(total(made[k])) for k in "abc"];
""",
        """
done = {}
async def one(k, place):
    for _ in range(place): await asyncio.sleep(0)
    done[k] = make(ord(k))
await asyncio.gather(*[one(k, (i + process_index) % 3) for i, k in enumerate("abc")])
""",
        "[float(total(done[k])) for k in 'abc'];",
    )
    assert said(group, *cells) == ""
