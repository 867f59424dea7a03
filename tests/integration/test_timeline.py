"""Timelines, timed cells and history of real processes."""

from __future__ import annotations

import threading

import pytest

from integration.conftest import Gate
from jaxnb.cells.result import CellResult
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import CellError
from jaxnb.session import Session
from support.fixtures import assert_usable, until

SETUP = """
import os, time
mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
x = jax.make_array_from_callback((8,), NamedSharding(mesh, P("d")), lambda i: np.arange(8.0)[i])
step = jax.jit(lambda a: a / a.sum())
alone = jax.jit(lambda a: a + 1)  # no process needs another's part
"""


@pytest.fixture
def group(session: Session) -> Session:
    session.run(SETUP)
    return session


def others_have_waited(group: Session) -> bool:
    """Whether all but process 2 have waited at their collective for a while."""
    found = group.where([0, 1, 3])
    waited = [
        (where.cell_seconds or 0.0) - where.last_dispatch.seconds
        for where in found.values()
        if where.last_dispatch is not None
    ]
    return len(waited) == 3 and min(waited) > 0.5


def run_with_a_straggler(group: Session, gate: Gate, function: str = "step") -> CellResult:
    """Process 2 comes to a dispatch when the others have waited there for a while."""
    group.run(f"{function}(x).block_until_ready(); None")  # compiled

    def wait_and_open() -> None:
        try:
            until(lambda: others_have_waited(group), "all others at the collective")
        finally:
            gate.open()

    opener = threading.Thread(target=wait_and_open)
    opener.start()
    code = (
        f"if process_index == 2:\n    {gate.wait}\ny = {function}(x)\ny.block_until_ready()\nNone"
    )
    result = group.run(code)
    opener.join()
    return result


@pytest.mark.parametrize("function", ["step", "alone"])
def test_who_kept_the_others_waiting(group: Session, gate: Gate, function: str) -> None:
    result = run_with_a_straggler(group, gate, function)
    timeline = group.timeline()
    assert timeline.cell == result.cell
    assert sorted(timeline.processes) == [0, 1, 2, 3]
    assert timeline.dispatches == 1
    straggler = timeline.straggler
    assert straggler is not None
    assert (straggler.process_index, straggler.came_last) == (2, 1)
    assert (straggler.site.line, straggler.site.name) == (3, "jit(<lambda>)")
    assert sorted(straggler.waited) == [0, 1, 3]
    assert min(straggler.waited.values()) > 0.5
    if function == "step":  # that process 2 waits for a file is none of JAX
        assert all(timeline.processes[i].totals["waiting"] > 0.5 for i in (0, 1, 3))
        assert timeline.processes[2].totals["python"] > 0.5
    for each in timeline.processes.values():
        assert sum(each.totals.values()) == pytest.approx(each.stop - each.start)
    assert "Process 2 was last at 1 of 1 dispatch" in str(timeline)
    assert "Process 2 was last at 1 of 1 dispatch" in timeline._repr_mimebundle_()["text/html"]


def test_tracing_and_compiling(group: Session) -> None:
    group.run("jax.jit(lambda a: jnp.sin(a) @ jnp.cos(a).T)(jnp.ones((8, 8))); None")
    for each in group.timeline().processes.values():
        assert each.totals["tracing"] > 0
        assert each.totals["compiling"] > 0


# ---------------------------------------------------------------------- timed cells


def test_a_timed_cell(group: Session) -> None:
    result = group.run("counted = globals().get('counted', 0) + 1\ny = step(x)\nnp.pi", time=True)
    timing = result.timing
    assert timing is not None
    counts = {len(each.repeats) for each in timing.per_process.values()}
    assert counts == {timing.repeats}
    assert 3 <= timing.repeats <= 1000
    # What it does, it does in each call.
    assert group.run("counted").value == 1 + timing.repeats
    assert result.value == pytest.approx(3.14159, abs=1e-5)
    assert all(each.first is not None for each in timing.per_process.values())
    assert result.divergence is None
    assert [each.cell for each in group.history[-2:]] == [result.cell, result.cell + 1]
    assert group.history[-2].dispatches == 1 + timing.repeats
    assert group.cells_run[-2].calls == 0
    waits = group.timeline(result.cell).processes.values()
    assert all(each.totals["waiting"] > 0 for each in waits)


def test_what_is_computed_is_no_waiting(group: Session) -> None:
    group.run("a = jnp.ones((1000, 1000)); local = jax.jit(lambda a: a @ a @ a)")
    group.run("local(a).block_until_ready()", time=True)
    for each in group.timeline().processes.values():
        assert each.totals["computing"] > 0


@pytest.mark.parametrize(
    ("code", "waited_for"),
    [("a + 1", 1), ("a + 1;", 1), ("z = a + 1", 1), ("d['z'] = a + 1", 2), ("h.z = a + 1", 0),
     ("for i in (1,): z = a", 1), ("z = [a + 1, {'b': a}]", 2), ("call()", 0),
     ("z = 1; np.ones(3)", 0)],
)  # fmt: skip
def test_calls_end_when_their_results_are_there(group: Session, code: str, waited_for: int) -> None:
    """The last value's arrays are waited for, and those of the names that the cell binds."""
    group.run("""
class Holder: pass
h, a, seen = Holder(), jnp.ones(3), []
d = {"other": a}
def call(): h.z = a + 1
wait = jax.block_until_ready
def noting(found):
    seen.append(len(found))
    return wait(found)
jax.block_until_ready = noting""")
    try:
        group.run(code, time=True, repeats=2, ranks=[0])
        assert group.run("seen", ranks=[0]).value == [waited_for] * 3
    finally:
        group.run("jax.block_until_ready = wait")


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_before_the_number_of_repeats_is_known(group: Session, failing: int) -> None:
    """The first process says how often; where it has raised, the others make no more calls."""
    with pytest.raises(CellError, match="ZeroDivisionError") as caught:
        group.run(f"if process_index == {failing}: 1 / 0", time=True)
    timing = caught.value.result.timing
    assert timing is not None
    made = {i: len(each.repeats) for i, each in timing.per_process.items()}
    assert made.pop(failing) == 0
    assert len(set(made.values())) == 1
    assert (made[2] == 1) == (failing == 0)
    assert_usable(group)


def test_an_interrupt_ends_the_repeats(group: Session) -> None:
    class AtFirst(NoSink):
        def lines(self, lines: object) -> None:
            group.interrupt()

    with pytest.raises(CellError, match="KeyboardInterrupt") as caught:
        group.run("print('call', flush=True)\ntime.sleep(0.05)", time=True, repeats=10_000,
                  sink=AtFirst())  # fmt: skip
    assert caught.value.result is not None
    assert group.history[-1].outcome == "interrupted"
    assert_usable(group)
