"""The magics: each parses its line, calls one method of the session, and displays."""

from __future__ import annotations

from typing import Any


def load(shell: Any) -> None:
    """Registers the magics with an IPython shell; loading twice does nothing more."""
    from jaxnb.magics import auto, helping, state, values
    from jaxnb.magics.auto import AutoMagics
    from jaxnb.magics.compiling import CompilingMagics
    from jaxnb.magics.looking import LookingMagics
    from jaxnb.magics.spmd import SpmdMagics
    from jaxnb.magics.values import ValueMagics

    if isinstance(shell.magics_manager.registry.get("SpmdMagics"), SpmdMagics):
        return
    magics = SpmdMagics(shell)

    def current() -> Any:
        return magics.session

    def last() -> Any:
        return magics.session or magics.stopped

    autos, states = AutoMagics(shell, current), state.StateMagics(shell, current)
    shell.register_magics(
        magics,
        autos,
        states,
        ValueMagics(shell, current, magics.meter),
        CompilingMagics(shell, current),
        LookingMagics(shell, current, last),
    )
    values.register(shell, current)
    helping.install(shell, current, autos.auto.takes)
    auto.install(shell, current)
    state.install(shell, states)
