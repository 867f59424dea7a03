"""Asks a process for names and documentation; never for long, and never with an error."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from jaxnb.assist.known_names import KnownNames
from jaxnb.assist.places import Code
from jaxnb.labels import START_NAMES
from jaxnb.model.cells import Completed, Inspected

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
