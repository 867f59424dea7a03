"""Compiles a call in this process, for the notebook."""

from __future__ import annotations

from jaxnb.engine import compiled
from jaxnb.engine.this_process import ThisProcess
from jaxnb.model.collectives import Compiled, NotCompiled


def collectives(process: ThisProcess, code: str) -> Compiled | NotCompiled:
    """Lowers and compiles a call, without running it.

    Args:
        process: This process.
        code: The call, as an expression.
    """
    return compiled.collectives(code, process.shell.user_ns, process.index)
