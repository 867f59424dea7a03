"""Leaves out what gloo says on standard output whenever it connects; no setting turns it off.

gloo writes its line in eight pieces (``std::cout << …``), from several threads at once, so the
pieces of several messages can come in any order that keeps each message's own. A newline then ends
a line of the output, but not always the message that began it. A line is gloo's if it is made of
such pieces and nothing else, and each piece is the next one of a message that has begun. All other
lines are somebody else's and pass unchanged, whatever they look like: ``[Gloo] Rank 1 is stuck``.

What cannot be told apart: a line that reads exactly as gloo's; and, while gloo is between two of
its pieces, a line of nothing but a number that gloo has just named, or an empty one. As many such
lines are shown as somebody else wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_PIECES = (
    "[Gloo] Rank ",
    " is connected to ",
    " peer ranks. ",
    "Expected number of connected peer ranks is : ",
)
# No two alternatives begin alike beyond their second character, and nothing repeats within the
# search: a line is read once, whatever is in it.
_PIECE = re.compile("|".join([*map(re.escape, _PIECES), "[0-9]"]))

_DATED = re.compile(r"^([IWEF])\d{4} [\d:.]{15} +\d+ (?=\S+:\d+\] )", re.MULTILINE)

FATAL = "Fatal Python error"
"""What the line begins with that says why a process crashes, before the stacks of its threads."""

_DUMP = re.compile(rf"^{FATAL}: ", re.MULTILINE)

NUMBERS = 3
"""How many numbers are in a message: the rank, its peers, and how many were expected."""

MOST_DIGITS = 7
"""No number of processes has more."""

MAX_PARTIAL_CHARS = 4096
"""A longer line is handed on before its end has come."""


@dataclass
class _Begun:
    """How often each piece has come, of messages of gloo's that have begun.

    Attributes:
        pieces: In the order of the message; the last is its newline.
        digits: How many.
        named: Which.
    """

    pieces: list[int] = field(default_factory=lambda: [0] * (len(_PIECES) + 1))
    digits: int = 0
    named: set[str] = field(default_factory=set)

    def __bool__(self) -> bool:
        return self.pieces[0] > self.pieces[-1]

    def after(self, line: str) -> _Begun | None:
        """Returns what has come after one more line; None if that is not of gloo's pieces."""
        pieces, digits, named = list(self.pieces), self.digits, set(self.named)
        has_text = any(piece in line for piece in _PIECES)
        position = 0
        while position < len(line):
            found = _PIECE.match(line, position)
            if found is None:
                return None
            position = found.end()
            if found[0].isdigit():
                digits += 1
                named.add(found[0])
                may_come = pieces[0] + pieces[1] + pieces[3]
                if digits > MOST_DIGITS * may_come or not (has_text or found[0] in self.named):
                    return None
                continue
            which = _PIECES.index(found[0])
            pieces[which] += 1
            if which and pieces[which] > pieces[which - 1]:
                return None
        pieces[-1] += 1
        if pieces[-1] > pieces[-2] or digits < NUMBERS * pieces[-1]:
            return None
        return _Begun(pieces, digits, named)


class ChatterFilter:
    """Hands on the lines that one process writes to its standard output, without gloo's.

    Takes text in any pieces. The time it takes is linear in the length of the text.
    """

    def __init__(self) -> None:
        self._partial = ""
        self._passes = False  # the rest of a line whose beginning was handed on
        self._begun = _Begun()
        self.characters_read = 0

    @property
    def is_pending(self) -> bool:
        """Whether :meth:`flush` is due in a while: text is held back, or gloo has not ended."""
        return bool(self._partial or self._begun)

    def feed(self, text: str) -> str:
        """Takes text; returns what can be handed on: whole lines, and what is long."""
        *lines, self._partial = (self._partial + text).split("\n")
        shown = [line + "\n" for line in lines if not self._is_gloos(line)]
        if len(self._partial) > MAX_PARTIAL_CHARS or (self._passes and self._partial):
            shown.append(self._partial)
            self._partial, self._passes = "", True
        return "".join(shown)

    def flush(self) -> str:
        """Returns what was held back: nothing has come for a while, or nothing will."""
        held, self._partial = self._partial, ""
        self._passes = self._passes or bool(held)
        self._begun = _Begun()
        return held

    def _is_gloos(self, line: str) -> bool:
        if self._passes:
            self._passes = False
            return False
        if not self._begun and not line.startswith(_PIECES[0]):
            return False
        self.characters_read += len(line)
        after = self._begun.after(line)
        if after is None:
            return False
        self._begun = after if after else _Begun()
        return True


class DumpFilter:
    """Holds back what faulthandler writes as a process crashes: the report of its death tells it.

    Takes whole lines. What a child of the process writes is let go by :meth:`flush`, as the process
    lives on.
    """

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> str:
        """Takes lines; returns those before a dump."""
        found = None if self.held else _DUMP.search(text)
        end = found.start() if found else 0 if self.held else len(text)
        self.held += text[end:]
        return text[:end]

    def flush(self) -> str:
        """Returns what was held back."""
        held, self.held = self.held, ""
        return held


def undated(text: str) -> str:
    """Returns lines of XLA's log without time and thread, so that processes say the same.

    ``"W1128 17:25:02.256589   10572 a.cc:6] …"`` becomes ``"W a.cc:6] …"``.
    """
    return _DATED.sub(r"\1 ", text)


def quiet(text: str) -> str:
    """Returns what a process wrote to its standard output, without gloo's lines."""
    chatter = ChatterFilter()
    return chatter.feed(text) + chatter.flush()
