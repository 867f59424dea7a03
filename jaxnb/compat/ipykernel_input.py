"""ipykernel's own names about input: a question to the front end that does not block.

Its ``raw_input`` waits for the answer, and nobody would look at the running cell meanwhile: at its
output, at interrupts, at deaths.
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import zmq

END_OF_INPUT = "\x04"
"""What ipykernel takes for it."""


def current_kernel() -> Any:
    """Returns the kernel that this process is; None if it is none."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython

    return getattr(get_ipython(), "kernel", None)


def takes_input(kernel: Any) -> bool:
    """Whether the front end that runs the current cell can be asked."""
    return bool(kernel._allow_stdin) and kernel.stdin_socket is not None


class KernelBox:
    """The input box of a notebook.

    Args:
        kernel: Its kernel, whose main thread this is.
        prompt: What stands before it.
        hidden: It does not show what is typed.
    """

    def __init__(self, kernel: Any, prompt: str, *, hidden: bool) -> None:
        self._kernel = kernel
        while self._received() is not None:
            pass  # the answer to a question that did not wait for it any more
        content = {"prompt": prompt, "password": hidden}
        parent, ident = kernel.get_parent("shell"), kernel._parent_ident["shell"]
        sent = kernel.session.send(
            kernel.stdin_socket, "input_request", content, parent=parent, ident=ident
        )
        self._asked = sent["header"]["msg_id"]

    def answer(self) -> str | None:
        """Returns what was typed; None as long as nothing was.

        Raises:
            EOFError: The user has ended the input.
        """
        reply = self._received()
        # JupyterLab leaves the box of an interrupted cell; not all front ends say what they answer.
        if reply is None or reply["parent_header"].get("msg_id", self._asked) != self._asked:
            return None
        text = str(reply["content"].get("value", ""))
        if text == END_OF_INPUT:
            raise EOFError
        return text

    def close(self) -> None:
        """Does nothing: nobody can take a front end's box away."""

    def _received(self) -> Any:
        if not self._kernel.stdin_socket.poll(0, zmq.POLLIN):
            return None
        with contextlib.suppress(ValueError):  # not signed as it should be: ipykernel goes on too
            return self._kernel.session.recv(self._kernel.stdin_socket)[1]
        return None
