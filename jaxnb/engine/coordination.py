"""JAX's coordination service in a process of its own.

In process 0, where ``jax.distributed.initialize`` puts it, it would die with process 0.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any

import psutil

from jaxnb.engine import _jax_internals

PORT_TAKEN_STATUS = 75
"""Exit status of :func:`serve` when it could not have the port for itself (``EX_TEMPFAIL``)."""

ATTEMPTS = 8
"""How many ports a launcher tries."""


def port_was_taken(status: int) -> bool:
    """Whether a service that ended with ``status`` before it was ready lost its port.

    Where it cannot bind, XLA 0.10.2 raises or dies of SIGSEGV or SIGABRT; negative statuses
    are signals. Any other signal came from somebody who wants it gone.
    """
    return status in (-signal.SIGSEGV, -signal.SIGABRT, PORT_TAKEN_STATUS)


def free_port(host: str) -> int:
    """Returns a port that was free a moment ago; the caller must expect to lose it."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def count_listeners(port: int) -> int:
    """Returns how many sockets of this host listen on a TCP port, as far as it may be known.

    gRPC binds with ``SO_REUSEPORT``: where another gRPC service has the port, the bind
    succeeds and the two share the connections, at random.
    """
    connections: list[Any]
    try:
        connections = [*psutil.net_connections("tcp")]
    except psutil.AccessDenied:
        # macOS shows the sockets of other processes to root only, so a second listener goes
        # unseen there. What is left is :func:`free_port`: its probe, bound without
        # SO_REUSEPORT, is refused a port that anybody has, so the other one must have come in
        # the moment since.
        connections = [*psutil.Process().net_connections("tcp")]
    return sum(
        connection.status == psutil.CONN_LISTEN and tuple(connection.laddr)[1:] == (port,)
        for connection in connections
    )


def serve(host: str, port: int, num_processes: int, ready_fd: int) -> None:
    """Runs the service until this process is ended; writes its address to ``ready_fd``.

    XLA binds a port by number and cannot be given a bound socket, so another program can take
    the port between choosing and binding. Then this process ends without having written an
    address, and the launcher tries another port.

    Args:
        host: The address to listen on.
        port: The port, or 0 for a free one.
        num_processes: How many processes will connect.
        ready_fd: A pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    port = port or free_port(host)
    try:
        service = _jax_internals.start_coordination_service(f"{host}:{port}", num_processes)
    except RuntimeError as error:  # XLA's "Failed to start RPC server"
        sys.stderr.write(f"{error}\n")
        sys.exit(PORT_TAKEN_STATUS)
    if count_listeners(port) > 1:
        sys.exit(PORT_TAKEN_STATUS)
    with os.fdopen(ready_fd, "w") as stream:
        stream.write(f"{host}:{port}\n")
    while service is not None:
        signal.pause()
