"""Parts of a session, each without the others."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from jaxnb.cells.merge_output import LINES_SHOWN
from jaxnb.cells.running import Collected, RunningCell
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import UsageError
from jaxnb.launch.deaths import Death
from jaxnb.launch.placement import Placement
from jaxnb.model.cells import CellReply, CellRequest, ProcessError, StreamChunk
from jaxnb.model.dispatches import Divergence
from jaxnb.session.lifecycle import (
    MOST_PROCESSES,
    PROCESS_BYTES,
    Lifecycle,
    Phase,
    require_allowed,
    require_room,
)
from jaxnb.session.results import Findings, Ran, result_of
from jaxnb.session.work import LONG_CHARS, Work
from jaxnb.wire.messages import Exchange, Reply
from support.cards import cell

# ---------------------------------------------------------------------- its state and deaths


def death(index: int, role: str = "engine") -> Death:
    return Death(role, index, 1000 + index, -9, "")


def in_phase(phase: Phase) -> Lifecycle:
    found = Lifecycle()
    if phase is Phase.STOPPED:
        found.fail_start()
    elif phase in (Phase.CLOSING, Phase.CLOSED):
        found.begin_close()
        if phase is Phase.CLOSED:
            found.finish_close()
    elif phase is not Phase.STARTING:
        found.finish_start()
        if phase is Phase.BROKEN:
            found.mark_broken()
        elif phase is Phase.COMPUTING:
            found.mark_computing()
    assert found.phase is phase
    return found


ALL = list(Phase)  # STARTING, READY, BROKEN, COMPUTING, STOPPED, CLOSING, CLOSED
RUNNING = (Phase.READY, Phase.COMPUTING)
STEPS: dict[str, tuple[Callable[[Lifecycle], object], dict[Phase, Phase]]] = {
    # What each changes; in all other phases it changes nothing.
    "death": (lambda each: each.note_death(death(1)), dict.fromkeys(RUNNING, Phase.BROKEN)),
    "out of step": (Lifecycle.mark_broken, dict.fromkeys(RUNNING, Phase.BROKEN)),
    "computes on": (Lifecycle.mark_computing, {Phase.READY: Phase.COMPUTING}),
    "has computed": (Lifecycle.note_computed, {Phase.COMPUTING: Phase.READY}),
    "restart": (Lifecycle.begin_start, dict.fromkeys(ALL[1:5], Phase.STARTING)),
    "start fails": (Lifecycle.fail_start, {Phase.STARTING: Phase.STOPPED}),
    "started": (Lifecycle.finish_start, {Phase.STARTING: Phase.READY}),
    "close": (Lifecycle.begin_close, dict.fromkeys(ALL[:5], Phase.CLOSING)),
    "closed": (Lifecycle.finish_close, {Phase.CLOSING: Phase.CLOSED}),
}


@pytest.mark.parametrize("step", STEPS)
def test_what_each_step_leads_to(step: str) -> None:
    do, changes = STEPS[step]
    for phase in ALL:
        lifecycle = in_phase(phase)
        do(lifecycle)
        assert lifecycle.phase is changes.get(phase, phase), phase


def test_no_group_is_ready_over_a_fresh_death() -> None:
    starting = Lifecycle()
    starting.note_death(death(2))
    starting.finish_start()
    assert starting.state == "broken"


def test_deaths_of_a_group_that_was_restarted_are_forgotten() -> None:
    lifecycle = in_phase(Phase.READY)
    lifecycle.note_death(death(1))
    assert lifecycle.begin_start()
    lifecycle.note_stopped()
    lifecycle.finish_start()
    assert (lifecycle.state, lifecycle.deaths) == ("ready", ())
    # A group that is closed stays so.
    assert lifecycle.begin_close()
    assert (lifecycle.is_open, lifecycle.begin_start()) == (False, False)
    assert lifecycle.begin_close()  # an interrupted one may be repeated
    lifecycle.finish_close()
    assert not lifecycle.begin_close()
    assert lifecycle.state == "closed"


def test_no_death_is_lost_among_threads() -> None:
    lifecycle, threads, each = in_phase(Phase.READY), 4, 300
    go = threading.Barrier(threads)

    def die(first: int) -> None:
        go.wait()
        for index in range(first, first + each):
            lifecycle.note_death(death(index))

    running = [threading.Thread(target=die, args=(i * each,)) for i in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert lifecycle.state == "broken"
    assert sorted(death.index for death in lifecycle.deaths) == list(range(threads * each))


@pytest.mark.parametrize(
    ("n", "ending", "text"),
    [
        (1, 0, "1 process takes at least 60.0 MiB .* and 0 B is free. .*Free some memory"),
        (3, 2, "3 processes take .* 120 MiB is free once the present processes .*fewer with `-n`"),
    ],
)
def test_a_group_that_does_not_fit_is_told_what_room_there_is(
    n: int, ending: int, text: str
) -> None:
    placement = Placement("cpu", n, 1, ({},) * n)
    with pytest.raises(UsageError, match=text):
        require_room(placement, 0, ending)
    require_room(placement, PROCESS_BYTES, n - 1)


def test_an_administrator_may_limit_the_size_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    placement = Placement("cpu", 4, 1, ({},) * 4)
    require_allowed(placement)
    monkeypatch.setenv(MOST_PROCESSES, "4")
    require_allowed(placement)
    monkeypatch.setenv(MOST_PROCESSES, "2")
    with pytest.raises(
        UsageError, match=r"at most 2 processes here \(JAXNB_MAX_PROCESSES\), not 4"
    ):
        require_allowed(placement)
    monkeypatch.setenv(MOST_PROCESSES, "two")
    with pytest.raises(UsageError, match="must be a number, not 'two'"):
        require_allowed(placement)


# ---------------------------------------------------------------------- its work and results


def running(number: int = 7) -> RunningCell:
    request = CellRequest(cell=number, code="x", first_line=1, check="strict", ranks=(0, 1))
    return RunningCell(request, Exchange(), (0, 1), 2, NoSink(), threading.Event())


def test_who_has_the_turn_is_interrupted() -> None:
    work, interrupted = Work(), threading.Event()
    assert not work.interrupt()
    with work.turn(pytest.fail, interrupted):
        assert work.interrupt()
        assert interrupted.is_set()
    assert not work.interrupt()


def test_who_has_not_come_back_is_remembered_until_processes_are_replaced() -> None:
    work, cell = Work(), running()
    work.begin(cell)
    assert work.in_cells() == dict.fromkeys((0, 1), "is in cell [7]")
    cell.exchange.events.put(Reply(0, CellReply(0, None, None, 0.1)))
    cell.step(0.0)
    work.end(cell)
    cell.finish()
    assert (work.current, work.left) == (None, cell)
    work.note_stuck([0])
    assert work.unended() == {0, 1}
    work.forget_left()
    assert work.unended() == set()


def test_output_of_no_cell_goes_to_the_next() -> None:
    work = Work()
    work.take_output(StreamChunk(1, "stdout", "kept\n"), is_kept=True)
    work.take_output(StreamChunk(1, "stdout", "dropped\n"), is_kept=False)
    cell = running()
    work.begin(cell)
    work.hand_strays(cell)
    work.take_output(StreamChunk(0, "stdout", "live\n"), is_kept=False)
    assert cell.finish().texts["stdout"] == {0: "live\n", 1: "kept\n"}


NO_PULLER: Any = SimpleNamespace(gather=pytest.fail, cell_value=pytest.fail)


def ran(calls: tuple[float, ...], findings: Findings, **how: Any) -> Ran:
    reply = CellReply(0, None, ProcessError("ValueError", "x", "", ""), 0.5, calls=calls)
    request = CellRequest(7, "x", 1, "strict", ranks=(0,), calls=len(calls))
    texts = {"stdout": {0: "a\n"}, "stderr": {0: ""}}
    merged = {"stdout": "[0] a\n", "stderr": ""}
    collected = Collected(request, {0: reply}, frozenset(), {0: ()}, texts, merged, 2.0)
    cell: Any = SimpleNamespace(abandoned=None, wait_cause="slow")
    supervisor: Any = SimpleNamespace(interrupted=how.get("interrupted", False))
    return Ran(cell, 0, 1, collected, findings, supervisor)


def test_a_result_is_what_came_and_what_was_found() -> None:
    parted = Divergence(7, 1, "order", ())
    once = ran((), Findings(parted), interrupted=True)
    result = result_of(once, 4, NO_PULLER, cause=once.cause)
    assert (result.cell, result.num_processes, result.seconds) == (7, 4, 2.0)
    assert (result.stdout, result.per_process[0].stdout) == ("[0] a\n", "a\n")
    assert (result.divergence, result.cause) == (parted, "order")
    assert result.errors[0].type_name == "ValueError"
    assert ran((), Findings()).cause == ""
    assert ran((), Findings(), interrupted=True).cause == "slow"


# ---------------------------------------------------------------------- results


def test_the_last_results_are_kept_and_of_long_ones_fewer() -> None:
    work = Work()
    for number in range(30):
        work.note_result(replace(cell([None]), cell=number))
    assert [*work.results] == [*range(10, 30)]
    flood = cell([None], stdout="x\n" * (LINES_SHOWN + 1))
    for number in [31] * 5 + [32, 33, 34, 35, 35]:
        work.note_result(replace(flood, cell=number))
    assert [n for n in work.results if n > 30] == [32, 33, 34, 35]
    wide = cell([None], stdout="x" * (LONG_CHARS + 1))
    work.note_result(replace(wide, cell=36))
    assert 32 not in work.results
    with pytest.raises(UsageError, match=r"no result of cell \[32\]"):
        work.results[32]
