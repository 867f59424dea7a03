"""ipykernel's own names about requests: who handles them, what is said of them, interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from jaxnb.compat.uses import Use

Asked = Callable[[Any], bool]
"""Tells of a message whether something is so."""


def this_kernel() -> Any:
    """Returns the kernel of this process."""
    from ipykernel.kernelapp import IPKernelApp

    return IPKernelApp.instance().kernel


def answer_with(kernel: Any, kind: str, handler: Callable[..., Any]) -> None:
    """Has a kernel answer a kind of request: ``await handler(stream, ident, parent)``."""
    kernel.shell_handlers[kind] = handler


def answers_with(kernel: Any, kind: str) -> Any:
    """Returns what answers a kind of request."""
    return kernel.shell_handlers.get(kind)


def leave_signals_alone(kernel: Any, is_ours: Asked) -> None:
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


@contextmanager
def with_own_input(kernel: Any) -> Iterator[None]:
    """Has ``input`` and ``getpass`` be those of the kernel for the block."""
    kernel._forward_input(allow_stdin=False)
    try:
        yield
    finally:
        kernel._restore_input()


@cache
def _kernel() -> Any:
    """Makes a kernel without sockets, for the probes."""
    from ipykernel.ipkernel import IPythonKernel
    from jupyter_client.session import Session
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    make: Any = IPythonKernel
    return make(config=config, session=Session(key=b""), user_ns={})


def probe_kernel() -> Any:
    """Returns a kernel that the probes of a process share; it listens on nothing."""
    return _kernel()


def _probe_handlers() -> str:
    kernel, said = probe_kernel(), object()
    kept = answers_with(kernel, "apply_request")
    answer_with(kernel, "apply_request", lambda *_: said)
    found = kernel.shell_handlers["apply_request"]()
    if kept is None:
        del kernel.shell_handlers["apply_request"]
    return "" if found is said else "shell_handlers keeps no handler"


def _probe_signals() -> str:
    import signal

    kernel, ours = probe_kernel(), [True]
    before = signal.getsignal(signal.SIGINT)
    own = {name: getattr(kernel, name) for name in ("pre_handler_hook", "post_handler_hook")}
    leave_signals_alone(kernel, lambda _: ours[0])
    try:
        kernel.pre_handler_hook()
        if signal.getsignal(signal.SIGINT) is not before:
            return "SIGINT has another handler during a request of ours"
        ours[0] = False
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        kernel.pre_handler_hook()
        changed = signal.getsignal(signal.SIGINT)
        kernel.post_handler_hook()
        return "" if changed is signal.default_int_handler else "pre_handler_hook sets no handler"
    finally:
        signal.signal(signal.SIGINT, before)
        for name, hook in own.items():
            setattr(kernel, name, hook)


def _probe_input() -> str:
    import builtins

    before = builtins.input
    with with_own_input(probe_kernel()):
        try:
            input()
        except Exception as error:
            found = type(error).__name__
        else:
            found = "nothing"
    if builtins.input is not before:
        return "input() is not restored"
    return "" if found == "StdinNotImplementedError" else f"input() raises {found}"


USES = (
    Use(
        "ipykernel",
        ("Kernel.shell_handlers", "IPKernelApp.kernel"),
        "answering jaxnb's requests, and refusing ipyparallel's, which unpickle what is not signed",
        "Nothing works: no process can be asked anything, and a start ends with an error.",
        _probe_handlers,
    ),
    Use(
        "ipykernel",
        ("Kernel.pre_handler_hook", "Kernel.post_handler_hook", "Kernel.get_parent"),
        "leaving SIGINT to jaxnb while a cell runs",
        "An interrupt at a cell's end may strike ipykernel, and its reply is never sent.",
        _probe_signals,
    ),
    Use(
        "ipykernel",
        ("Kernel._forward_input", "Kernel._restore_input"),
        "`input()` in a cell asks the notebook",
        "No cell runs: ipykernel's own way to run one waits for a thread that engines do not have.",
        _probe_input,
    ),
)
"""What is used here."""
