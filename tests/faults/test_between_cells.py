"""What code of the user's dispatches between two cells, in a pull: the next cell is told of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import jaxnb
from faults.shared import cleared, pressing_beside
from jaxnb.errors import CellError, DivergenceWarning
from jaxnb.session import Session
from jaxnb.watch import waits_in_jax
from jaxnb_fixtures import assert_usable, until

SETUP = """
n = jax.device_count()
mesh = jax.make_mesh((n,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.device_put(np.ones(n, np.float32), NamedSharding(mesh, P("d")))
total, double = jax.jit(jnp.sum), jax.jit(lambda v: (2 * v).sum())
float(total(x))
class Odd:
    def __init__(self, who): self.who = who
    def __reduce__(self):
        if process_index in self.who: float(total(x))
        return int, (7,)
one, everyone = Odd([0]), Odd(range(num_processes))
"""


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Session]:
    with jaxnb.start(2, devices_per_process=2, platform="cpu") as session:
        yield session


@pytest.fixture
def group(shared_group: Session) -> Session:
    session = cleared(shared_group)
    session.run(SETUP)
    return session


def pull_and_interrupt(group: Session) -> None:
    """Pulls what one process alone computes something for, which never ends."""

    def press_when_stuck(press: Callable[[], None]) -> None:
        def is_stuck() -> bool:
            where = group.where([0]).get(0)
            return where is not None and waits_in_jax(where)

        until(is_stuck, "process 0 waited in JAX")
        press()

    with pressing_beside(press_when_stuck), pytest.raises(KeyboardInterrupt):
        group.pull("one")


@pytest.mark.timing
def test_what_one_process_computed_in_a_pull_is_told_at_the_next_cell(group: Session) -> None:
    pull_and_interrupt(group)
    with (
        pytest.warns(DivergenceWarning, match=r"0 dispatched jit\(\w+\) .* outside the cell's l"),
        pytest.raises(CellError, match="process 0 raised LeftBehindError"),
    ):
        group.run("y = double(x); float(y)")
    assert group.run("float(double(x))").value == 8.0
    assert_usable(group)


@pytest.mark.timing
def test_in_strict_mode_the_next_dispatch_is_refused(group: Session) -> None:
    pull_and_interrupt(group)
    with (
        pytest.warns(DivergenceWarning, match="outside the cell's lines"),
        pytest.raises(CellError, match="do not agree on dispatch"),
    ):
        group.run("y = double(x); float(y)", check="strict")
    group.recover()
    assert group.run("float(double(x))", check="strict").value == 8.0
    assert_usable(group)


@pytest.mark.parametrize("check", ["record", "strict"])
def test_what_all_computed_in_a_pull_is_no_mistake(group: Session, check: str) -> None:
    for _ in range(2):
        assert group.pull("everyone") == 7
        group.run("1", ranks=[0], check=check)  # whatever a cell on some of them is told
        assert group.run("float(double(x))", check=check).value == 8.0
    assert_usable(group)
