"""Pure: the questions of a cell's processes, those together that get one answer; in turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from jaxnb.model.cells import Inputs
from jaxnb.wire.messages import Question

TWIN_SECONDS = 0.25
"""How long a question waits for those of other processes: for its label to name them, or its turn.
Those that come to the same later get the same answer."""

TURN_SECONDS = 2.0
"""How long a process that has done a command in a debugger may take until it asks for the next one,
before another is asked. It may wait for that one."""


class _Key(NamedTuple):
    """What is asked, and for which time: the second answer to a prompt is not its first."""

    prompt: str
    hidden: bool
    time: int


@dataclass(slots=True, eq=False)
class Asked:
    """A question, and who waits for its answer.

    Attributes:
        question: That of the first process that came to it.
        since: When that was.
        who: Process index to the number of its question.
        key: What it is; None if the answer is for one process.
    """

    question: Question
    since: float
    key: _Key | None
    who: dict[int, int] = field(default_factory=dict)


class QuestionQueue:
    """Puts questions in order, and those together that get the same answer.

    With ``"same"`` the n-th answer to a prompt goes to each process that asks it for the n-th time,
    whenever it does: so nobody waits for processes that may never ask. A debugger's prompts are of
    its process alone; one debugger is asked until it ends, then the next.

    Args:
        mode: ``"same"``, or ``"each"``: each question is asked by itself.
    """

    def __init__(self, mode: Inputs) -> None:
        self._mode = mode
        self._times: Counter[tuple[int, str, bool]] = Counter()
        self._answers: dict[_Key, str | None] = {}
        self._turn: tuple[int, float] | None = None  # whose debugger was answered, and until when
        self.waiting: list[Asked] = []

    def take(self, question: Question, now: float) -> Asked | None:
        """Takes a question that has come; its process waits for no earlier one any more.

        Returns:
            It, if it was answered before: see :meth:`known`.
        """
        self.drop({question.process_index})
        if not question.number:
            self._turn = None
            return None
        key = None
        if self._mode == "same" and not question.alone:
            asks = (question.process_index, question.prompt, question.hidden)
            self._times[asks] += 1
            key = _Key(question.prompt, question.hidden, self._times[asks])
        asked = next((each for each in self.waiting if key and each.key == key), None)
        if asked is None:
            asked = Asked(question, now, key)
            if key not in self._answers:
                self.waiting.append(asked)
        asked.who[question.process_index] = question.number
        return asked if key in self._answers else None

    def known(self, asked: Asked) -> str | None:
        """Returns the answer that was given to a question before."""
        assert asked.key is not None
        return self._answers[asked.key]

    def drop(self, processes: Collection[int]) -> None:
        """Forgets what processes have asked, who do not wait any more."""
        for asked in self.waiting:
            for index in processes:
                asked.who.pop(index, None)
        self.waiting = [each for each in self.waiting if each.who]

    def next(self, processes: Collection[int], now: float) -> Asked | None:
        """Returns what is to be asked now.

        Args:
            processes: Those in the cell: who all ask need not wait for others.
            now: The time.
        """
        if not self.waiting:
            return None
        first = min(self.waiting, key=lambda each: min(each.who))
        if self._turn is not None:
            process, until = self._turn
            mine = next((each for each in self.waiting if process in each.who), None)
            if mine is None and now < until and process in processes:
                return None
            first = mine or first
        those = self.waiting if first.key is None else [first]
        asking = {index for each in those for index in each.who}
        is_whole = first.question.alone or asking >= set(processes)
        return first if is_whole or now - first.since >= TWIN_SECONDS else None

    def answered(self, asked: Asked, text: str | None, now: float) -> None:
        """Takes an answer: it is the same for whoever asks this later."""
        self.waiting.remove(asked)
        alone = asked.question.alone
        self._turn = (asked.question.process_index, now + TURN_SECONDS) if alone else None
        if asked.key is not None:
            self._answers[asked.key] = text
