"""Asks a process for names and documentation; never for long, and never with an error."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Protocol

from jaxnb.assist.places import Code

DEADLINE_SECONDS = 0.1
"""With what the notebook itself needs, who types has waited 150 ms at most."""

_PROCESS = "jaxnb.assist.process_assist"


class Ask(Protocol):
    """Asks the sentinels of processes."""

    def __call__(
        self, processes: Iterable[int], function: str, /, *, seconds: float | None, **data: Any
    ) -> dict[int, Any]:
        """Returns what those answer that do so in time."""


class Assist:
    """Help while typing, from the first process that is alive; none where it is silent.

    Args:
        ask: Asks sentinels.
        living: Returns the processes that can be asked.
    """

    def __init__(self, ask: Ask, living: Callable[[], Collection[int]]) -> None:
        self._ask, self._living = ask, living

    def complete(self, code: Code) -> tuple[int, dict[str, str]]:
        """Returns what fits at a place in code that runs on the processes.

        Returns:
            Where in the code the words begin; and the words, with what each is.
        """
        told = self._told("complete", code=code.text, offset=code.offset)
        return told or (code.offset, {})

    def inspect(self, name: str, detail: int) -> dict[str, str]:
        """Returns what IPython tells of an object on the processes; empty if it is not known."""
        return self._told("inspect", name=name, detail=detail) or {}

    def names(self) -> tuple[str, ...]:
        """Returns the names of the processes' variables."""
        return self._told("names") or ()

    def _told(self, function: str, **data: Any) -> Any:
        """Returns what the first living process answers; None if it does not do so in time."""
        try:
            first = min(self._living())
            answers = self._ask([first], f"{_PROCESS}.{function}", seconds=DEADLINE_SECONDS, **data)
            return answers.get(first)
        except Exception:  # of whatever kind: a completer that raises prints a traceback
            return None
