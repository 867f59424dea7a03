"""Joining a process to its group, and checking that all of them see each other."""

from __future__ import annotations

import functools
import os
import socket
import sys
from pathlib import Path
from typing import Any

import jax
import jax.extend.backend
import jax.numpy as jnp
import numpy as np

from jaxnb.compat import jax_runtime
from jaxnb.errors import StartError
from jaxnb.labels import START_IMPORTS
from jaxnb.launch import process_compiling
from jaxnb.launch.programs_folder import OFF
from jaxnb.lockstep import process_recorder
from jaxnb.lockstep.messages import conductor_beside
from jaxnb.lockstep.process_recorder import Recorder
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
        StartError: The process has used JAX before.
    """
    global _joined
    if jax_runtime.backends_are_initialized():
        raise StartError(
            "JAX was used in this process before it could join a group, and its backend cannot "
            "change afterwards. Start fresh processes."
        )
    os.environ.update(request.environment)
    os.environ["NPROC"] = str(thread_pool_size(request))
    jax.config.update("jax_platforms", _platforms(request.platform))
    if request.platform == "cpu":
        jax.config.update("jax_num_cpu_devices", request.devices_per_process)
    jax.config.update("jax_cpu_collectives_implementation", request.collectives)
    _connect(request)
    if request.collectives == "gloo":
        jax_runtime.bind_gloo_to(request.bind_host)
    jax.devices()  # makes the backends
    if request.programs_folder != OFF:
        locks = os.path.join(request.socket_folder, "compiling")
        process_compiling.install(request.programs_folder, locks, request.process_index)
    jax_runtime.accept_initialize(request.process_index, request.num_processes)
    sys.argv = request.arguments
    _joined = request


def _connect(request: JoinRequest) -> None:
    jax_runtime.connect_coordination_service(
        request.coordinator_address,
        request.process_index,
        request.num_processes,
        timeout_seconds=request.timeout_seconds,
    )


def _platforms(platform: str) -> str:
    # The CPU stays available beside a GPU, as it does in plain JAX.
    return {"cpu": "cpu", "gpu": "cuda,cpu"}.get(platform, platform)


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
    psum = float(total.addressable_data(0))
    return ProcessReport(
        process_index=jax.process_index(),
        num_processes=jax.process_count(),
        local_devices=tuple(device_info(d) for d in jax.local_devices()),
        num_global_devices=jax.device_count(),
        psum=psum,
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

    calls: list[process_recorder.Call] = [
        *[jitted] * (process_recorder.CALLS - 2),
        ahead_of_time,
        ahead_of_time,
    ]
    return process_recorder.run(recorder, calls, plain, ones, is_alone=is_alone)


def device_info(device: jax.Device) -> DeviceInfo:
    """Describes a device as plain data."""
    return DeviceInfo(
        id=device.id,
        process_index=device.process_index,
        platform=device.platform,
        kind=device.device_kind,
    )


def namespace() -> dict[str, object]:
    """Returns the names that every process's namespace starts with."""
    found: dict[str, object] = {}
    exec("\n".join(START_IMPORTS.values()), found)
    here = {"process_index": jax.process_index(), "num_processes": jax.process_count()}
    return {name: found[name] for name in START_IMPORTS} | here
