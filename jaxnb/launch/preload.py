"""Imports all that an engine will use, so that forked engines share it."""

from __future__ import annotations

import importlib
import sys

from jaxnb.launch.programs import ENDPOINT

# What ipykernel, IPython and ipyparallel import only once a kernel is made.
_LATE_IMPORTS = (
    "IPython.core.completerlib",
    "IPython.core.guarded_eval",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "encodings.idna",
    "tornado.platform.asyncio",
    "xmlrpc.client",
)


def preload() -> None:
    """Imports the engine, jax, and what those import late; starts no backend and no thread."""
    _without_debugpy("ipykernel.debugger")
    for name in (*_LATE_IMPORTS, ENDPOINT):
        importlib.import_module(name)
    from jaxnb.compat import jax_internals

    jax_internals.preload()


def _without_debugpy(module: str) -> None:
    """Imports ``module`` as if debugpy were not installed.

    ipykernel imports it for the debugger of a front end, which an engine does not have; that
    takes 0.1 s and 6 MB of each process. A cell can still import it.
    """
    if "debugpy" in sys.modules:
        importlib.import_module(module)
        return
    sys.modules["debugpy"] = None  # type: ignore[assignment]
    try:
        importlib.import_module(module)
    finally:
        del sys.modules["debugpy"]
