"""The ipyparallel controller as jaxnb runs it: one process, no message database, quick to beat."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
from typing import Any

import zmq
from ipyparallel.controller.app import IPController
from traitlets.config import Config

from jaxnb.compat import ipyparallel
from jaxnb.launch import lifeline

AWAKE_SECONDS = 2.0
"""For so long hearts are asked to beat after somebody has registered: three times at least."""


def start_heart_monitor(process: Any) -> int:
    """Starts the process that hears the engines' hearts.

    It asks them to beat after SIGUSR1 only, for :data:`AWAKE_SECONDS`: that a heart beats tells
    that its engine can be registered, and nothing after that. To ask eight of them all the time
    takes 1 % of a processor.

    Args:
        process: ipyparallel's, which has not been started. It is forked.

    Returns:
        A file for :func:`wait_until_it_listens`.
    """
    read_fd, write_fd = os.pipe()
    run = process.run

    def tell_and_run() -> None:
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # it is awake at first

        # In the child, which has nothing else to do.
        ipyparallel.tell_of_heart_monitor(lambda: os.write(write_fd, b"\n"), _beat_when_woken)
        run()

    process.run = tell_and_run
    process.start()
    os.close(write_fd)
    return read_fd


def _beat_when_woken(monitor: Any) -> None:
    """Has a heart monitor, which has just started in this process, beat after SIGUSR1 only."""
    loop, beats = asyncio.get_running_loop(), ipyparallel.beats_of(monitor)
    sleeps: asyncio.TimerHandle | None = None

    def wake() -> None:
        nonlocal sleeps
        if sleeps is not None:
            sleeps.cancel()
        sleeps = loop.call_later(AWAKE_SECONDS, beats.stop)
        if not beats.is_running():
            beats.start()

    loop.add_signal_handler(signal.SIGUSR1, wake)
    wake()  # a signal before now was lost


def wait_until_it_listens(fd: int) -> None:
    """Waits until the heart monitor has its sockets.

    Raises:
        SystemExit: It has ended; why is the last that it wrote.
    """
    with os.fdopen(fd, "rb") as told:
        if not told.read(1):
            raise SystemExit("The heart monitor could not start.")


HEARTBEAT_MS = 25
"""The hub counts an engine as registered at the second beat after it came, so the period is
what a start waits for (ipyparallel's default of 3 s costs a start 5 s). Beats are asked for while
somebody registers only."""

WAKE_SECONDS = 1.0
"""So often the heart monitor is woken for as long as an engine is being registered."""

MISSED_BEATS = 10**9
"""Beats an engine may miss: any number. A dead process is noticed by its launcher at once; one that
is stopped goes on where it was."""


def controller_config(cluster_dir: str, cluster_id: str) -> Config:
    """Returns the controller's configuration: it listens within the group's folder only.

    Its messages are signed, not encrypted, and whoever subscribes to output gets all of it: over
    TCP every user of the host could. For processes on several hosts it will have to listen on TCP
    with ``enable_curve``.

    Schedulers run as threads: as processes, ipyparallel's default, they take seven
    interpreters. ``NoDB``: the default keeps every message of every cell for good.
    """
    config = Config()
    config.ProfileDir.location = cluster_dir
    config.IPController.cluster_id = cluster_id
    config.IPController.transport = "ipc"
    config.IPController.ip = os.path.join(cluster_dir, "ipp")
    config.IPController.use_threads = True
    config.IPController.db_class = "NoDB"
    config.IPController.log_level = "ERROR"
    config.HeartMonitor.period = HEARTBEAT_MS
    config.HeartMonitor.max_heartmonitor_misses = MISSED_BEATS
    return config


class Controller(IPController):  # type: ignore[misc]
    """ipyparallel's controller that says when it is ready, and ends when it cannot serve."""

    ready_fd = -1

    def next_port(self, pool_name: str = "common") -> int:
        """Returns a number that no other socket of the folder has in its name."""
        self._sockets = getattr(self, "_sockets", 0) + 1
        return self._sockets

    def construct_url(self, kind: str, channel: str, index: Any = None) -> str:
        """Returns where a channel listens.

        ipyparallel's own puts another character before the number than its engines and clients
        do, which so do not find a Unix socket.
        """
        info = getattr(self, f"{kind}_info")
        number = info[channel] if index is None else info[channel][index]
        return f"{info['interface']}:{number}"

    def init_hub(self) -> None:
        """Has the hub keep track of engines only, and hearts beat while one is registered."""
        # A second lock: the first is the mode of the folder, which a user may change.
        self.context.setsockopt(zmq.IPC_FILTER_UID, os.geteuid())
        super().init_hub()
        self.hub.engine_state_file = ""  # nobody reads it; written whole at each registration
        self._is_waking = False
        ipyparallel.leave_out_traffic(self.hub)
        ipyparallel.call_at_registrations(self.hub, self._begin_to_wake_hearts)

    def _begin_to_wake_hearts(self) -> None:
        if not self._is_waking:
            self._wake_hearts()

    def _wake_hearts(self) -> None:
        """Asks hearts to beat, until all engines are registered."""
        os.kill(self.heartmonitor_process.pid, signal.SIGUSR1)
        self._is_waking = ipyparallel.is_registering(self.hub)
        if self._is_waking:
            self.loop.call_later(WAKE_SECONDS, self._wake_hearts)

    def save_connection_dict(self, fname: str, cdict: dict[str, Any]) -> None:
        """Writes no file: it would hold the key, and nobody reads it."""

    def init_schedulers(self) -> None:
        """Starts the process that hears the engines' hearts before any thread.

        ipyparallel starts it after its schedulers, which are threads here. A process that is
        forked while another thread holds a lock never gets that lock: without a heart that is
        heard no engine ever counts as registered.
        """
        ipyparallel.relay_with(self)
        super().init_schedulers()
        self._heart_fd = start_heart_monitor(self.heartmonitor_process)
        self.heartmonitor_process.start = lambda: None

    def init_signal(self) -> None:
        """Tells the launcher; ipyparallel calls this once the schedulers have started."""
        for child in self.children:
            child.bound.wait()  # or this process ends
        wait_until_it_listens(self._heart_fd)
        super().init_signal()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        heart, loop = self.heartmonitor_process.sentinel, self.loop
        loop.add_handler(heart, self._on_heart_end, loop.READ)
        info = {"client": {**self.connection(), **self.client_info}}
        info["engine"] = {**self.connection(), **self.engine_info}
        with os.fdopen(self.ready_fd, "w") as stream:
            stream.write(json.dumps(info) + "\n")

    def _on_heart_end(self, *_: Any) -> None:
        sys.exit("The heart monitor has ended: no more processes can register.")

    def connection(self) -> dict[str, Any]:
        """Returns what engines and clients need beside the ports."""
        return {
            "ssh": "",
            "key": self.session.key.decode("ascii"),
            "curve_serverkey": None,
            "location": self.location,
            "pack": self.session.packer,
            "unpack": self.session.unpacker,
            "signature_scheme": self.session.signature_scheme,
        }


def run(cluster_dir: str, cluster_id: str, ready_fd: int) -> None:
    """Runs a controller in this process until it is told to stop.

    Args:
        cluster_dir: See :func:`controller_config`.
        cluster_id: Likewise.
        ready_fd: A pipe to write the connection information to, as one line of JSON.
    """
    os.umask(0o077)
    # Its heart monitor is a child process. Forked (Python 3.14's default is not) it inherits
    # the hook below, so that it cannot outlive a killed controller.
    multiprocessing.set_start_method("fork", force=True)
    parent = os.getpid()
    os.register_at_fork(after_in_child=lambda: lifeline.die_with_parent(parent))
    Controller.ready_fd = ready_fd
    Controller.launch_instance(argv=[], config=controller_config(cluster_dir, cluster_id))
