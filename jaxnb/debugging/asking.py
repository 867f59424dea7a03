"""Asks the user what the processes of a running cell ask, and gives them the answers."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from jaxnb.compat.ipykernel_input import KernelBox
from jaxnb.debugging.input_box import TerminalBox, open_box, refusal
from jaxnb.debugging.queue_questions import Asked, QuestionQueue
from jaxnb.labels import ranks_label
from jaxnb.model.cells import Inputs
from jaxnb.wire.messages import Question

ANSWER = "jaxnb.debugging.process_questions.answer"

Send = Callable[..., Mapping[int, Any]]
"""Has processes call a function, whatever their main threads do; returns who has done so."""


LEAVE_SECONDS = 1.0
"""How long processes of a cell that was interrupted get to leave it, before one of them is asked:
a box for a question that nobody waits for any more would stay, and JupyterLab runs nothing then."""


class Asker:
    """Asks one question at a time, and never waits: the cell is looked after meanwhile.

    Args:
        mode: Who gets an answer, as for :class:`QuestionQueue`.
        send: Reaches the processes.
        is_shown: What the cell prints is shown: a debugger needs that.

    Attributes:
        seconds: For how long processes have waited for answers: no time-out counts it.
    """

    def __init__(self, mode: Inputs, send: Send, *, is_shown: bool) -> None:
        self._queue = QuestionQueue(mode)
        self._send, self._is_shown = send, is_shown
        self._current: Asked | None = None
        self._box: KernelBox | TerminalBox | None = None
        self._looked_at: float | None = None
        self._ending_at: float | None = None
        self._untold: list[tuple[int, Mapping[str, Any]]] = []
        self.seconds = 0.0

    def look(self, new: list[Question], in_cell: Iterable[int], *, is_ending: bool) -> None:
        """Takes questions, asks what is next, and passes on what was answered.

        Args:
            new: The questions that have come; it is empty afterwards.
            in_cell: The processes that have not left the cell.
            is_ending: The cell was interrupted, by whatever.
        """
        now, in_cell = time.monotonic(), set(in_cell)
        if is_ending and self._ending_at is None:
            self._ending_at = now
        are_leaving = self._ending_at is not None and now < self._ending_at + LEAVE_SECONDS
        if self._looked_at is not None:
            self.seconds += now - self._looked_at
        while new:
            if (known := self._queue.take(new.pop(0), now)) is not None:
                self._tell(known, self._queue.known(known))
        waiting = {index for asked in self._queue.waiting for index in asked.who}
        self._queue.drop(waiting - in_cell)
        if self._current not in self._queue.waiting:
            self.close()
            self._current = None if are_leaving else self._queue.next(in_cell, now)
        if self._current is not None:
            try:
                self._ask(self._current)
            except Exception as error:  # the cell must not be left alone for that
                self._refuse(self._current, f"that failed ({type(error).__name__}: {error})")
        self._pass_on(in_cell)
        self._looked_at = now if self._queue.waiting else None

    def close(self) -> None:
        """Asks no more."""
        if self._box is not None:
            self._box.close()
        self._box = self._current = None

    def _ask(self, asked: Asked) -> None:
        """Asks a question, or looks whether it was answered."""
        if self._box is None:
            why = refusal()
            if asked.question.alone and not self._is_shown:
                why = why or "what the cell prints is not shown (`Session.run` without a `sink`)"
            if why:
                self._refuse(asked, why)
                return
            prompt = f"[{ranks_label(sorted(asked.who))}] {asked.question.prompt}"
            self._box = open_box(prompt, hidden=asked.question.hidden)
        try:
            text = self._box.answer()
            if text is None:
                return
        except EOFError:
            text = None
        self._tell(asked, text)
        self._queue.answered(asked, text, time.monotonic())

    def _refuse(self, asked: Asked, why: str) -> None:
        self._tell(asked, None, why)
        self._queue.drop(set(asked.who))

    def _tell(self, asked: Asked, text: str | None, refusal: str = "") -> None:
        answer = {"text": text, "refusal": refusal}
        self._untold += [(index, {**answer, "number": n}) for index, n in asked.who.items()]

    def _pass_on(self, in_cell: Collection[int]) -> None:
        """Has answers given; those again of which it is not known that they came."""
        self._untold = [
            (index, answer)
            for index, answer in self._untold
            if index in in_cell and index not in self._send([index], ANSWER, **answer)
        ]
