"""A JAX that does not say what a program is, on process 1; patched in real processes."""

from __future__ import annotations

from typing import Any

CUSTOMIZE = """
import sys
if "forkserver" in " ".join(sys.orig_argv):
    sys.path.insert(0, {tests!r})
    import moved_names
    moved_names.change()
"""
"""A ``sitecustomize`` that changes JAX before jaxnb's processes import it."""


def change() -> None:
    """Changes JAX for good in this process."""
    import jax
    from jax._src.lib import hlo

    def text(*arguments: Any, _text: Any = hlo.HloModule.to_string) -> str:
        return "moved" if jax.process_index() == 1 else _text(*arguments)

    hlo.HloModule.to_string = text
