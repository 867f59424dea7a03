"""Which questions get one answer, and in which order they are asked."""

from __future__ import annotations

from jaxnb.debugging.asking import TURN_SECONDS, TWIN_SECONDS, QuestionQueue
from jaxnb.wire.messages import Question


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
    queue.take(question(0, number=2, alone=True), 1.5)
    assert asks(queue, 1.5) == 0
    queue.answered(queue.waiting[1], "continue", 2.0)
    queue.take(question(0, number=0, alone=True), 2.0)
    assert asks(queue, 2.0) == 1


def test_a_debugger_that_does_not_ask_again_may_wait_for_another() -> None:
    queue = QuestionQueue()
    queue.take(question(0, alone=True), 0.0)
    queue.take(question(1, alone=True), 0.0)
    queue.answered(queue.waiting[0], "next", 0.0)
    assert asks(queue, 0.0) is None
    assert asks(queue, TURN_SECONDS) == 1
