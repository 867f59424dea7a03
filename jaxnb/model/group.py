"""The group of processes and its devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from jaxnb.model.dispatches import CheckMode, Dispatch
from jaxnb.model.settings import Settings
from jaxnb.model.whereabouts import SentinelAddress

SessionState = Literal["starting", "ready", "busy", "broken", "closed"]
ProcessState = Literal["ready", "busy", "dead"]


@dataclass(frozen=True)
class DeviceInfo:
    """One device as JAX names it.

    Attributes:
        id: ``Device.id``, unique over the group.
        process_index: The process that owns it.
        platform: ``"cpu"``, ``"gpu"`` …
        kind: ``Device.device_kind``, e.g. ``"NVIDIA H100"``.
    """

    id: int
    process_index: int
    platform: str
    kind: str


@dataclass(frozen=True)
class ProcessReport:
    """What one process sees once it has joined: its answer to the check at the start.

    Attributes:
        process_index: ``jax.process_index()``.
        num_processes: ``jax.process_count()``.
        local_devices: ``jax.local_devices()``.
        num_global_devices: ``jax.device_count()``.
        psum: A ``psum`` of ones over every device; equals ``num_global_devices``.
        pid: Its process id on ``host``.
        host: ``socket.gethostname()``.
        jax_version: ``jax.__version__``.
        join_seconds: Time it took to join and to build the backend.
        check_seconds: Time for the ``psum``, its compilation included.
        sentinel: How to reach it while its main thread cannot answer.
        unrecorded: Why its dispatches are not recorded; empty if they are.
        reduced: What of its checks works less well than it should with this JAX, as sentences.
        trial: What was recorded of the ``psum``.
        settings: Its settings that change programs, and its packages' versions.
    """

    process_index: int
    num_processes: int
    local_devices: tuple[DeviceInfo, ...]
    num_global_devices: int
    psum: float
    pid: int
    host: str
    jax_version: str
    join_seconds: float
    check_seconds: float
    sentinel: SentinelAddress | None = None
    unrecorded: str = ""
    reduced: tuple[str, ...] = ()
    trial: tuple[Dispatch, ...] = ()
    settings: Settings = ()


@dataclass(frozen=True)
class ProcessInfo:
    """One process of the group, now.

    Attributes:
        process_index: Its index in the group.
        pid: Its process id on ``host``.
        host: The host it runs on.
        devices: Its addressable devices.
        engine_id: ipyparallel's number for it; changes with a restart.
        state: ``"ready"``, ``"busy"`` or ``"dead"``.
        detail: Why it is dead, e.g. ``"killed by SIGKILL"``; empty otherwise.
    """

    process_index: int
    pid: int
    host: str
    devices: tuple[DeviceInfo, ...]
    engine_id: int
    state: ProcessState = "ready"
    detail: str = ""


@dataclass(frozen=True)
class GroupInfo:
    """The whole group, for cards and ``%spmd_status``.

    Attributes:
        processes: One entry per process, by process index.
        state: The session's state.
        platform: The platform of the default backend.
        launcher: How the processes were launched.
        collectives: The library of the CPU collectives (``"gloo"``), or ``"nccl"``.
        jax_version: The JAX version that every process runs.
        start_seconds: From the call of start to the checked ``psum``.
        cells_run: How many cells have run.
        last_cell: The number of the last cell that has ended, or None.
        running_cell: The number of the cell that is running, or None.
        check: What is done about what differs among processes, unless a cell says otherwise.
        notes: What cannot be checked in it, what that means, and which versions are newer than
            those that jaxnb is tested with, as sentences; empty for nothing.
    """

    processes: tuple[ProcessInfo, ...]
    state: SessionState
    platform: str
    launcher: str
    collectives: str
    jax_version: str
    start_seconds: float
    cells_run: int = 0
    last_cell: int | None = None
    running_cell: int | None = None
    check: CheckMode = "strict"
    notes: tuple[str, ...] = ()
