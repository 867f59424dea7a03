"""The steps by which processes are freed, or at last replaced."""

from __future__ import annotations

import pytest

from jaxnb.stalls.escalation import NO_EFFECT_SECONDS, SHUT_ALL_SECONDS, Escalation, Stage

SOON, LATER, LATE = 0.2, SHUT_ALL_SECONDS, NO_EFFECT_SECONDS


@pytest.fixture
def escalation() -> Escalation:
    found = Escalation()
    assert found.begin({0, 2})
    return found


def test_nothing_happens_before_it_begins() -> None:
    assert Escalation().look({0: LATE}, {0}, {0}) is None


def test_each_step_is_taken_once_when_the_last_had_no_effect(escalation: Escalation) -> None:
    taken = [
        escalation.look({0: seconds, 2: seconds}, {0, 2}, {0, 2})
        for seconds in (0.0, SOON, LATER, LATER + 0.5, LATE, LATE + 1)
    ]
    assert taken == [None, None, Stage.SHUT_ALL, None, Stage.REPLACE, None]


def test_who_moves_has_its_time_anew(escalation: Escalation) -> None:
    assert escalation.look({0: LATE}, {0, 2}, {0, 2}) is None  # 2 is on the move
    assert escalation.look({0: LATE, 2: SOON}, {0, 2}, {0, 2}) is None
    assert escalation.stage is Stage.SHUT


def test_who_has_left_is_freed(escalation: Escalation) -> None:
    assert escalation.look({0: LATER}, {0}, {0}) is Stage.SHUT_ALL
    assert escalation.processes == {0}
    assert escalation.look({}, set(), set()) is Stage.NONE
    assert escalation.begin({1})


def test_to_begin_again_changes_nothing_but_for_more_processes(escalation: Escalation) -> None:
    escalation.look({0: LATER, 2: LATER}, {0, 2}, {0, 2})
    assert not escalation.begin({0, 2})
    assert not escalation.begin({2})
    assert escalation.stage is Stage.SHUT_ALL
    assert escalation.begin({1})
    assert (escalation.stage, escalation.processes) == (Stage.SHUT, {0, 1, 2})


@pytest.mark.parametrize(
    ("left", "known"),
    [({0, 2}, {0}), ({0, 2}, set()), ({0, 1, 2}, {0, 2}), ({0, 1, 2}, {0, 1, 2})],
    ids=["one may be in the user's code", "all may", "another is left", "another, also in JAX"],
)
def test_nobody_is_replaced_unasked_where_somebody_may_go_on(
    escalation: Escalation, left: set[int], known: set[int]
) -> None:
    still = dict.fromkeys(left, LATE)
    assert escalation.look(still, left, known) is Stage.SHUT_ALL
    assert escalation.look(still, left, known) is Stage.ASK
    assert escalation.look(still, left, known) is None
    assert escalation.look(still, {0, 2}, {0, 2}) is Stage.REPLACE
