"""The magics: each parses its line, calls one method of the session, and displays."""

from __future__ import annotations

from typing import Any


def load(shell: Any) -> None:
    """Registers the magics with an IPython shell; loading twice does nothing more."""
    from jaxnb.magics.spmd import SpmdMagics

    if not isinstance(shell.magics_manager.registry.get("SpmdMagics"), SpmdMagics):
        shell.register_magics(SpmdMagics(shell))
