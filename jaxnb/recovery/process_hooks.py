"""Calls what :func:`jaxnb.on_recover` was given, on this process."""

from __future__ import annotations

import contextlib
import io

from jaxnb.recovery import hooks
from jaxnb.recovery.messages import CalledHooks
from jaxnb.wire.process_sentinel import ThisProcess


def call(process: ThisProcess) -> CalledHooks:
    """Calls the functions, in the order in which they were given.

    One that raises does not keep the others from being called. What they print comes back: no cell
    runs that would show it.
    """
    raised, printed = [], io.StringIO()
    for function in hooks.functions():
        try:
            with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
                function()
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            name = getattr(function, "__qualname__", repr(function))
            raised.append(f"`{name}` raised {type(error).__name__}: {error}")
    return CalledHooks(tuple(raised), printed.getvalue())
