"""The magics: each parses its line, calls one method of the session, and displays."""

from __future__ import annotations

from typing import Any


def load(shell: Any) -> None:
    """Registers the magics with an IPython shell; loading twice does nothing more."""
    from jaxnb.magics import formats
    from jaxnb.magics.comparing import ComparingMagics
    from jaxnb.magics.compiling import CompilingMagics
    from jaxnb.magics.looking_back import LookingBackMagics
    from jaxnb.magics.spmd import SpmdMagics
    from jaxnb.magics.stats import StatsMagics
    from jaxnb.magics.values import ValueMagics

    if isinstance(shell.magics_manager.registry.get("SpmdMagics"), SpmdMagics):
        return
    magics = SpmdMagics(shell)
    shell.register_magics(
        magics,
        ValueMagics(shell, magics.started, magics.meter),
        CompilingMagics(shell, magics.started, lambda: magics.session),
        ComparingMagics(shell, magics.started, lambda: magics.session),
        LookingBackMagics(shell, magics.started),
        StatsMagics(shell, magics.started),
    )
    formats.register(shell, lambda: magics.session)
