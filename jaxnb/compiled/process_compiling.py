"""Compiles a call in this process, for the notebook."""

from __future__ import annotations

from jaxnb.compiled import process_compiled
from jaxnb.model.collectives import Compiled, NotCompiled
from jaxnb.wire.process_this import ThisProcess


def collectives(process: ThisProcess, code: str) -> Compiled | NotCompiled:
    """Lowers and compiles a call, without running it.

    Args:
        process: This process.
        code: The call, as an expression.
    """
    return process_compiled.collectives(code, process.shell.user_ns, process.index)
