"""Parts of a session, each without the others: the work on a group, and results."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from jaxnb.cells.running import Collected, RunningCell
from jaxnb.cells.sinks import NoSink
from jaxnb.errors import SessionBrokenError
from jaxnb.model.cells import CellReply, CellRequest, ProcessError, StreamChunk
from jaxnb.model.dispatches import Divergence
from jaxnb.session.results import Findings, Ran, result_of
from jaxnb.session.work import Work
from jaxnb.wire.messages import Exchange, Reply


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


def test_what_is_abandoned_says_why() -> None:
    work, cell = Work(), running()
    work.begin(cell)
    work.abandon(SessionBrokenError, "The group was restarted")
    assert str(cell.abandoned) == "The group was restarted while the cell ran or waited."


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
