"""Processes wait in a collective for one that does not come, with ``check="off"``: freed.

The plainest cases; where processes agree, none of it begins. ``test_freeing`` has the other ways to
wait, and who must not be freed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

import jaxnb
from faults.shared import cleared, pressing_beside
from faults.test_freeing import PROCESSES, SETUP, Notices, assert_kept, types_of, unless
from jaxnb import patience
from jaxnb.errors import CellError, CellTimeoutError
from jaxnb.session import Session
from jaxnb.watch import waits_for_others
from jaxnb_fixtures import until


@pytest.fixture(scope="module")
def shared_group() -> Iterator[Session]:
    with jaxnb.start(PROCESSES, platform="cpu", check="off") as session:
        yield session


@pytest.fixture
def group(shared_group: Session, monkeypatch: pytest.MonkeyPatch) -> Session:
    # On a busy machine who is freed may take longer to come back than users are let wait.
    monkeypatch.setattr(patience, "INTERRUPT_GRACE_SECONDS", 3600.0)
    session = cleared(shared_group)
    session.run(SETUP)
    return session


def test_left_behind_by_one_that_raised(group: Session) -> None:
    pids = [process.pid for process in group.processes]
    sink = Notices()
    with pytest.raises(CellError) as caught:
        group.run("if process_index == 1:\n    raise ValueError('boom')\nfloat(f(x))", sink=sink)
    result = caught.value.result
    assert types_of(result) == {0: "LeftBehindError", 1: "ValueError", 2: "LeftBehindError"}
    assert str(caught.value) == (
        "process 1 raised ValueError: boom at line 2; processes 0,2 raised LeftBehindError: waited "
        "in a collective at line 3: `float(f(x))`; process 1 raised ValueError at line 2 "
        f"(cell [{result.cell}])"
    )
    assert any("New processes in" in notice for notice in sink.notices)
    assert {process.pid for process in group.processes}.isdisjoint(pids)
    assert_kept(group)


def test_left_behind_by_those_that_were_not_asked(group: Session) -> None:
    with pytest.raises(CellError) as caught:
        group.run("float(f(x))", ranks=[0, 2])
    assert types_of(caught.value.result) == {0: "LeftBehindError", 2: "LeftBehindError"}
    assert "process 1 had not been asked to run the cell" in str(caught.value)
    assert_kept(group)


def test_interrupt_frees_who_waits(group: Session) -> None:
    def press_when_stuck(press: Callable[[], None]) -> None:
        def is_stuck() -> bool:
            found = group.where([0, 1])
            return set(found) == {0, 1} and all(map(waits_for_others, found.values()))

        until(is_stuck, "processes 0-1 waited in JAX")
        press()

    with pressing_beside(press_when_stuck), pytest.raises(CellError) as caught:
        group.run(unless(2, "float(f(x))"), sink=Notices())
    assert types_of(caught.value.result) == dict.fromkeys(range(3), "KeyboardInterrupt")
    assert_kept(group)


def test_a_time_out_frees_who_waits(group: Session) -> None:
    with pytest.raises(CellTimeoutError, match=r"time-out of 2 s.*The group is ready") as caught:
        group.run(unless(0, "float(f(x))"), timeout=2)
    assert sorted(caught.value.result.errors) == [0, 1, 2]
    assert_kept(group)
