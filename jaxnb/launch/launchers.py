"""jaxnb's launchers, as ipyparallel knows launchers (entry points in ``pyproject.toml``)."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from dataclasses import replace
from typing import Any

import psutil
from ipyparallel.cluster import launcher
from traitlets import Any as AnyTrait
from traitlets import Float, Integer, List

from jaxnb.compat.ipyparallel import WatchedEngineSet
from jaxnb.launch.engine_start import command
from jaxnb.launch.folder import IDENTITY, command_line
from jaxnb.launch.forkclient import ForkServerClient

STOP_GRACE_SECONDS = 2.0


class _ForkLauncher(launcher.BaseLauncher):  # type: ignore[misc]
    """What the two fork launchers share: the fork server, which the cluster owns."""

    roles: tuple[str, ...] = ()
    grace_seconds = Float(STOP_GRACE_SECONDS, config=True)

    @property
    def fork_server(self) -> ForkServerClient:
        server = self.parent.fork_server
        assert isinstance(server, ForkServerClient)
        return server

    def find_args(self) -> list[str]:
        return ["jaxnb-fork", *self.roles]

    async def stop(self) -> None:
        """Ends the children with SIGTERM, and after a while with SIGKILL."""
        if self.state != "running":
            return
        await asyncio.wrap_future(
            self.fork_server.request(
                "stop", roles=list(self.roles), grace_seconds=self.grace_seconds
            )
        )
        self.notify_stop({"exit_code": 0, "identifier": self.identifier})

    def poll(self) -> int | None:
        return None if self.state == "running" else 0


class ForkControllerLauncher(_ForkLauncher, launcher.ControllerLauncher):  # type: ignore[misc]
    """Forks the ipyparallel controller from the fork server."""

    roles = ("controller",)
    connection_info = AnyTrait()
    forked_pid = Integer(-1)

    async def start(self) -> None:
        """Asks for the fork; :meth:`get_connection_info` waits for the controller."""
        self._answer = self.fork_server.request("controller", cluster_id=self.cluster_id)
        self.notify_start(None)

    async def get_connection_info(self, timeout: float | None = None) -> dict[str, Any]:
        """Returns the connection information, as soon as the controller listens."""
        if self.connection_info is None:
            seconds = self.connection_info_timeout if timeout is None else timeout
            answer = await asyncio.wait_for(asyncio.wrap_future(self._answer), seconds)
            self.connection_info = answer["connection"]
            self.forked_pid = answer["pid"]
        return dict(self.connection_info)


class ForkEngineSetLauncher(_ForkLauncher, launcher.EngineLauncher):  # type: ignore[misc]
    """Forks a set of engines from the fork server.

    Attributes:
        starts: One :class:`~jaxnb.launch.engine_start.EngineStart` per engine.
        pids: Process ids, by index in the set.
    """

    roles = ("engine",)
    starts: Any = List()
    pids: Any = List()

    async def start(self, n: int) -> None:
        """Forks ``n`` engines; returns when they exist."""
        self.n = n
        info = self.environment["IPP_CONNECTION_INFO"]
        starts = [replace(start, connection_info=info) for start in self.starts]
        answer = await asyncio.wrap_future(
            self.fork_server.request("engines", n=n, starts=command(starts))
        )
        self.pids = answer["pids"]
        self.notify_start(self.pids)

    def signal(self, sig: int) -> None:
        """Sends a signal to all engines of the set."""
        self.fork_server.request("signal", pids=list(self.pids), signal=int(sig))


def _make_log(path: str) -> None:
    """Makes a log file that only this user can read, whatever the umask."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_CREAT, 0o600))


class LocalControllerLauncher(launcher.LocalControllerLauncher):  # type: ignore[misc]
    """ipyparallel's local controller, in one process that ends with this one."""

    def start(self) -> Any:
        """Starts it."""
        _make_log(self.output_file)
        return super().start()

    def find_args(self) -> list[str]:
        """Returns the command line."""
        module = "jaxnb.launch.controller_app"
        return command_line(module, self.profile_dir, str(os.getpid()))


class LocalEngineLauncher(launcher.LocalEngineLauncher):  # type: ignore[misc]
    """ipyparallel's local engine, in a process that ends with this one."""

    def find_args(self) -> list[str]:
        """Returns the command line."""
        module = "jaxnb.launch.engine_app"
        return command_line(module, self.profile_dir, str(os.getpid()))

    def get_env(self) -> dict[str, str]:
        """Returns what is added to the environment."""
        identity = f"{self.cluster_id}-{self.parent.engine_set_id}-{self.identifier}"
        return {**super().get_env(), IDENTITY: identity}

    def start(self) -> Any:
        """Starts it."""
        _make_log(self.output_file)
        return super().start()


class LocalEngineSetLauncher(WatchedEngineSet):
    """A set of local engines."""

    launcher_class = LocalEngineLauncher

    async def stop(self) -> None:
        """Ends all engines with SIGTERM, and those that are late with SIGKILL.

        ipyparallel gives each in turn its own time. One that waits in a collective takes all
        of it, so a large group would outlast whoever waits for this.
        """
        deadline = time.monotonic() + STOP_GRACE_SECONDS
        engines = list(self.launchers.values())
        self._signal_all(engines, signal.SIGTERM)
        for engine in engines:
            with contextlib.suppress(TimeoutError):
                await engine.join(timeout=max(0.0, deadline - time.monotonic()))
        self._signal_all(engines, signal.SIGKILL)
        await super().stop()

    @staticmethod
    def _signal_all(engines: list[Any], sig: int) -> None:
        for engine in engines:
            with contextlib.suppress(psutil.NoSuchProcess):
                engine.signal(sig)

    def engine_ended(self, data: dict[str, Any], output: str) -> None:
        """Tells the cluster, if it wants to know."""
        if hasattr(self.parent, "on_process_ended"):
            self.parent.on_process_ended(
                self.engine_set_id,
                int(data["identifier"]),
                data["pid"],
                data.get("exit_code"),
                output,
            )
