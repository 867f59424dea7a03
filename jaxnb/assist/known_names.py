"""Pure: what processes have told of their names, for when they cannot tell."""

from __future__ import annotations

import keyword
import re
from collections import OrderedDict
from collections.abc import Iterable

from jaxnb.model.cells import Completed

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
