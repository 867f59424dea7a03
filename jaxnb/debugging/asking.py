"""Asks the user what the processes of a running cell ask, and gives them the answers."""

from __future__ import annotations

import select
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxnb.compat import ipykernel
from jaxnb.compat.ipykernel import KernelBox
from jaxnb.labels import ranks_label
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

    The n-th answer to a prompt goes to each process that asks it for the n-th time,
    whenever it does: so nobody waits for processes that may never ask. A debugger's prompts are of
    its process alone; one debugger is asked until it ends, then the next.
    """

    def __init__(self) -> None:
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
        if not question.alone:
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


def refusal(*, hidden: bool = False) -> str:
    """Returns why the user cannot be asked here, as a clause; empty if they can."""
    if threading.current_thread() is not threading.main_thread():
        return "its cell runs in the background (`--async`)"
    kernel = ipykernel.current_kernel()
    if kernel is not None:
        takes = ipykernel.takes_input(kernel)
        return "" if takes else "this front end (nbclient, papermill, …) takes no input"
    if not (sys.stdin and sys.stdin.isatty()):
        return "standard input is not a terminal"
    return "a terminal would show what is typed" if hidden else ""


class TerminalBox:
    """Asks in the terminal that this process runs in."""

    def __init__(self, prompt: str) -> None:
        sys.stdout.write(prompt)
        sys.stdout.flush()

    def answer(self) -> str | None:
        """Returns the line that was typed, once there is one; None until then.

        Raises:
            EOFError: The user has ended the input.
        """
        if not select.select([sys.stdin], [], [], 0)[0]:
            return None
        if not (line := sys.stdin.readline()):
            raise EOFError
        return line.rstrip("\n")

    def close(self) -> None:
        """Leaves what is shown."""


ANSWER = "jaxnb.debugging.process_debugger.answer"

Send = Callable[..., Mapping[int, Any]]
"""Has processes call a function, whatever their main threads do; returns who has done so."""


LEAVE_SECONDS = 1.0
"""How long processes of a cell that was interrupted get to leave it, before one of them is asked:
a box for a question that nobody waits for any more would stay, and JupyterLab runs nothing then."""


class Asker:
    """Asks one question at a time, and never waits: the cell is looked after meanwhile.

    Args:
        send: Reaches the processes.
        is_shown: What the cell prints is shown: a debugger needs that.

    Attributes:
        seconds: For how long processes have waited for answers: no time-out counts it.
    """

    def __init__(self, send: Send, *, is_shown: bool) -> None:
        self._queue = QuestionQueue()
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
            kernel, hidden = ipykernel.current_kernel(), asked.question.hidden
            why = refusal(hidden=hidden)
            if asked.question.alone and not self._is_shown:
                why = why or "what the cell prints is not shown (`Session.run` without a `sink`)"
            if why:
                self._refuse(asked, why)
                return
            prompt = f"[{ranks_label(sorted(asked.who))}] {asked.question.prompt}"
            self._box = (
                TerminalBox(prompt) if kernel is None else KernelBox(kernel, prompt, hidden=hidden)
            )
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
