"""What code of the user's dispatches outside of the code of a cell is agreed on, or refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import jaxnb
from jaxnb.errors import JaxnbError
from jaxnb.session import Session
from support.faults import cleared
from support.fixtures import assert_usable, until

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
def group(shared_group: Session) -> Iterator[Session]:
    session = cleared(shared_group)
    session.run(SETUP)
    yield session
    assert session.run("float(double(x))").value == 8.0
    assert_usable(session)


def test_what_one_process_computes_in_a_pull_is_refused(group: Session) -> None:
    with pytest.raises(JaxnbError, match=r"process 1: had finished\. None"):
        group.pull("one")


def test_what_all_compute_in_a_pull_is_agreed_on(group: Session) -> None:
    for _ in range(2):
        assert group.pull("everyone") == 7
        group.run("1", ranks=[0])  # whatever a cell on some of them is told
        assert group.run("float(double(x))").value == 8.0


def test_what_the_value_of_a_cell_computes_is_agreed_on(group: Session) -> None:
    assert group.run("everyone").value == 7
    result = group.run("one")
    assert result.per_process[1].value == 7
    with pytest.raises(JaxnbError, match=r"cannot be pickled \(DivergenceError.* had finished"):
        _ = result.per_process[0].value


def test_a_thread_agrees_when_the_cell_has_ended(group: Session) -> None:
    group.run(
        "import threading\nfound, go = [], threading.Event()\n"
        "def late(): go.wait(); found.append(float(total(x)))\n"
        "thread = threading.Thread(target=late); thread.start()"
    )
    assert group.run("go.set(); thread.join(); found").value == [4.0]


@pytest.mark.parametrize("between", ["pull", "cell"])
def test_a_thread_of_an_unchecked_cell_stays_unchecked(
    group: Session, tmp_path: Path, between: str
) -> None:
    """Else it would begin to ask at another dispatch on each process, and wait for ever."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    group.run(
        "import pathlib, threading\n"
        "add = jax.jit(lambda v, k: (v + k).sum())\n"
        "def late():\n"
        f"    open({str(gate)!r}).close()\n"
        "    float(add(x, np.float32(process_index)))  # which would not be agreed on\n"
        f"    pathlib.Path({str(tmp_path)!r}, str(process_index)).touch()\n"
        "thread = threading.Thread(target=late, daemon=True); thread.start()",
        check="off",
    )
    if between == "pull":
        assert group.pull("everyone") == 7
    else:
        assert group.run("float(total(x))").value == 4.0
    opened = os.open(gate, os.O_RDWR)
    until(lambda: all((tmp_path / str(i)).exists() for i in range(2)), "the threads have ended")
    os.close(opened)
    code = "thread = threading.Thread(target=lambda: found.append(float(total(x)))); found = []\n"
    assert group.run(code + "thread.start(); thread.join(); found").value == [4.0]


def test_a_task_of_the_event_loop_is_refused_between_cells(group: Session) -> None:
    """Nobody knows where the other processes are then."""
    group.run(
        "import asyncio\nsaid = []\n"
        "async def later():\n"
        "    try: total(x)\n"
        "    except Exception as error: said.append(str(error))\n"
        "task = asyncio.ensure_future(later());"
    )
    (said,) = group.run("await task; said").value
    assert "was to be dispatched while no cell runs here" in said


def test_what_a_handler_dispatches_as_its_cell_ends_is_refused(group: Session) -> None:
    """The process has told that it has left the cell: nobody would come to that."""
    group.run(
        "import signal\nfrom jaxnb.lockstep.process_connection import Line\n"
        "said, leave = [], Line.leave\n"
        "def handler(*_):\n"
        "    try: total(x)\n"
        "    except Exception as error: said.append(str(error))\n"
        "def leave_and_be_struck(self, end):\n"
        "    leave(self, end)\n"
        "    signal.raise_signal(signal.SIGALRM)\n"
        "if process_index == 1:\n"
        "    signal.signal(signal.SIGALRM, handler)\n"
        "    Line.leave = leave_and_be_struck"
    )
    group.run("Line.leave = leave")
    first, *_ = group.run("said").per_process[1].value
    assert "was to be dispatched while no cell runs here" in first
