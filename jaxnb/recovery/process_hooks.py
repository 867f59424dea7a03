"""Calls what :func:`jaxnb.on_recover` was given, on this process."""

from __future__ import annotations

from typing import Any

from jaxnb import recover_hooks


def call(shell: Any, process_index: int) -> tuple[str, ...]:
    """Calls the functions, in the order in which they were given.

    Returns:
        What they raised, in words. One that raises does not keep the others from being called.
    """
    failed = []
    for function in recover_hooks.functions():
        try:
            function()
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            name = getattr(function, "__qualname__", repr(function))
            text = f"{type(error).__name__}: {error}"
            failed.append(f"process {process_index}: `{name}` raised {text}")
    return tuple(failed)
