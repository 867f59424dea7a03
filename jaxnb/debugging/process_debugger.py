"""Debuggers of a cell: at a breakpoint, or where it has failed; the user's frames only."""

from __future__ import annotations

import cmd
import itertools
import os
import pdb
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any
from unittest.mock import patch

from IPython import get_ipython
from IPython.core import debugger
from IPython.core.error import StdinNotImplementedError

from jaxnb.arrays.process_names import library_places
from jaxnb.errors import UsageError
from jaxnb.lockstep.process_interrupts import (
    is_of_cell,
    outwards,
    seconds_since_strike,
    strike_by_signal,
)
from jaxnb.model.scripts import in_notebook
from jaxnb.wire.messages import QUESTION_TYPE
from jaxnb.wire.process_features import CellHere, Feature
from jaxnb.wire.process_sentinel import ThisProcess

_PUSH = " To give a process a value without asking, push it: `%spmd_push NAME`."


_open: dict[int, queue.Queue[tuple[str | None, str]]] = {}
"""The questions that wait, by number: for a text (None ends all input), and why it is refused."""


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
            text, refusal = waiting.get()
        except KeyboardInterrupt:
            raise KeyboardInterrupt from None  # without the frames of the queue
        finally:
            del _open[number]
        if refusal:
            raise StdinNotImplementedError(f"{at} cannot ask: {refusal}.{advice}")
        if text is None:
            raise EOFError
        return text


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
        waiting.put((text, refusal))


_NOT_THE_USERS = frozenset(("jaxnb", "IPython", "ipykernel", "jax", "jaxlib", "bdb", "cmd", "pdb"))
"""Packages whose frames are not shown, nor stopped in: `step` goes on to what they call."""

_LIBRARIES = ("<", *library_places())
"""Where code is that the user has not written; ``<``: named tuples, data classes and the like."""

_failed: BaseException | None = None


class CellDebugger(debugger.Pdb):
    """IPython's debugger, for code of a cell and what that calls.

    It reads its commands by ``input``, so the notebook is asked. An interrupt ends the cell, as
    without it; so does `quit`, on all processes.

    Args:
        is_over: The code has ended: it is looked at where it has failed.
    """

    def __init__(self, *, is_over: bool = False) -> None:
        with patch.object(debugger, "get_ipython", kernel_shell):  # else it would make a shell
            # Without it `continue` would have an interrupt stop, not end the cell.
            super().__init__(nosigint=True)
        self._is_over = is_over
        self._is_interrupted = False
        self._began = 0.0

    def stop_here(self, frame: FrameType) -> bool:
        """Whether to stop in a call: not in JAX and the like, nor in what they call themselves."""
        stops: Callable[[FrameType], bool] = super().stop_here
        return _is_called_by_user(frame) and stops(frame)

    def user_call(self, frame: FrameType, arguments: Any) -> None:
        """Stops as a function begins; IPython runs a cell as several modules, which count not."""
        if frame.f_code.co_name != "<module>":
            super().user_call(frame, arguments)

    def user_return(self, frame: FrameType, value: Any) -> None:
        """Stops as a function ends; and a module, if it has only just come to its breakpoint."""
        if frame.f_code.co_name != "<module>" or not self._began:
            super().user_return(frame, value)
            frame.f_globals.pop("__return__", None)

    def get_stack(self, *args: Any, **settings: Any) -> tuple[list[tuple[FrameType, int]], int]:
        """Returns the user's calls, from the cell inwards, and which is the innermost."""
        of_all: Callable[..., Any] = super().get_stack
        stack, _ = of_all(*args, **settings)
        first = next((i for i, (frame, _) in enumerate(stack) if is_of_cell(frame.f_code)), 0)
        shown = [each for each in stack[first:] if _is_users(each[0])] or stack
        return shown, len(shown) - 1

    def do_quit(self, arg: str) -> bool | None:
        """q(uit): ends the cell, on all processes."""
        if not self._is_over:
            raise strike_by_signal()
        self.set_quit()
        return True

    do_q = do_exit = do_quit

    def do_EOF(self, arg: str) -> bool | None:
        """EOF: quits; a script whose input has ended raises, as under plain Python."""
        return super().do_EOF(arg) if get_ipython() is None else self.do_quit(arg)

    def do_interact(self, arg: str) -> None:
        """interact: not here; its prompt would outlive an interrupt of the cell."""
        self.error("`interact` is not available here: `!STATEMENT` runs a statement")

    def do_continue(self, arg: str) -> Any:
        """c(ont(inue)): goes on to the next breakpoint."""
        ask_no_more()
        return super().do_continue(arg)

    do_c = do_cont = do_continue

    def cmdloop(self, intro: Any = None) -> None:
        """Reads and does commands; an interrupt ends that, and is raised by ``interaction``.

        pdb would print it, and read on.
        """
        try:
            super().cmdloop(intro)
        except KeyboardInterrupt:
            self._is_interrupted = True

    def postcmd(self, stop: bool, line: str) -> bool:
        """Ends a command; pdb only prints an interrupt of what one evaluates."""
        since = seconds_since_strike()
        if since is not None and time.monotonic() - since > self._began:
            raise KeyboardInterrupt
        return super().postcmd(stop, line)

    def interaction(self, frame: FrameType | None, tb_or_exc: Any) -> None:
        """Lets the user look at a call, and give commands."""
        self._began = time.monotonic()
        interact: Callable[..., None] = super().interaction
        interact(frame, tb_or_exc)
        if self._is_interrupted:
            sys.settrace(None)
            raise KeyboardInterrupt


class Debugging(Feature):
    """Has breakpoints of cells open a :class:`CellDebugger`, and keeps what cells have raised."""

    def __init__(self) -> None:
        pdb.set_trace = debugger.set_trace = set_trace  # `breakpoint()` calls pdb's

    def over(self, cell: CellHere) -> None:
        """Ends a debugger that has not come to its end: it must not stop in the next cell."""
        global _failed
        if isinstance(getattr(sys.gettrace(), "__self__", None), CellDebugger):
            sys.settrace(None)
        if cell.raised is not None and not cell.request.aside:
            _failed = cell.raised


def set_trace(*_: Any, header: str | None = None, **__: Any) -> None:
    """Stops the caller here, and has the notebook's user look at it."""
    opened = CellDebugger()
    if header is not None:
        opened.message(header)
    stop: Callable[[FrameType], None] = opened.set_trace
    stop(sys._getframe(1))


def post_mortem() -> None:
    """Looks at where the last cell that failed on this process has raised.

    Raises:
        UsageError: It was not in the cell's code.
    """
    entries = traceback.walk_tb(None if _failed is None else _failed.__traceback__)
    if _failed is None or not any(is_of_cell(frame.f_code) for frame, _ in entries):
        raise UsageError("It came before any code of the cell ran: there is nothing to look at.")
    opened = CellDebugger(is_over=True)
    opened.reset()
    opened.message(f"{type(_failed).__name__}: {_failed}")
    opened.interaction(None, _failed.__traceback__)


def _is_called_by_user(frame: FrameType) -> bool:
    """Whether a call is of the user's code, or of a library that this has called."""
    for each in outwards(frame):
        if not _is_users(each):
            return False
        if is_of_cell(each.f_code) or not each.f_code.co_filename.startswith(_LIBRARIES):
            return True
    return False


def _is_users(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).partition(".")[0] not in _NOT_THE_USERS
