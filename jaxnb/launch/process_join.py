"""Joining a process to its group: the engine, JAX's coordination service, and the check of all."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np
from ipyparallel.engine.app import IPEngine
from traitlets.config import Config

from jaxnb.compat import jax_runtime
from jaxnb.compat.ipykernel import PythonOutStream
from jaxnb.errors import StartError
from jaxnb.labels import START_IMPORTS
from jaxnb.launch import process_compiling
from jaxnb.launch.folder import ENDPOINT, OFF, service_name
from jaxnb.lockstep import process_recorder
from jaxnb.lockstep.conductor_loop import Loop
from jaxnb.lockstep.connections import Door
from jaxnb.lockstep.messages import conductor_beside
from jaxnb.lockstep.presses import Asker
from jaxnb.lockstep.process_recorder import Recorder
from jaxnb.lockstep.wire import Packets
from jaxnb.model.cells import JoinRequest
from jaxnb.model.dispatches import Dispatch
from jaxnb.model.group import DeviceInfo, ProcessReport

_joined: JoinRequest | None = None


def joined() -> JoinRequest | None:
    """Who this process is in its group; None before :func:`join`."""
    return _joined


def conductor() -> Path:
    """Returns where the conductor of this process's group listens."""
    assert _joined is not None
    return conductor_beside(_joined.coordinator_address)


def join(request: JoinRequest) -> None:
    """Joins this process to the group that ``request`` describes and builds its backend.

    Blocks until every process of the group has joined, since building the backend exchanges
    the devices.

    Raises:
        StartError: The process has used JAX before, or is not who MPI says that it is.
    """
    global _joined
    if jax_runtime.backends_are_initialized():
        raise StartError(
            "JAX was used in this process before it could join a group, and its backend cannot "
            "change afterwards. Start fresh processes."
        )
    os.environ.update(request.environment)
    os.environ["NPROC"] = str(thread_pool_size(request))
    # The CPU stays available beside a GPU, as it does in plain JAX.
    jax.config.update("jax_platforms", "cpu" if request.platform == "cpu" else "cuda,cpu")
    if request.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", request.devices_per_process)
    jax.config.update("jax_cpu_collectives_implementation", request.collectives)
    jax_runtime.connect_coordination_service(
        request.coordinator_address,
        request.process_index,
        request.num_processes,
        timeout_seconds=request.timeout_seconds,
    )
    if request.in_mpi:
        _join_mpi(request)
    if request.collectives == "gloo":
        jax_runtime.bind_gloo_to(request.bind_host)
    jax.devices()  # makes the backends
    if request.programs_folder != OFF:
        locks = os.path.join(request.socket_folder, "compiling")
        process_compiling.install(request.programs_folder, locks, request.process_index)
    jax_runtime.accept_initialize(request.process_index, request.num_processes)
    sys.argv = request.arguments
    _joined = request


def _join_mpi(request: JoinRequest) -> None:
    """Begins MPI, which waits for all processes, so that no cell on some of them has to.

    Without mpi4py nothing of MPI can be used in a cell, and nothing is begun.

    Raises:
        StartError: MPI has other numbers for this process.
    """
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        return
    except (ImportError, RuntimeError) as error:
        raise StartError(
            f"mpi4py finds no MPI: {error}. Install it for the mpiexec on PATH."
        ) from None
    found, expected = (
        (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size),
        (request.process_index, request.num_processes),
    )
    if found != expected:
        raise StartError(
            f"To MPI this is rank {found[0]} of {found[1]}, and it was started as process "
            f"{expected[0]} of {expected[1]}. The mpi4py here and the mpiexec on PATH are of "
            "different MPIs, or mpiexec's variables do not arrive. Install mpi4py for that MPI."
        )


def thread_pool_size(request: JoinRequest) -> int:
    """Returns how many threads XLA's CPU pool needs.

    XLA sizes the pool by ``NPROC``, else by the cores. Each device of a process holds a
    thread while it waits in a collective, so with as many devices as threads a collective
    that nobody can join blocks the pool for good: two devices on two cores abort after 40 s.
    """
    asked = os.environ.get("NPROC", "")
    at_least = max(4, 2 * request.devices_per_process)
    return max(at_least, int(asked)) if asked.isdigit() else at_least


def check(recorder: Recorder) -> ProcessReport:
    """Asks JAX in this process what it sees, and sums a one from every device of the group.

    Every process of the group must be asked at the same time: the sum waits for all. The recorder
    is tried on it. What the user has set of JAX does not matter to it.
    """
    with jax.disable_jit(False), jax.transfer_guard("allow"):
        return _check(recorder)


def _check(recorder: Recorder) -> ProcessReport:
    mesh = jax.make_mesh((jax.device_count(),), ("all",), axis_types=(jax.sharding.AxisType.Auto,))
    sharding = jax.sharding.NamedSharding(mesh, jax.P("all"))
    ones = jax.make_array_from_callback(
        (jax.device_count(),), sharding, lambda index: np.ones(1, np.float32)
    )
    with jax.set_mesh(None):  # the user's may have other devices
        total, recorded = _sum_of_all(mesh, ones, recorder)
    return ProcessReport(
        process_index=jax.process_index(),
        num_processes=jax.process_count(),
        local_devices=tuple(device_info(d) for d in jax.local_devices()),
        num_global_devices=jax.device_count(),
        psum=float(total.addressable_data(0)),
        pid=os.getpid(),
        host=socket.gethostname(),
        jax_version=jax.__version__,
        unrecorded=recorder.missing,
        reduced=(*recorder.reduced, *process_compiling.reduced()),
        trial=recorded,
    )


def _sum_of_all(
    mesh: jax.sharding.Mesh, ones: jax.Array, recorder: Recorder
) -> tuple[jax.Array, tuple[Dispatch, ...]]:
    """Adds the ones of all devices, a few times; returns the sum and what was recorded of that."""
    is_alone = jax.process_count() == 1
    everywhere = jax.sharding.NamedSharding(mesh, jax.P())
    jitted = jax.jit(jnp.sum, out_shardings=everywhere)

    @functools.cache
    def compiled() -> jax.stages.Compiled:
        found: jax.stages.Compiled = jitted.lower(ones).compile()  # which the first call has made
        return found

    def plain() -> Any:
        return jax.jit(jnp.sum, out_shardings=everywhere)

    def ahead_of_time(argument: jax.Array) -> Any:
        return compiled()(argument)

    calls: list[process_recorder.Call] = [jitted] * (process_recorder.CALLS - 2)
    calls += [ahead_of_time] * 2
    return process_recorder.run(recorder, calls, plain, ones, is_alone=is_alone)


def device_info(device: jax.Device) -> DeviceInfo:
    """Describes a device as plain data."""
    return DeviceInfo(device.id, device.process_index, device.platform, device.device_kind)


def namespace() -> dict[str, object]:
    """Returns the names that every process's namespace starts with."""
    found: dict[str, object] = {}
    exec("\n".join(START_IMPORTS.values()), found)
    here = {"process_index": jax.process_index(), "num_processes": jax.process_count()}
    return {name: found[name] for name in START_IMPORTS} | here


# In process 0, where ``jax.distributed.initialize`` puts it, it would die with process 0.


def serve(cluster_dir: str, num_processes: int, ready_fd: int) -> None:
    """Runs the service and the conductor beside it until this process is ended.

    It listens on a Unix socket. It asks nobody who they are, and whoever reaches it can read and
    set the keys by which processes find each other, or end them: over TCP every user of the host
    could. Nor can another program have taken the port.

    Args:
        cluster_dir: Where the socket is; only this user may be able to enter it.
        num_processes: How many processes will connect.
        ready_fd: One end of a pair of sockets: the service's address is written to it, as a line,
            and after that which processes are to be interrupted.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    path = os.path.join(cluster_dir, service_name(os.getpid()))
    address = f"unix:{quote(os.fsencode(path))}"
    service = jax_runtime.start_coordination_service(address, num_processes)
    door = Door(conductor_beside(address), Packets(num_processes).max_bytes)
    os.write(ready_fd, f"{address}\n".encode())
    Loop(door, num_processes, Asker(socket.socket(fileno=ready_fd))).run()
    del service  # it serves as long as it is held


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
        _finalize_mpi()
    # Whoever has sent it, and was not jaxnb: that must not look like a program's good end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)


def _finalize_mpi() -> None:
    """Ends MPI, if a cell has begun it: else its shared memory is left, and mpiexec complains.

    Waits for all processes, of which one that is dead does not come: SIGKILL follows then.
    """
    mpi = sys.modules.get("mpi4py.MPI")  # it does this itself as the interpreter is torn down
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        mpi.Finalize()


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
