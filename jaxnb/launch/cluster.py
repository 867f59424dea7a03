"""A group's programs: started, watched and ended together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from typing import Any, TypeVar

import ipyparallel as ipp
from traitlets import Any as AnyTrait
from traitlets.config import Config

from jaxnb.errors import SessionBrokenError, StartError
from jaxnb.launch import lifeline
from jaxnb.launch.deaths import Death
from jaxnb.launch.engine_start import EngineStart
from jaxnb.launch.folder import command_line, make_folder
from jaxnb.launch.forkclient import ForkServerClient, take
from jaxnb.launch.host import stopped_text
from jaxnb.model.cells import JoinRequest

T = TypeVar("T")


class BackgroundLoop:
    """An event loop in a thread of its own, for ipyparallel's coroutines.

    The notebook kernel's own loop is busy running the cell that waits for them.
    """

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="jaxnb-cluster", daemon=True)
        try:
            self._thread.start()
        except BaseException:
            self.close()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            # What still waits for a process that has ended: asyncio complains of tasks that
            # are dropped.
            tasks = asyncio.all_tasks(self._loop)
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        finally:
            self._loop.close()

    def submit(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine; returns the future of what it returns."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop)

    def close(self) -> None:
        """Ends what runs, and the thread."""
        with contextlib.suppress(RuntimeError):  # it is closed already
            self._loop.call_soon_threadsafe(self._loop.stop)
        if self._thread.is_alive():
            self._thread.join(5)


LOOPBACK = "127.0.0.1"


class _IppCluster(ipp.Cluster):  # type: ignore[misc]
    """ipyparallel's cluster with what jaxnb's launchers look for in their parent."""

    fork_server = AnyTrait()
    on_ended = AnyTrait()

    def on_process_ended(
        self, set_id: str, position: int, pid: int, status: int | None, output: str
    ) -> None:
        self.on_ended(set_id, position, pid, status, output[-16384:])


class ProcessGroup:
    """The operating system's side of a group: processes, no JAX.

    Args:
        launcher: ``"fork"`` or ``"local"``.
        on_death: Called from another thread for each unexpected :class:`Death`.
        on_text: Called likewise with a process index and what the C code of that process (XLA,
            NCCL) wrote to its standard output or error.

    Attributes:
        directory: The group's folder, which no other user can enter: sockets, keys and logs.
    """

    def __init__(
        self,
        launcher: str,
        on_death: Callable[[Death], None],
        on_text: Callable[[int, str], None],
    ) -> None:
        self.launcher = launcher
        self._on_death = on_death
        self._on_text = on_text
        self._stopping = threading.Event()
        self._closing = threading.Event()
        self._processes_ended = self._closed = False
        self._fork_server: ForkServerClient | None = None
        self.service_address = ""
        self._services: list[subprocess.Popen[str]] = []
        self._service_lock = threading.Lock()
        self._service_thread: threading.Thread | None = None
        self._starts: list[Future[Any]] = []
        self._stop_lock = asyncio.Lock()
        self._generation = 0
        self._helpers: dict[str, int] = {}
        self.pids: list[int] = []
        self.identities: dict[int, str] = {}
        self._places: dict[int, tuple[str, int]] = {}  # process index to engine set and position
        early = take(self._on_fork_event) if launcher == "fork" else None
        self.directory = make_folder() if early is None else early.directory
        os.mkdir(os.path.join(self.directory, "log"), 0o700)
        try:
            if launcher == "fork":
                self._fork_server = early or ForkServerClient(self.directory, self._on_fork_event)
            self._loop = BackgroundLoop()
            self._cluster = self._make_cluster()
        except BaseException:
            self._close_half_made()
            raise

    def _close_half_made(self) -> None:
        if self._fork_server is not None:
            self._fork_server.close()
        if hasattr(self, "_loop"):
            self._loop.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _make_cluster(self) -> _IppCluster:
        cluster = _IppCluster(
            config=Config(),
            load_profile=False,
            profile_dir=self.directory,
            cluster_file="",
            delay=0,
            shutdown_atexit=False,
            engine_timeout=3600,
            # Forked engines get the connection, key included, in an environment variable;
            # separate programs read it from a file.
            send_engines_connection_env=self._fork_server is not None,
            controller=f"jaxnb_{self.launcher}",
            engines=f"jaxnb_{self.launcher}",
            log=_quiet_log(),
        )
        cluster.fork_server = self._fork_server
        cluster.on_ended = self._on_program_ended
        return cluster

    # ------------------------------------------------------------------ starting

    def start_services(self, num_processes: int) -> tuple[Future[Any], Future[str]]:
        """Starts the ipyparallel controller and JAX's coordination service.

        Returns:
            Futures of the controller's connection information and the service's address.
        """
        controller = self._submit_start(self._start_controller())
        return controller, self.start_service(num_processes)

    def start_service(self, num_processes: int) -> Future[str]:
        """Starts JAX's coordination service, in a process of its own.

        Returns:
            A future of its address.
        """
        address: Future[str] = Future()
        address.add_done_callback(self._note_address)
        if self._fork_server is not None:
            request = self._fork_server.request("service", num_processes=num_processes)
            request.add_done_callback(lambda f: _chain(f, address, self._note_service))
        else:
            self._service_thread = threading.Thread(
                target=self._start_service_program,
                args=(num_processes, address),
                name="jaxnb-service-start",
                daemon=True,
            )
            self._service_thread.start()
        return address

    def _note_address(self, address: Future[str]) -> None:
        if not address.cancelled() and address.exception() is None:
            self.service_address = address.result()

    def _submit_start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Runs a coroutine that :meth:`close` cancels."""
        future = self._loop.submit(coroutine)
        self._starts = [start for start in self._starts if not start.done()] + [future]
        return future

    async def _start_controller(self) -> Any:
        await self._cluster.start_controller()
        connection = await self._cluster.controller.get_connection_info()
        if self._fork_server is not None:
            self._helpers["controller"] = self._cluster.controller.forked_pid
        return connection

    def _start_service_program(self, num_processes: int, address: Future[str]) -> None:
        try:
            address.set_result(self._run_service_program(num_processes))
        except BaseException as error:
            address.set_exception(error)

    def _run_service_program(self, num_processes: int) -> str:
        """Returns the service's address."""
        arguments = [self.directory, str(num_processes), str(os.getpid())]
        with tempfile.TemporaryFile("w+") as errors:
            with self._service_lock:  # close() kills this service, or none starts
                if self._closing.is_set():
                    raise StartError("The group is being closed.")
                service = subprocess.Popen(
                    command_line("jaxnb.launch.coordination_app", *arguments),
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    start_new_session=True,
                )
                self._services.append(service)
            assert service.stdout is not None
            with service.stdout as stream:
                line = stream.readline().strip()
            if not line:
                status = service.wait(10)
                errors.seek(0)
                raise StartError(f"It ended with exit status {status}.\n{errors.read()[-4096:]}")
            return line

    def start_processes(self, num_processes: int, joins: list[JoinRequest]) -> None:
        """Starts the processes of the group; :attr:`identities` names them from then on.

        Forked ones join at once, by ``joins``; others are told to join once they answer.
        """
        self.identities, self._places = {}, {}
        self.pids = [-1] * num_processes
        self._stopping.clear()
        self._start_set(joins)

    def _start_set(self, joins: list[JoinRequest]) -> None:
        """Starts processes as one engine set of ipyparallel's."""
        self._generation += 1
        set_id = str(self._generation)
        starts = []
        for position, join in enumerate(joins):
            index = join.process_index
            self._places[index] = set_id, position
            identity = f"{self._cluster.cluster_id}-{set_id}-{position}"
            self.identities[index] = identity
            environment = {**os.environ, **join.environment}
            starts.append(EngineStart(environment, "", identity, join, os.getcwd()))
        pids = self._submit_start(self._start_engines(set_id, starts)).result(60)
        for join, pid in zip(joins, pids, strict=True):
            self.pids[join.process_index] = pid

    def _note_service(self, answer: dict[str, Any]) -> str:
        self._helpers["service"] = answer["pid"]
        return str(answer["address"])

    async def _start_engines(self, set_id: str, starts: list[EngineStart]) -> list[int]:
        n = len(starts)
        if self._fork_server is not None:
            await self._cluster.start_engines(n, set_id, starts=starts)
            return list(self._cluster.engines[set_id].pids)
        await self._cluster.start_engines(n, set_id, delay=0)
        launchers = self._cluster.engines[set_id].launchers
        return [launchers[str(i)].pid for i in range(n)]

    # ------------------------------------------------------------------ signals and ends

    def interrupt(self, process_indices: list[int]) -> None:
        """Interrupts processes with the programs that they have started, as a terminal does."""
        pids = [self.pids[i] for i in process_indices]
        if self._fork_server is not None:
            self._fork_server.request("signal", pids=pids, interrupts=True).result(10)
        elif self.launcher == "local":
            for pid in pids:
                lifeline.interrupt(pid)
        else:
            self.signal(process_indices, signal.SIGINT)

    def signal(self, process_indices: list[int], sig: int) -> None:
        """Sends a signal to processes; those that have ended are left out."""
        pids = [self.pids[i] for i in process_indices]
        if self._fork_server is not None:
            self._fork_server.request("signal", pids=pids, signal=int(sig)).result(10)
            return
        for index in process_indices:
            set_id, position = self._places[index]
            launchers = self._cluster.engines[set_id].launchers
            if str(position) in launchers:
                launchers[str(position)].signal(sig)

    def stopped_text(self, process_indices: Iterable[int]) -> str:
        """Returns which of the processes are stopped, by SIGSTOP say; empty if none is."""
        known = dict(enumerate(self.pids))
        return stopped_text({i: known[i] for i in process_indices if i in known})

    def stop_processes(self) -> None:
        """Ends the processes and the coordination service; the controller stays."""
        self._stopping.set()
        self._loop.submit(self._stop_engines()).result(60)
        # Not before: XLA aborts every process that loses the service, and their exit handlers
        # would not run.
        self._end_services()
        self.pids = []

    async def _stop_engines(self) -> None:
        async with self._stop_lock:  # an interrupted close() may still be in here
            if self._cluster.engines:
                await self._cluster.stop_engines()

    async def _stop_controller(self) -> None:
        async with self._stop_lock:
            await self._cluster.stop_controller()

    def _end_services(self) -> None:
        if self._fork_server is not None:
            stop = {"roles": ["service"], "grace_seconds": 0}
            self._fork_server.request("stop", **stop).result(10)
        with self._service_lock:
            ended = self._services[:]
        for service in ended:
            service.kill()
            service.wait(10)
        # Not before: an interrupted end can be repeated.
        self._services = [s for s in self._services if s not in ended]

    def close(self) -> None:
        """Ends everything that this object has started, and removes its folder.

        Guarantees that no process of the group is alive when it returns. If it is interrupted,
        another call does what is left; after that calls do nothing.
        """
        if self._closed:
            return
        self._stopping.set()
        self._closing.set()
        problem: Exception | None = None
        if not self._processes_ended:  # after which the loop may be gone
            try:
                self._end_processes()
            except Exception as error:
                problem = error
            self._processes_ended = True
        self._loop.close()
        shutil.rmtree(self.directory, ignore_errors=True)
        self._closed = True
        if problem is not None:
            raise problem

    def _end_processes(self) -> None:
        if self._fork_server is not None:
            self._close_fork_server()
            return
        for start in self._starts:
            start.cancel()
        problem: Exception | None = None
        try:
            self.stop_processes()
        except Exception as error:  # all that can be ended is
            problem = error
        self._end_services()
        self._loop.submit(self._stop_controller()).result(60)
        if self._service_thread is not None:
            self._service_thread.join(10)
        if problem is not None:
            raise problem

    def _close_fork_server(self) -> None:
        server = self._fork_server
        assert server is not None
        engines = server.request("stop", roles=["engine"], grace_seconds=1.0)
        try:
            engines.result(10)
        except (SessionBrokenError, StartError, TimeoutError) as error:
            logging.getLogger("jaxnb").debug("processes could not be told to end: %s", error)
        server.close()

    def helper_pids(self) -> dict[str, int]:
        """Returns the processes that serve the group: what they are to their process ids."""
        found = dict(self._helpers)
        if self._fork_server is not None:
            found["fork server"] = self._fork_server.pid
        elif self._services:
            found["service"] = self._services[-1].pid
            found["controller"] = self._cluster.controller.pid
        return found

    # ------------------------------------------------------------------ deaths

    def _on_fork_event(self, event: dict[str, Any]) -> None:
        if event["event"] == "died":
            self._report_death(
                Death(event["role"], event["index"], event["pid"], event["status"], event["tail"])
            )
        elif event["event"] == "text":
            if event["pid"] in self.pids:
                self._on_text(event["index"], event["text"])
        elif event["event"] == "ended":
            server = self._fork_server
            pid = server.pid if server is not None else -1
            tail = server.last_lines() if server is not None else ""
            self._report_death(Death("fork server", -1, pid, event["status"], tail))

    def _on_program_ended(
        self, set_id: str, position: int, pid: int, status: int | None, output: str
    ) -> None:
        for index, place in self._places.items():
            if place == (set_id, position):
                self._report_death(Death("engine", index, pid, status, output))

    def _report_death(self, death: Death) -> None:
        if not self._stopping.is_set():
            self._on_death(death)


def _chain(source: Future[Any], target: Future[T], convert: Callable[[Any], T]) -> None:
    error = source.exception()
    if error is not None:
        target.set_exception(error)
    else:
        target.set_result(convert(source.result()))


def _quiet_log() -> logging.Logger:
    """Returns a logger for ipyparallel's cluster: what matters reaches the user as errors."""
    log = logging.getLogger("jaxnb.launch.cluster")
    log.setLevel(logging.CRITICAL)
    return log
