"""The ipyparallel engine as jaxnb runs it."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal

from ipyparallel.engine.app import IPEngine
from traitlets.config import Config

from jaxnb.compat.ipykernel import PythonOutStream
from jaxnb.launch.folder import ENDPOINT

INSTALL_ENDPOINT = f"__import__('{ENDPOINT}', fromlist=['install']).install()"
"""Run in the engine at its start, by ipyparallel's own ``startup_command``."""


class Engine(IPEngine):  # type: ignore[misc]
    """ipyparallel's engine that ends quickly on SIGTERM."""

    def init_signal(self) -> None:
        """Ignores SIGINT between cells (during one, ipykernel makes it KeyboardInterrupt)."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: leave())


def leave() -> None:
    """Ends this process by SIGTERM: exit handlers run, interpreter and XLA are not torn down.

    A full teardown of the interpreter with a JAX client takes 0.2 s of CPU a process, and XLA
    may wait in it for processes that are gone.

    ``os._exit`` alone would run no exit handlers, and no public name runs them: hence the
    private one, which is a part of CPython's own shutdown.
    """
    with contextlib.suppress(BaseException):  # a user's exit handler may raise what it likes
        atexit._run_exitfuncs()
    # Whoever has sent it, and was not jaxnb: that must not look like a program's good end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def run(cluster_dir: str, identity: str, connection_info: str) -> None:
    """Runs an engine in this process until it is told to stop.

    Args:
        cluster_dir: The profile directory of the cluster.
        identity: A name that no engine of the cluster has had before; the controller routes
            by it, so that who starts an engine knows how to reach it.
        connection_info: How to reach the controller, the key included, as ipyparallel's JSON.
    """
    config = Config()
    config.ProfileDir.location = cluster_dir
    config.Session.session = identity
    config.IPEngine.log_level = "ERROR"
    config.Application.log_level = "ERROR"
    config.IPEngine.startup_command = INSTALL_ENDPOINT
    config.IPEngine.timeout = 30.0
    config.HistoryManager.enabled = False
    # Launchers on one host see a death at once and send signals by pid, so a nanny process
    # beside each engine has nothing to do, nor have the engine's own heartbeat checks.
    config.IPEngine.enable_nanny = False
    config.IPEngine.max_heartbeat_misses = 0
    config.IPEngine.out_stream_factory = PythonOutStream
    # IPython would log a failure of the start-up command and go on; here it ends the process,
    # and the launcher shows why.
    importlib.import_module(ENDPOINT)
    # ipyparallel's own way is an environment variable, which a cell's `!` commands inherit.
    Engine.launch_instance(argv=[], config=config, connection_info_env=connection_info)
