"""Imports all that an engine will use, so that forked engines share it."""

from __future__ import annotations

import importlib

from jaxnb.launch.folder import ENDPOINT

# What ipykernel, IPython and ipyparallel import only once a kernel is made, and what jaxnb itself
# does once it is asked for: a file beside the notebook may have the name of a standard module.
_LATE_IMPORTS = (
    "IPython.core.completerlib",
    "IPython.core.guarded_eval",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "encodings.idna",
    "mmap",
    "statistics",
    "tornado.platform.asyncio",
    "xmlrpc.client",
)


def preload() -> None:
    """Imports the engine, jax, and what those import late; starts no backend and no thread."""
    from jaxnb.compat import ipykernel

    ipykernel.import_without_debugpy()
    for name in (*_LATE_IMPORTS, ENDPOINT):
        importlib.import_module(name)
    from jaxnb.compat import jax_runtime

    jax_runtime.preload()
