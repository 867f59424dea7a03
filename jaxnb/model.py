"""What crosses between processes, and what a session hands to its user.

All are frozen dataclasses of plain data. Nothing here imports jax, IPython or ipyparallel,
so a notebook can hold every one of them without any of those.

Times are in seconds; sizes end in ``_bytes``; indices are half-open ``(start, stop)``.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

SessionState = Literal["starting", "ready", "busy", "broken", "closed"]
ProcessState = Literal["ready", "busy", "dead"]
StreamName = Literal["stdout", "stderr"]

MAX_DIGEST_BYTES = 64 << 20
"""Larger values, and shards, are not compared across processes."""


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
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
        last_cell: The number of the last cell, or None.
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


@dataclass(frozen=True, slots=True)
class MeshInfo:
    """A ``jax.sharding.Mesh`` as data.

    Attributes:
        axis_names: Names of the axes.
        shape: Size of each axis.
        axis_types: ``"Auto"``, ``"Explicit"`` or ``"Manual"`` for each axis.
        device_ids: ``Device.id`` in row-major order of the mesh.
    """

    axis_names: tuple[str, ...]
    shape: tuple[int, ...]
    axis_types: tuple[str, ...]
    device_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard of an array: which device holds which part.

    Attributes:
        device_id: ``Device.id`` of the holder.
        process_index: The process that owns the device.
        index: For each dimension the half-open ``(start, stop)`` it covers.
        replica_id: 0 for exactly one holder of each part.
        digest: A digest of its bytes where the process that owns it computed one (replicas
            that must agree), else empty.
    """

    device_id: int
    process_index: int
    index: tuple[tuple[int, int], ...]
    replica_id: int
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """A ``jax.Array`` as one process describes it, its data left where they are.

    Attributes:
        shape: Global shape.
        dtype: Name of the dtype, e.g. ``"bfloat16"``.
        itemsize_bits: Size of one element in bits.
        sharding: ``str(array.sharding)``.
        spec: The partition spec as text, ``"P('data', None)"``; None without a mesh.
        mesh: The mesh; None for other shardings.
        memory_kind: E.g. ``"device"``; None if the backend names none.
        fully_replicated: Every device holds the whole array.
        fully_addressable: The describing process holds every shard (a process-local array).
        shards: All shards of the array, of every process, in device order. Only the
            describing process's own have digests.
        corner: What this process holds of the array's corners: pairs of a global index and
            the element there as text. The corners are the first and last
            :data:`jaxnb.arrays.EDGE_ITEMS` along each dimension.
        deleted: The buffer was donated or deleted; the other fields still hold.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize_bits: int
    sharding: str
    spec: str | None
    mesh: MeshInfo | None
    memory_kind: str | None
    fully_replicated: bool
    fully_addressable: bool
    shards: tuple[ShardInfo, ...]
    corner: tuple[tuple[tuple[int, ...], str], ...] = ()
    deleted: bool = False


@dataclass(frozen=True, slots=True)
class ValueInfo:
    """The value of a cell's last expression on one process.

    Attributes:
        type_name: Qualified type name.
        digest: Equal on two processes only if the values are equal in every byte; empty if
            the value has no canonical bytes.
        payload: The pickled value when it is small enough to travel, else None. A
            ``jax.Array`` that is fully replicated or process-local travels as a NumPy array,
            any other as its :class:`ArrayInfo`.
        payload_note: Why there is no payload, for people.
        mimebundle: What IPython would display, MIME type to data.
        array: For a ``jax.Array``, its description.
        digest_note: What the digest leaves out, for people: why it is empty, or which part of
            the value is not in it.
    """

    type_name: str
    digest: bytes = field(repr=False)
    payload: bytes | None = field(repr=False)
    payload_note: str
    mimebundle: Mapping[str, Any] = field(repr=False)
    array: ArrayInfo | None = None
    digest_note: str = ""


@dataclass(frozen=True, slots=True)
class ProcessError:
    """An exception that a cell raised on one process.

    Attributes:
        type_name: Name of the exception's class.
        message: ``str(exception)``.
        traceback: The formatted traceback as text, without colours.
        traceback_ansi: The same with ANSI colours.
        line: The last line of the cell in the traceback, counted as the notebook counts
            (the ``%%spmd`` line is line 1); None if the cell is not in it.
    """

    type_name: str
    message: str
    traceback: str = field(repr=False)
    traceback_ansi: str = field(repr=False)
    line: int | None = None

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}" if self.message else self.type_name


@dataclass(frozen=True, slots=True)
class RichOutput:
    """One rich output (a figure, an HTML table) that a cell displayed on one process.

    Attributes:
        data: MIME type to data.
        metadata: MIME type to metadata.
        display_id: The id it can be updated by, or None.
        update: It updates the earlier output of the same ``display_id``.
    """

    data: Mapping[str, Any]
    metadata: Mapping[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    update: bool = False


@dataclass(frozen=True, slots=True)
class CellRequest:
    """One cell, on its way to a process.

    Attributes:
        cell: The cell's number, as the notebook shows it.
        code: Its source.
        first_line: The notebook's line number of the first line of ``code``: 2 under a
            ``%%spmd`` line, 1 otherwise.
        max_payload_bytes: A larger value is described but does not travel.
        request_id: Names the run: cells' numbers repeat, within a notebook cell and after a
            restart.
    """

    cell: int
    code: str
    first_line: int = 1
    max_payload_bytes: int = 1 << 20
    request_id: str = field(default_factory=lambda: uuid.uuid4().hex)


@dataclass(frozen=True, slots=True)
class CellReply:
    """What a process answers to a :class:`CellRequest`, beside its streamed output.

    Attributes:
        process_index: Who answers.
        value: The last expression's value; None if there was none.
        error: What it raised; None if nothing.
        seconds: Wall time of the cell on this process.
        compile_seconds: Part of it that JAX spent lowering and compiling.
        compiles: Number of computations that the backend compiled.
    """

    process_index: int
    value: ValueInfo | None
    error: ProcessError | None
    seconds: float
    compile_seconds: float
    compiles: int


@dataclass(frozen=True, slots=True)
class StreamChunk:
    """A piece of text that a process wrote, as it arrived."""

    process_index: int
    name: StreamName
    text: str


@dataclass(frozen=True, slots=True)
class DeviceStats:
    """One device's memory, with the memory of the process that owns it.

    Attributes:
        device: The device.
        host: The host it is on.
        pid: The process that owns it.
        bytes_in_use: From ``memory_stats()`` where the backend has it, else the bytes of
            the live arrays' shards on this device, each buffer counted once.
        peak_bytes: Peak of the same, or None where the backend does not say.
        limit_bytes: What the device may use, or None.
        source: ``"memory_stats"`` or ``"live_arrays"``: where ``bytes_in_use`` is from.
        live_arrays: Number of live arrays with a shard on this device.
        process_rss_bytes: Resident memory of the process.
        process_pss_bytes: The same with shared pages divided among those who share them;
            None where the system does not tell (it does on Linux).
        note: Why numbers are missing, e.g. ``"process 2 is dead"``; empty otherwise.
    """

    device: DeviceInfo
    host: str
    pid: int
    bytes_in_use: int | None
    peak_bytes: int | None
    limit_bytes: int | None
    source: Literal["memory_stats", "live_arrays", "none"]
    live_arrays: int
    process_rss_bytes: int | None
    process_pss_bytes: int | None
    note: str = ""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """Tells a process who it is; it joins the group and builds its backend.

    Attributes:
        process_index: Its index.
        num_processes: Size of the group.
        coordinator_address: ``host:port`` of the coordination service.
        platform: ``"cpu"`` or ``"gpu"``.
        devices_per_process: Number of CPU devices it makes; ignored on GPU.
        bind_host: The address that its collectives listen on.
        collectives: ``"gloo"`` or ``"mpi"``; the CPU's.
        bare: Leave the namespace empty: no ``jax``, ``jnp`` … in it.
        environment: Variables to set before the backend starts.
        timeout_seconds: How long to wait for the others.
    """

    process_index: int
    num_processes: int
    coordinator_address: str
    platform: str
    devices_per_process: int
    bind_host: str = "127.0.0.1"
    collectives: str = "gloo"
    bare: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    timeout_seconds: int = 60


@dataclass(frozen=True, slots=True)
class CheckRequest:
    """Asks a process what it sees, a ``psum`` over all devices included."""


@dataclass(frozen=True, slots=True)
class StatsRequest:
    """Asks a process for the statistics of its devices."""


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Asks a process for the value of a cell that was too large to travel with the reply.

    Attributes:
        cell: The cell's number, for messages.
        request_id: The cell's :attr:`CellRequest.request_id`.
        digest: The value's digest when the cell ran; empty if it had none.
    """

    cell: int
    request_id: str = ""
    digest: bytes = b""


@dataclass(frozen=True, slots=True)
class RequestFailed:
    """A request that raised on the process, other than a cell: jaxnb's own fault or the system's.

    Attributes:
        process_index: Who answers; None before it has joined.
        error: What it raised.
    """

    process_index: int | None
    error: ProcessError


Request = JoinRequest | CheckRequest | StatsRequest | FetchRequest | CellRequest
