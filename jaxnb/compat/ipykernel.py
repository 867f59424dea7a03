"""ipykernel's own names: requests, output, input."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

import zmq
from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.iostream import OutStream


def this_kernel() -> Any:
    """Returns the kernel of this process."""
    from ipykernel.kernelapp import IPKernelApp

    return IPKernelApp.instance().kernel


def handlers(kernel: Any) -> dict[str, Callable[..., Any]]:
    """Returns what answers each kind of request: ``await handler(stream, ident, parent)``."""
    found: dict[str, Callable[..., Any]] = kernel.shell_handlers
    return found


def call_when_readable(kernel: Any, fd: int, called: Callable[[], None]) -> None:
    """Has the main thread call a function, between requests, when a file can be read."""
    kernel.io_loop.asyncio_loop.add_reader(fd, called)


def leave_signals_alone(kernel: Any, is_ours: Callable[[Any], bool]) -> None:
    """Keeps ipykernel from making SIGINT a KeyboardInterrupt around the requests that are ours.

    It does so for as long as the handler of a message runs. One that struck before or after
    the cell itself would be caught in ipykernel's own code, and no reply would be sent.
    """
    for name in ("pre_handler_hook", "post_handler_hook"):
        original = getattr(kernel, name)

        def hook(original: Any = original) -> None:
            if not is_ours(kernel.get_parent("shell")):
                original()

        setattr(kernel, name, hook)


def publish_status(kernel: Any, is_wanted: Callable[[str, Any], bool]) -> None:
    """Has a kernel say that it is busy, or idle, only where that is wanted.

    Each is a message through the controller, which costs as much as a reply.

    Args:
        kernel: The kernel.
        is_wanted: Takes the status, and the request that it is about.
    """
    if (publish := getattr(kernel, "_publish_status", None)) is None:
        return

    def publish_wanted(status: str, channel: str, parent: Any = None) -> None:
        if is_wanted(status, parent or kernel.get_parent(channel)):
            publish(status, channel, parent)

    kernel._publish_status = publish_wanted


@contextlib.contextmanager
def with_own_input(kernel: Any) -> Iterator[None]:
    """Has ``input`` and ``getpass`` be those of the kernel for the block."""
    kernel._forward_input(allow_stdin=False)
    try:
        yield
    finally:
        kernel._restore_input()


NOTHING = object()
"""In the place of a value where there is none."""


PIECES, PIECE_CHARS = 4_096, 1_000
"""After so many writes, or after a longer one, the output thread settles what was written: else it
would pile up until it is sent."""


class PythonOutStream(OutStream):
    """Standard output of Python code; file descriptors 1 and 2 are left to the launcher.

    ipykernel would redirect those into this process, where the last words of a process that
    aborts (XLA's fatal errors, faulthandler's stacks) die with it.

    A write is put on a list, in a fifth of the time that ipykernel's own takes. The output thread
    settles it, at the latest when it is sent: then ipykernel gets it. No interrupt strikes there.

    Attributes:
        lock: Held while what was written is settled. Reentrant: the collection of garbage may run
            a ``__del__`` that prints, anywhere.
        limit: Takes what was written, and the header of the request that has written it; returns
            what of it is sent.
    """

    made: ClassVar[list[PythonOutStream]] = []
    limit: Callable[[Mapping[str, Any], str], str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._has_text = self._settles_soon = False
        self._pieces: list[tuple[Mapping[str, Any], str]] = []
        self.lock = threading.RLock()
        self.limit = lambda _, text: text
        super().__init__(*args, **{**kwargs, "watchfd": False})  # type: ignore[no-untyped-call]
        self.made.append(self)

    @classmethod
    def flush_all(cls) -> None:
        """Flushes all that were made: what a cell has put in their place may not do it."""
        for each in cls.made:
            if not each.closed:
                each.flush()

    def write(self, string: Any) -> int:
        """Writes, as ipykernel does."""
        if self.closed or not isinstance(string, str):
            return super().write(string) or 0  # it says what is wrong with that
        pieces = self._pieces
        pieces.append((self.parent_header, string))
        self._has_text = True
        if not self._flush_pending:  # looked at after the text is on the list: it takes that along
            self._schedule_flush()  # type: ignore[no-untyped-call]
        if (len(pieces) > PIECES or len(string) > PIECE_CHARS) and not self._settles_soon:
            self._settles_soon = True
            self.pub_thread.schedule(self.settle)
        return len(string)

    def settle(self) -> None:
        """Hands what was written to ipykernel, as far as it is sent."""
        self._settles_soon = False
        with self.lock:
            taken = self._pieces[:]
            del self._pieces[: len(taken)]  # in place: others append meanwhile
            for parent, those in groupby(taken, itemgetter(0)):
                self._hand(parent, self.limit(parent, "".join(text for _, text in those)))

    def _hand(self, parent: Mapping[str, Any], text: str) -> None:
        if text:
            with self._buffer_lock:
                self._buffers[frozenset(parent.items())].write(text)

    def write_of(self, parent: Mapping[str, Any], text: str) -> None:
        """Writes what a request has written, whatever its limit; the next flush sends it."""
        self._has_text = True
        self._hand(parent, text)

    def _flush(self) -> None:
        self._flush_pending = False  # what comes from here on is flushed by itself
        self.settle()
        super()._flush()  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        """Flushes, if there is anything to flush.

        ipykernel hands every flush to its output thread and waits for it, and flushes both
        streams several times a cell: a third of the time of an empty one.
        """
        if self._has_text:
            self._has_text = False
            super().flush()  # type: ignore[no-untyped-call]


class KeepingDisplayHook(ZMQShellDisplayHook):
    """Keeps the last expression's value and its formats instead of publishing them."""

    value: Any = NOTHING
    bundle: dict[str, Any]
    keeps_only = False
    """Whether values are kept and not formatted: to format an array is to wait for it."""

    def __call__(self, result: Any = None) -> None:
        """Takes the value; IPython calls this for the last expression."""
        if self.keeps_only:
            self.value = NOTHING if result is None else result
            return
        if result is not None and not self.quiet():  # type: ignore[no-untyped-call]
            self.value = result
        super().__call__(result)  # type: ignore[no-untyped-call]

    def compute_format_data(self, result: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        """Formats the value."""
        return super().compute_format_data(result)  # type: ignore[no-any-return, no-untyped-call]

    def finish_displayhook(self) -> None:
        """Keeps what ipykernel would send to the front end here."""
        self.bundle = dict((self.msg or {}).get("content", {}).get("data", {}))
        self.msg = None

    def take(self) -> tuple[Any, dict[str, Any]]:
        """Returns the value and its formats, and forgets them."""
        taken = self.value, getattr(self, "bundle", {})
        self.value, self.bundle = NOTHING, {}
        return taken


def install_display_hook(shell: Any, kind: type[KeepingDisplayHook]) -> None:
    """Has a shell's last expressions go to a display hook of this kind."""
    old = shell.displayhook
    hook: Any = kind(shell=shell, parent=shell, cache_size=shell.cache_size)
    hook.session, hook.pub_socket, hook.topic = old.session, old.pub_socket, old.topic
    shell.displayhook = hook
    shell.display_trap.hook = hook


def import_without_debugpy() -> None:
    """Imports ``ipykernel.debugger`` as if debugpy were not installed.

    ipykernel imports it for the debugger of a front end, which an engine does not have; that
    takes 0.1 s and 6 MB of each process. A cell can still import it.
    """
    if "debugpy" in sys.modules:
        importlib.import_module("ipykernel.debugger")
        return
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    try:
        importlib.import_module("ipykernel.debugger")
    finally:
        del sys.modules["debugpy"]


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
    """The input box of a notebook; it does not block.

    ipykernel's own ``raw_input`` waits for the answer, and nobody would look at the running cell
    meanwhile: at its output, at interrupts, at deaths.

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
