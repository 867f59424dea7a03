"""ipykernel's own names about output: its streams, its display hook, its debugger."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from ipykernel.displayhook import ZMQShellDisplayHook
from ipykernel.iostream import OutStream

NOTHING = object()
"""In the place of a value where there is none."""


class PythonOutStream(OutStream):
    """Standard output of Python code; file descriptors 1 and 2 are left to the launcher.

    ipykernel would redirect those into this process, where the last words of a process that
    aborts (XLA's fatal errors, faulthandler's stacks) die with it.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._has_text = False
        super().__init__(*args, **{**kwargs, "watchfd": False})  # type: ignore[no-untyped-call]

    def write(self, string: str) -> int:
        """Writes, as ipykernel does."""
        self._has_text = True
        return super().write(string) or 0

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


def import_without_debugpy(module: str = "ipykernel.debugger") -> None:
    """Imports a module as if debugpy were not installed.

    ipykernel imports it for the debugger of a front end, which an engine does not have; that
    takes 0.1 s and 6 MB of each process. A cell can still import it.
    """
    if "debugpy" in sys.modules:
        importlib.import_module(module)
        return
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    try:
        importlib.import_module(module)
    finally:
        del sys.modules["debugpy"]
