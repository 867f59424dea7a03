"""`input()` and `getpass()` of a cell, and the prompts of debuggers: the notebook is asked."""

from __future__ import annotations

import cmd
import itertools
import os
import queue
import sys
import threading
from dataclasses import dataclass
from typing import Any

from IPython.core.error import StdinNotImplementedError

from jaxnb.lockstep.process_interrupts import is_of_cell, outwards
from jaxnb.model.scripts import in_notebook
from jaxnb.wire.messages import QUESTION_TYPE
from jaxnb.wire.process_sentinel import ThisProcess

_PUSH = " To give a process a value without asking, push it: `%spmd_push NAME`."


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer: a text, or the end of all input, or why nobody can be asked."""

    text: str | None
    refusal: str


_open: dict[int, queue.Queue[_Answer]] = {}
"""The questions that wait for their answers, by number."""


_questions: Questions | None = None


class Questions:
    """Asks the notebook for what `input()` and `getpass()` return.

    Args:
        kernel: The process's kernel; its ``raw_input`` and ``getpass`` ask from now on.

    Attributes:
        shell: The kernel's shell.
    """

    def __init__(self, kernel: Any) -> None:
        # As it is now: `%%capture` puts another in its place, and nobody would see the question.
        self._publish = kernel.shell.display_pub.publish
        self._numbers = itertools.count(1)
        global _questions
        _questions = self
        self._pid = os.getpid()
        self.shell = kernel.shell
        kernel.raw_input, kernel.getpass = self.ask, self._ask_hidden

    def ask(self, prompt: object = "") -> str:
        """Asks, and waits for the answer; for ``input``.

        Raises:
            StdinNotImplementedError: Nobody can be asked; the message says why.
            EOFError: The user has ended the input (Ctrl-D).
            KeyboardInterrupt: The cell was interrupted.
        """
        return self._asked(str(prompt), hidden=False)

    def _ask_hidden(self, prompt: object = "Password: ", *_: object, **__: object) -> str:
        """Does what :meth:`ask` does, for ``getpass``: what is typed is not shown."""
        return self._asked(str(prompt), hidden=True)

    def tell(
        self, number: int, prompt: str = "", *, hidden: bool = False, alone: bool = True
    ) -> None:
        """Tells the notebook a :class:`~jaxnb.wire.messages.Question`."""
        said = {"number": number, "prompt": prompt, "hidden": hidden, "alone": alone}
        self._publish({QUESTION_TYPE: said})

    def _asked(self, prompt: str, *, hidden: bool) -> str:
        __tracebackhide__ = True
        frames = list(outwards(sys._getframe(2)))
        line = next((each.f_lineno for each in frames if is_of_cell(each.f_code)), None)
        is_debugger = any(each.f_code is cmd.Cmd.cmdloop.__code__ for each in frames)
        what = "The debugger" if is_debugger else "`getpass()`" if hidden else "`input()`"
        at = f"{what} at line {line}" if line else what
        advice = "" if is_debugger else in_notebook(_PUSH)
        if os.getpid() != self._pid or threading.current_thread() is not threading.main_thread():
            raise StdinNotImplementedError(
                f"{at} cannot ask: only the main thread of a process can, and none of its "
                f"forks.{advice}"
            )
        number = next(self._numbers)
        waiting = _open[number] = queue.Queue()
        try:
            self.tell(number, prompt, hidden=hidden, alone=is_debugger)
            answer = waiting.get()
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # without the frames of the queue
        finally:
            del _open[number]
        if answer.refusal:
            raise StdinNotImplementedError(f"{at} cannot ask: {answer.refusal}.{advice}")
        if answer.text is None:
            raise EOFError
        return answer.text


def kernel_shell() -> Any:
    """Returns the shell of this process's kernel, which a script does not find."""
    return None if _questions is None else _questions.shell


def ask_no_more() -> None:
    """Tells that the debugger of this process goes on: another process's may ask."""
    if _questions is not None:
        _questions.tell(0)


def answer(process: ThisProcess, number: int, text: str | None, refusal: str) -> None:
    """Answers a question of this process; one that does not wait any more is left alone.

    Args:
        process: This process.
        number: The question's.
        text: The answer; None for the end of all input.
        refusal: Why nobody can be asked; empty if that is not so.
    """
    if (waiting := _open.get(number)) is not None:
        waiting.put(_Answer(text, refusal))
