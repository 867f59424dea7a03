# mypy: disable-error-code="no-untyped-call"
"""The peer: N JAX processes joined with ipyparallel alone, as one would write it today.

This is the shortest correct code we know for the job: start a cluster, tell every engine to
join, compute one sum over all of them, check it. It uses stock settings throughout.
"""

from __future__ import annotations

import socket

import ipyparallel as ipp


def join(process_id: int, num_processes: int, address: str) -> None:
    """Join this engine to the group; runs on every engine at the same time."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.distributed.initialize(address, num_processes, process_id)


def first_psum() -> float:
    """Sum the indices of all devices over all of them; runs on every engine."""
    import jax

    mesh = jax.make_mesh((jax.device_count(),), ("i",))

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=(), out_specs=jax.P())
    def total():  # type: ignore[no-untyped-def]
        return jax.lax.psum(jax.lax.axis_index("i"), "i")

    return float(total())


def free_port() -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(num_processes: int) -> tuple[ipp.Cluster, ipp.Client]:
    """Start engines, join them, and check one ``psum`` over all of them."""
    cluster = ipp.Cluster(n=num_processes)
    client = cluster.start_and_connect_sync()
    address = f"127.0.0.1:{free_port()}"
    ids = range(num_processes)
    client[:].map_sync(join, ids, [num_processes] * num_processes, [address] * num_processes)
    check(client)
    return cluster, client


def check(client: ipp.Client) -> None:
    """Compute a ``psum`` on every engine and compare it with what it must be.

    Raises:
        RuntimeError: An engine got another sum.
    """
    sums = client[:].apply_sync(first_psum)
    if sums != [sum(range(len(client)))] * len(client):
        raise RuntimeError(f"the engines disagree about sum(range({len(client)})): {sums}")


def stop(cluster: ipp.Cluster, client: ipp.Client) -> None:
    """Stop the engines and the ipyparallel controller."""
    cluster.stop_cluster_sync()
    client.close()
