"""What the fork server's children share and become: helpers and engines of the group.

Where forking is not to be had, a child runs this module as a program.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any

from jaxnb.launch import lifeline
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


def run(role: str, arguments: Mapping[str, Any]) -> None:
    """Becomes a child until it is told to stop.

    Args:
        role: ``"controller"``, ``"service"``, ``"door"``, ``"engine"``; ``"forwards"``, also after
            another word.
        arguments: What it needs, as plain data.
    """
    if role == "controller":
        from jaxnb.launch import controller_app

        controller_app.run(**arguments)
    elif role == "service":
        from jaxnb.launch import process_join

        process_join.serve(**arguments)
    elif role.endswith("door"):
        from jaxnb.launch import tunnel

        tunnel.door(**arguments)
    elif role.endswith("forwards"):
        from jaxnb.launch import tunnel

        tunnel.forwards(**arguments)
    else:
        _run_engine(**arguments)


def _run_engine(
    cluster_dir: str,
    environment: dict[str, str],
    connection_info: str,
    identity: str,
    join: dict[str, Any],
    directory: str,
) -> None:
    """Runs an engine that has joined its group.

    It joins before it registers with the controller: the joining of all processes overlaps
    the controller's start, and a failure to join ends the process with its reason as the
    last lines it wrote.

    Args:
        cluster_dir: The cluster's folder.
        environment: All of its environment variables.
        connection_info: How to reach the controller, as ipyparallel's JSON.
        identity: The name that the controller routes by.
        join: Its place in the group: a :class:`~jaxnb.model.cells.JoinRequest`.
        directory: Its working directory.
    """
    # NumPy seeds its global generator as it is imported: forked engines, those of a restart too,
    # would draw the same numbers. ``random`` seeds itself in every forked child, and ``secrets``,
    # ``uuid4`` and ``default_rng()`` ask the system.
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()  # from the system's entropy
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    faulthandler.enable(2)  # before it joins: a plugin that JAX loads then may crash

    from jaxnb.launch import process_join
    from jaxnb.model.cells import JoinRequest

    process_join.join(JoinRequest(**join))
    process_join.run(cluster_dir, identity, connection_info)


def main() -> None:
    """Becomes what standard input says: other users can read a command line.

    That has the cluster's folder, by which `jaxnb clean` finds it, and the fork server's id.
    """
    role, arguments = json.load(sys.stdin)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    lifeline.end_with_parent(int(sys.argv[2]))
    run(role, arguments)


if __name__ == "__main__":
    # IPython replaces the module `__main__` by the user's namespace: run as an import.
    importlib.import_module("jaxnb.launch.children").main()
