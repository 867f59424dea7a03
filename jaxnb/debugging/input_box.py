"""Asks the user of this process: by the notebook's input box, or in a terminal."""

from __future__ import annotations

import contextlib
import select
import sys
import threading

from jaxnb.compat import ipykernel_input


def refusal() -> str:
    """Returns why the user cannot be asked here, as a clause; empty if they can."""
    if threading.current_thread() is not threading.main_thread():
        return "its cell runs in the background (`--async`)"
    kernel = ipykernel_input.current_kernel()
    if kernel is not None:
        takes = ipykernel_input.takes_input(kernel)
        return "" if takes else "this front end (nbclient, papermill, …) takes no input"
    return "" if sys.stdin and sys.stdin.isatty() else "standard input is not a terminal"


def open_box(prompt: str, *, hidden: bool) -> ipykernel_input.KernelBox | TerminalBox:
    """Asks; where :func:`refusal` says nothing against it."""
    kernel = ipykernel_input.current_kernel()
    if kernel is not None:
        return ipykernel_input.KernelBox(kernel, prompt, hidden=hidden)
    return TerminalBox(prompt, hidden=hidden)


class TerminalBox:
    """Asks in the terminal that this process runs in."""

    def __init__(self, prompt: str, *, hidden: bool) -> None:
        self._echo = contextlib.ExitStack()
        if hidden:
            import termios

            before = termios.tcgetattr(sys.stdin)
            self._echo.callback(termios.tcsetattr, sys.stdin, termios.TCSAFLUSH, before)
            silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
            termios.tcsetattr(sys.stdin, termios.TCSAFLUSH, silent)
            self._echo.callback(sys.stdout.write, "\n")
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
        """Shows again what is typed."""
        self._echo.close()
