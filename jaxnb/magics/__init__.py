"""The magics: each parses its line, calls one method of the session, and displays."""

from __future__ import annotations

from typing import Any


def load(shell: Any) -> None:
    """Registers the magics with an IPython shell; loading twice does nothing more."""
    from jaxnb.magics import debugging, formats, helping, hinting
    from jaxnb.magics.auto import AutoMagics
    from jaxnb.magics.comparing import ComparingMagics
    from jaxnb.magics.compiling import CompilingMagics
    from jaxnb.magics.history import LookingBackMagics
    from jaxnb.magics.saving import SavingMagics
    from jaxnb.magics.spmd import SpmdMagics
    from jaxnb.magics.stats import StatsMagics
    from jaxnb.magics.values import ValueMagics

    if isinstance(shell.magics_manager.registry.get("SpmdMagics"), SpmdMagics):
        return
    magics = SpmdMagics(shell)

    def current() -> Any:
        return magics.session

    def last() -> Any:
        return magics.session or magics.stopped

    auto, debugs = AutoMagics(shell, current), debugging.DebuggingMagics(shell, current)
    shell.register_magics(
        magics,
        auto,
        debugs,
        ValueMagics(shell, current, magics.meter),
        CompilingMagics(shell, current),
        ComparingMagics(shell, current),
        LookingBackMagics(shell, current, last),
        StatsMagics(shell, current),
        SavingMagics(shell, current),
    )
    formats.register(shell, current)
    helping.install(shell, current, auto.auto.takes)
    hinting.install(shell, current)
    debugging.install(shell, debugs)
