"""Requests to a process that are not cells."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxnb.model.cells import CellRequest, ProcessError
from jaxnb.model.dispatches import CheckMode


@dataclass(frozen=True)
class JoinRequest:
    """Tells a process who it is; it joins the group and builds its backend.

    Attributes:
        process_index: Its index.
        num_processes: Size of the group.
        coordinator_address: Of the coordination service, as gRPC takes it.
        platform: ``"cpu"`` or ``"gpu"``.
        devices_per_process: Number of CPU devices it makes; ignored on GPU.
        bind_host: The address that its collectives listen on.
        socket_folder: Where its own sockets are; only this user can enter it. The one switch
            between one host and several: without it, jaxnb's part listens on ``bind_host`` too.
        collectives: ``"gloo"`` or ``"mpi"``; the CPU's.
        programs_folder: Where compiled programs are kept; ``"off"``: each compiles alone.
        bare: Leave the namespace empty: no ``jax``, ``jnp`` … in it.
        environment: Variables to set before the backend starts.
        arguments: The notebook's ``sys.argv``.
        timeout_seconds: How long to wait for the others.
    """

    process_index: int
    num_processes: int
    coordinator_address: str
    platform: str
    devices_per_process: int
    bind_host: str = "127.0.0.1"
    socket_folder: str = ""
    collectives: str = "gloo"
    programs_folder: str = "off"
    bare: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    timeout_seconds: int = 60


@dataclass(frozen=True)
class CheckRequest:
    """Asks a process what it sees, a ``psum`` over all devices included."""


@dataclass(frozen=True)
class RequestFailed:
    """A request that raised on the process, other than a cell: jaxnb's own fault or the system's.

    Attributes:
        process_index: Who answers; None before it has joined.
        error: What it raised.
    """

    process_index: int | None
    error: ProcessError


@dataclass(frozen=True)
class JointRequest:
    """Asks several processes one thing; code of the user's may compute over them to answer it.

    Attributes:
        serial: As of cells: of several the later one's is larger, on all processes.
        ranks: The processes that are asked.
        check: How the group is checked.
        request: What they are asked.
    """

    serial: int
    ranks: tuple[int, ...]
    check: CheckMode
    request: CallRequest


@dataclass(frozen=True)
class CallRequest:
    """Asks a process to call a function of jaxnb's, and to answer with what it returns.

    Attributes:
        function: Where it is, in a module of what runs in processes:
            ``"jaxnb.recovery.process_saving.write"``. It takes what the process has, and the
            arguments.
        arguments: By name.
        is_interruptible: It runs code of the user's (``__reduce__``, ``__getitem__``), or waits for
            computations. Else it is short, and would be left half done.
    """

    function: str
    arguments: Mapping[str, Any]
    is_interruptible: bool = False


Request = JoinRequest | CheckRequest | CellRequest | JointRequest | CallRequest
