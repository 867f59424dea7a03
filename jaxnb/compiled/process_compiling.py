"""Compiles a call in this process, for the notebook."""

from __future__ import annotations

from typing import Any

import jax

from jaxnb.compiled import process_compiled
from jaxnb.compiled.parse_call import plain_text
from jaxnb.model.compiled import Compiled, GroupValues, NotCompiled
from jaxnb.wire.process_sentinel import ThisProcess


def group_values(process: ThisProcess, names: list[str]) -> GroupValues:
    """Returns what this process has of some names, for a plan's definitions to be compared with."""
    namespace = process.shell.user_ns
    texts = {name: plain_text(namespace[name]) for name in names if name in namespace}
    x64: Any = jax.config  # its settings are made when JAX is imported
    return GroupValues(texts, bool(x64.jax_enable_x64))


def collectives(process: ThisProcess, code: str) -> Compiled | NotCompiled:
    """Lowers and compiles a call, without running it.

    Args:
        process: This process.
        code: The call, as an expression.
    """
    return process_compiled.collectives(code, process.shell.user_ns, process.index)
