"""Questions to processes, and those of processes to the user."""

from __future__ import annotations

import threading

import pytest

from jaxnb.debugging.asking import TURN_SECONDS, TWIN_SECONDS, QuestionQueue
from jaxnb.launch.deaths import Death
from jaxnb.wire import asking
from jaxnb.wire.asking import Channel
from jaxnb.wire.messages import Question

# ---------------------------------------------------------------------- who does not answer


DEATH = Death("engine", 2, 4711, -9, "")


@pytest.mark.parametrize(
    ("deaths", "stopped", "why"),
    [
        ((), "", ""),
        ((), "process 1 is stopped: `kill -CONT 7` lets it go on", "is stopped"),
        ((DEATH,), "", "results computed with process 2 may never arrive, as process 2 has died"),
        ((DEATH,), "process 1 is stopped: …", "is stopped"),
    ],
)
def test_who_is_silent_is_told_with_the_cause(
    monkeypatch: pytest.MonkeyPatch, deaths: tuple[Death, ...], stopped: str, why: str
) -> None:
    monkeypatch.setattr(asking, "QUIET_SECONDS", 0.0)
    told: list[str] = []
    channel = Channel(
        None,  # type: ignore[arg-type]  # nothing is asked
        lambda: deaths,
        {},
        4,
        threading.Event(),
        lambda indices, sig: indices,
        lambda indices: None,
        told.append,
        dict,
        lambda indices: stopped,
    )
    channel._tell_who_is_quiet([1], 0.0)
    assert told[0].startswith("waits for process 1: no answer for 0 s. ")
    assert (why or "may take long.").lower() in told[0].lower()
    assert told[0].endswith("Interrupt ends the wait, and variables are kept.")
    channel.end()
    assert told[1:] == [""]  # it is taken away
    reason = channel._silent(1, 51.0).reason
    assert reason.startswith("gave no answer within 51 s")
    assert why in reason


# ---------------------------------------------------------------------- input() and debuggers


def question(process: int, number: int = 1, prompt: str = "n? ", alone: bool = False) -> Question:
    return Question(process, number, prompt, hidden=False, alone=alone)


def test_a_question_waits_a_moment_for_its_twins() -> None:
    queue = QuestionQueue()
    queue.take(question(0), 0.0)
    assert queue.next({0, 1}, 0.0) is None
    queue.take(question(1), 0.1)
    asked = queue.next({0, 1}, 0.1)
    assert asked is not None
    assert set(asked.who) == {0, 1}


def test_who_comes_late_gets_the_answer_that_was_given() -> None:
    queue = QuestionQueue()
    queue.take(question(0), 0.0)
    asked = queue.next({0, 1}, TWIN_SECONDS)
    assert asked is not None
    queue.answered(asked, "7", TWIN_SECONDS)
    assert queue.next({0, 1}, TWIN_SECONDS) is None
    late = queue.take(question(1), 9.0)
    assert late is not None
    assert queue.known(late) == "7"
    queue.take(question(1, number=2), 10.0)  # the second time is another question
    assert queue.next({1}, 10.0) is not None


def test_a_process_waits_for_its_last_question_only() -> None:
    queue = QuestionQueue()
    queue.take(question(0), 0.0)
    queue.take(question(0, number=2, prompt="again? "), 1.0)
    asked = queue.next({0}, 1.0)
    assert asked is not None
    assert asked.question.prompt == "again? "
    queue.drop({0})
    assert queue.next({0}, 2.0) is None


def asks(queue: QuestionQueue, now: float) -> int | None:
    asked = queue.next({0, 1}, now)
    return None if asked is None else asked.question.process_index


def test_debuggers_ask_one_after_the_other() -> None:
    queue = QuestionQueue()
    queue.take(question(1, alone=True), 0.0)
    queue.take(question(0, alone=True), 0.0)
    assert asks(queue, 0.0) == 0
    queue.answered(queue.waiting[1], "next", 1.0)
    assert asks(queue, 1.0) is None  # it will ask again
    assert asks(queue, 1.0 + TURN_SECONDS) == 1  # unless it takes too long
    queue.take(question(0, number=2, alone=True), 1.5)
    assert asks(queue, 1.5) == 0
    queue.answered(queue.waiting[1], "continue", 2.0)
    queue.take(question(0, number=0, alone=True), 2.0)
    assert asks(queue, 2.0) == 1
