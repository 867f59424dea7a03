"""The magics: each parses its line, calls one method of the session, and displays."""

from __future__ import annotations

from typing import Any


def load(shell: Any) -> None:
    """Registers the magics with an IPython shell; loading twice does nothing more."""
    from jaxnb.magics import auto, helping, state, values
    from jaxnb.magics.auto import AutoMagics
    from jaxnb.magics.compiling import ComparingMagics, CompilingMagics
    from jaxnb.magics.looking import LookingBackMagics, StatsMagics
    from jaxnb.magics.spmd import SpmdMagics
    from jaxnb.magics.state import SavingMagics
    from jaxnb.magics.values import ValueMagics

    if isinstance(shell.magics_manager.registry.get("SpmdMagics"), SpmdMagics):
        return
    magics = SpmdMagics(shell)

    def current() -> Any:
        return magics.session

    def last() -> Any:
        return magics.session or magics.stopped

    autos, debugs = AutoMagics(shell, current), state.DebuggingMagics(shell, current)
    shell.register_magics(
        magics,
        autos,
        debugs,
        ValueMagics(shell, current, magics.meter),
        CompilingMagics(shell, current),
        ComparingMagics(shell, current),
        LookingBackMagics(shell, current, last),
        StatsMagics(shell, current),
        SavingMagics(shell, current),
    )
    values.register(shell, current)
    helping.install(shell, current, autos.auto.takes)
    auto.install(shell, current)
    state.install(shell, debugs)
