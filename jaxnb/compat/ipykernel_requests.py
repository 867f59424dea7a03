"""ipykernel's own names about requests: who handles them, what is said of them, interrupts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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


def say_less(kernel: Any, is_waited_for: Callable[[str, Any], bool]) -> None:
    """Keeps ipykernel from saying "busy" and "idle" where nobody waits for it.

    Each is made, signed, passed on and read in 0.2 ms, of the 3 to 4 that a request takes.

    Args:
        kernel: The kernel.
        is_waited_for: Tells so of a state and the message that it is about.
    """
    original = getattr(kernel, "_publish_status", None)
    if original is None:  # an ipykernel that says it otherwise
        return

    def publish_status(status: str, *rest: Any, **settings: Any) -> None:
        if is_waited_for(status, kernel.get_parent("shell")):
            original(status, *rest, **settings)

    kernel._publish_status = publish_status


@contextmanager
def with_own_input(kernel: Any) -> Iterator[None]:
    """Has ``input`` and ``getpass`` be those of the kernel for the block."""
    kernel._forward_input(allow_stdin=False)
    try:
        yield
    finally:
        kernel._restore_input()
