"""Every error that jaxnb raises on purpose.

A message answers four questions: which process, what happened, what state things are in
now, and what to type next.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxnb.cells.result import CellResult
    from jaxnb.recovery.messages import Recovered


WIDTH = 72
"""So many columns has a narrow notebook; JupyterLab breaks longer lines of errors anywhere."""


def by_words(text: str) -> str:
    """Returns a text, with ANSI colours or without, whose long lines end between words.

    Lines that begin with blanks, or with IPython's arrow, are code, or stand below something; but
    not what stands behind the bars of an exception group.
    """
    lines = text.replace("cell [", "cell\0[").split("\n")  # which is one word to who reads it
    return "\n".join(map(_broken, lines)).replace("cell\0[", "cell [")


_ANSI = re.compile(r"\x1b\[[\d;]*m")
_BARS = re.compile(r"( +\| (?=\S))?")
_WORD = re.compile(r" *[^ ]+")


def _broken(line: str) -> str:
    plain = _ANSI.sub("", line)
    before = len(line) - len(_BARS.sub("", line))
    if len(plain) <= WIDTH or plain.startswith("--") or plain[before:][:1].isspace():
        return line
    lines: list[str] = []
    used = 0
    for word in _WORD.findall(line[before:]):
        alone = word.lstrip(" ")
        used += len(_ANSI.sub("", word))
        width = before + len(_ANSI.sub("", alone))  # if it begins the next line
        if not lines or (used > WIDTH and width <= WIDTH):
            lines.append(line[:before] + alone)
            used = width
        else:
            lines[-1] += word
    return "\n".join(lines)


class JaxnbError(Exception):
    """Base of all jaxnb errors."""

    def _render_traceback_(self) -> list[str]:
        """What IPython shows for it: the message and its notes, without frames of jaxnb's own."""
        return self._ended_by(str(self))

    def _ended_by(self, message: str) -> list[str]:
        notes = getattr(self, "__notes__", ())
        return [by_words(each) for each in (f"{type(self).__name__}: {message}", *notes)]


class UsageError(JaxnbError):
    """What the user typed cannot be done as typed; nothing was started or run."""


class RecoveryInterrupted(KeyboardInterrupt):
    """An interrupt came during ``recover()``, which cannot stop half-way, and has ended.

    Attributes:
        recovered: What it has done.
    """

    TOO_LATE = (
        "Interrupted; but the processes were replaced all the same, which cannot stop half-way."
    )

    def __init__(self, recovered: Recovered) -> None:
        super().__init__(f"{self.TOO_LATE} {recovered}")
        self.recovered = recovered


class StartError(JaxnbError):
    """The group could not be started; whatever had started has been stopped again."""


class SessionClosedError(JaxnbError):
    """The session was closed by its user (``%spmd_stop``, ``session.close()``)."""


class SessionBrokenError(JaxnbError):
    """Something outside broke the session: a process or the ipyparallel controller died."""


class ProcessDiedError(SessionBrokenError):
    """A process of the group ended while it was needed.

    Attributes:
        process_index: The process that died.
        pid: Its process id.
        result: What the processes did in the cell that ran, if one did.
    """

    result: CellResult | None = None

    def __init__(self, message: str, *, process_index: int, pid: int) -> None:
        super().__init__(message)
        self.process_index = process_index
        self.pid = pid


class CellError(JaxnbError):
    """A cell raised on at least one process.

    Attributes:
        result: The :class:`~jaxnb.cells.result.CellResult`, with what every process printed,
            returned or raised.
    """

    def __init__(
        self, message: str, *, result: CellResult, rendering: str = "", closing: str = ""
    ) -> None:
        super().__init__(message)
        self.result = result
        self._rendering = rendering
        self._closing = closing or message

    def _render_traceback_(self) -> list[str]:
        """The processes' tracebacks, each distinct one once; then the message, or a shorter one."""
        return [*self._rendering.splitlines(), "", *self._ended_by(self._closing)]


class NotCompiledError(JaxnbError):
    """A call could not be compiled; it was not run, and nothing has changed."""

    def __init__(self, message: str, *, rendering: str = "") -> None:
        super().__init__(message)
        self._rendering = rendering

    def _render_traceback_(self) -> list[str]:
        """The user's own lines, as they were on the process that raised; then the message."""
        return [*by_words(self._rendering).splitlines(), "", *super()._render_traceback_()]


class DivergenceWarning(UserWarning):
    """The processes parted in a cell; in a notebook its output says so."""


class PitfallWarning(UserWarning):
    """A cell did what JAX says nothing of; in a notebook its card says so."""


class NanWarning(UserWarning):
    """A cell that was to look for NaN has found one; in a notebook its output says so."""


class DivergenceError(JaxnbError):
    """The processes were about to part; nothing of that has run.

    Raised on each of the processes that were to compute together. Code that catches it goes on, and
    what it dispatches next is agreed on as before.
    """


class CellTimeoutError(CellError):
    """A cell ran longer than its ``timeout``; it was interrupted on every process."""


class ValueGoneError(JaxnbError):
    """A value is used that could not be carried to the process that uses it."""


class ArrayGoneError(ValueGoneError):
    """An array whose data are asked for is not on the processes any more."""


class NotEnoughMemoryError(JaxnbError, MemoryError):
    """What was asked for is larger than the memory that is free; nothing was allocated."""
