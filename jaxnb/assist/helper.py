"""Asks a process for names and documentation; never for long, and never with an error."""

from __future__ import annotations

import keyword
import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from jaxnb.assist.places import Code
from jaxnb.labels import START_NAMES
from jaxnb.model.cells import Completed, Inspected

MOST_KEPT = 200

_TYPED = re.compile(r"(?P<of>[\w.\[\]'\"]*?)(?P<word>\.?\w*)$")


class KnownNames:
    """The last answers, and the names of the processes' variables.

    Args:
        names: Those that they start with.

    Attributes:
        names: The names of variables.
    """

    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)
        self._answers: OrderedDict[tuple[str, str], Completed] = OrderedDict()

    def note_names(self, names: Iterable[str]) -> None:
        """Keeps which variables there are."""
        self.names = tuple(names)

    def note(self, line: str, answer: Completed, start: int) -> None:
        """Keeps an answer.

        Args:
            line: What stands in the line before the place.
            answer: What a process has told.
            start: Where in the line its words begin.
        """
        self.note_names(answer.names)
        key = _expression(line[:start]), line[start:]
        self._answers[key] = answer
        self._answers.move_to_end(key)
        while len(self._answers) > MOST_KEPT:
            self._answers.popitem(last=False)

    def guess(self, line: str) -> tuple[int, dict[str, str]]:
        """Returns what may fit, as far as it was told before.

        Args:
            line: What stands in the line before the place.

        Returns:
            Where in the line the words begin; and the words, with what each is.
        """
        found = _TYPED.search(line)
        assert found is not None  # it matches the empty text, too
        of, word, start = found["of"], found["word"], found.start("word")
        words: dict[str, str] = {}
        for typed in (word[:n] for n in range(len(word), -1, -1)):
            if (answer := self._answers.get((of, typed))) is not None:
                words = dict(zip(answer.words, answer.kinds, strict=True))
                break
        if not of and not word.startswith("."):
            words |= dict.fromkeys(self.names, "variable")
            words |= dict.fromkeys(keyword.kwlist, "keyword")
        return start, {each: kind for each, kind in words.items() if each.startswith(word)}


def _expression(line: str) -> str:
    """Returns the expression at the end of a line, of whose parts words are offered."""
    found = re.search(r"[\w.\[\]'\"]*$", line)
    assert found is not None
    return found[0]


DEADLINE_SECONDS = 0.1
"""With what the notebook itself needs, who types has waited 150 ms at most."""

MOST_INSPECTED = 64

_PROCESS = "jaxnb.assist.process_assist"


class Ask(Protocol):
    """Asks the sentinels of processes."""

    def __call__(
        self, processes: Iterable[int], function: str, /, *, seconds: float | None, **data: Any
    ) -> dict[int, Any]:
        """Returns what those answer that do so in time."""


class Assist:
    """Help while typing, from the first process that is alive.

    Args:
        ask: Asks sentinels.
        living: Returns the processes that can be asked.
        generation: Returns how often these were replaced by fresh ones.
        names: What the processes' namespaces start with.
    """

    def __init__(
        self,
        ask: Ask,
        living: Callable[[], Collection[int]],
        generation: Callable[[], int],
        names: Iterable[str] = START_NAMES,
    ) -> None:
        self._ask, self._living, self._generation = ask, living, generation
        self._start_names = tuple(names)
        self._forget()

    def _forget(self) -> None:
        self._of = self._generation()
        self._known = KnownNames(self._start_names)
        self._inspected: OrderedDict[tuple[str, int], Inspected] = OrderedDict()

    def complete(self, code: Code) -> tuple[int, dict[str, str]]:
        """Returns what fits at a place in code that runs on the processes.

        Returns:
            Where in the code the words begin; and the words, with what each is. From what was told
            before, where the process does not answer in time.
        """
        line_start = code.offset - len(code.line)
        told = self._told("complete", code=code.text, offset=code.offset)
        if not isinstance(told, Completed):
            start, words = self._known.guess(code.line)
            return line_start + start, words
        if told.words and told.start >= line_start:
            self._known.note(code.line, told, told.start - line_start)
        else:
            self._known.note_names(told.names)
        return told.start, dict(zip(told.words, told.kinds, strict=True))

    def inspect(self, name: str, detail: int) -> dict[str, str]:
        """Returns what IPython tells of an object on the processes; empty if it is not known."""
        told = self._told("inspect", name=name, detail=detail)
        key = name, detail
        if not isinstance(told, Inspected):
            return dict(self._inspected.get(key, Inspected()).data)
        self._inspected[key] = told
        self._inspected.move_to_end(key)
        while len(self._inspected) > MOST_INSPECTED:
            self._inspected.popitem(last=False)
        return dict(told.data)

    def names(self) -> tuple[str, ...]:
        """Returns the names of the processes' variables, as far as they are known."""
        told = self._told("names")
        if isinstance(told, tuple):
            self._known.note_names(told)
        return self._known.names

    def _told(self, function: str, **data: Any) -> Any:
        """Returns what the first living process answers; None if it does not do so in time."""
        if self._generation() != self._of:  # others are in their place
            self._forget()
        try:
            first = min(self._living(), default=None)
            if first is None:
                return None
            answers = self._ask([first], f"{_PROCESS}.{function}", seconds=DEADLINE_SECONDS, **data)
            return answers.get(first)
        except Exception:  # of whatever kind: a completer that raises prints a traceback
            return None
