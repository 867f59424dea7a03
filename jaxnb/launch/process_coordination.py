"""JAX's coordination service, and the conductor, in a process of their own.

In process 0, where ``jax.distributed.initialize`` puts it, it would die with process 0.
"""

from __future__ import annotations

import os
import signal
from urllib.parse import quote

from jaxnb.compat import jax_runtime
from jaxnb.launch import lifeline
from jaxnb.lockstep.conductor_loop import Loop
from jaxnb.lockstep.connections import connected, listening
from jaxnb.lockstep.messages import conductor_beside
from jaxnb.lockstep.wire import Packets

CONDUCTOR_HOST = "JAXNB_CONDUCTOR_HOST"
"""Set to an address, it has the conductor listen there over TCP, with a key of its own."""


def serve(cluster_dir: str, num_processes: int, ready_fd: int) -> None:
    """Runs the service until this process is ended; writes its address to ``ready_fd``.

    It listens on a Unix socket. It asks nobody who they are, and whoever reaches it can read and
    set the keys by which processes find each other, or end them: over TCP every user of the host
    could. Nor can another program have taken the port. For processes on several hosts it will
    have to listen on TCP, with the certificates of JAX 0.11 (``mtls_…``).

    Args:
        cluster_dir: Where the socket is; only this user may be able to enter it.
        num_processes: How many processes will connect.
        ready_fd: A pipe.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    path = os.path.join(cluster_dir, f"jax-{os.getpid()}")
    address = f"unix:{quote(os.fsencode(path))}"
    service = jax_runtime.start_coordination_service(address, num_processes)
    host = os.environ.get(CONDUCTOR_HOST) or None
    place = conductor_beside(address)
    try:
        door = listening(place, host, Packets(num_processes).max_bytes)
        connected(place).close()
    except OSError as error:
        raise SystemExit(
            f"The conductor cannot be reached at {CONDUCTOR_HOST}={host}: {error}. Set it to an "
            "address of this machine, or not at all."
        ) from None
    conductor = Loop(door, num_processes, lifeline.interrupt)
    with os.fdopen(ready_fd, "w") as stream:
        stream.write(f"{address}\n")
    conductor.run()
    del service  # it serves as long as it is held
