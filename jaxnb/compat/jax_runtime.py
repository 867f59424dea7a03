"""JAX's runtime: coordination, backends, barriers, and what only the main thread may call."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, ParamSpec

from jaxnb.errors import StartError

# JAX waits in C++, where Python calls no signal handler: a computation that never ends would keep
# the
# main thread out of reach. So another thread waits there, and the main thread waits for that one.


def wait_until_ready(*arrays: Any) -> None:
    """Returns once arrays are computed, or their computation has failed.

    In the main thread SIGINT ends the wait with what its handler raises; the computation goes on.
    Other threads get no signals: they return at once, and wait in C++ as they read the arrays.

    Args:
        arrays: Arrays; some may be deleted.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    late = [each for each in arrays if not is_ready(each)]
    if late:
        has_ended = threading.Event()
        wait = threading.Thread(
            target=_wait, args=(late, has_ended), name="jaxnb-ready", daemon=True
        )
        wait.start()
        has_ended.wait()


def is_ready(array: Any) -> bool:
    """Whether nothing of an array is left to be computed; also if it was deleted."""
    words = getattr(array, "_base_array", array)  # of PRNG keys, which cannot be asked
    try:
        return bool(words.is_deleted() or words.is_ready())
    except RuntimeError:  # it was deleted meanwhile
        return True


def _wait(arrays: list[Any], has_ended: threading.Event) -> None:
    for each in arrays:
        with contextlib.suppress(Exception):  # of its computation: whoever reads it gets that
            each.block_until_ready()
    has_ended.set()


# Each function states what happens where the installed JAX lacks the name it needs.
# ``tests/integration/test_jax_internals.py`` checks every name against the installed JAX.


Names = ParamSpec("Names")


def reporting(hook: Callable[Names, None]) -> Callable[Names, str]:
    """Has a function that replaces names of JAX report which of them the installed JAX lacks.

    It has to look all of them up before it replaces the first.

    Returns:
        The function; it returns why it has changed nothing, or an empty text.
    """

    @functools.wraps(hook)
    def attempted(*arguments: Names.args, **settings: Names.kwargs) -> str:
        try:
            hook(*arguments, **settings)
        except (ImportError, AttributeError, TypeError) as error:
            return str(error)
        return ""

    return attempted


def runtime() -> Any:
    """The extension module with the distributed runtime.

    Imported on use: the coordination service's process needs it, and the tests that read
    this module do not.
    """
    from jax._src.lib import _jax  # type: ignore[attr-defined]

    return _jax


_HEARTBEAT_SECONDS = 100
"""A process, or the service, that is silent for longer counts as dead."""


def start_coordination_service(address: str, num_processes: int) -> Any:
    """Starts JAX's coordination service in this process.

    With ``recoverable=True`` the death of any process, process 0 included, leaves the
    others alive; JAX's own ``initialize`` cannot ask for that on the service it starts.

    Args:
        address: Where it listens: ``unix:PATH``, or ``host:port``.
        num_processes: How many processes will connect.

    Returns:
        The service. It runs until it is deleted or the process ends.

    Raises:
        StartError: This JAX has no such service.
        Exception: The address cannot be bound.
    """
    known = runtime()
    if not hasattr(known, "get_distributed_runtime_service"):
        raise StartError(
            "This jaxlib has no get_distributed_runtime_service: jaxnb needs it to start a "
            "coordination service. Type `pip install 'jax>=0.10.2'`."
        )
    return known.get_distributed_runtime_service(
        address,
        num_processes,
        heartbeat_timeout=_HEARTBEAT_SECONDS,
        shutdown_timeout=5,
        recoverable=True,
    )


def connect_coordination_service(
    address: str, process_index: int, num_processes: int, *, timeout_seconds: int
) -> None:
    """Connects this process to the service and tells JAX who it is.

    This is the part of ``jax.distributed.initialize`` that every process runs, without the
    start of a service in process 0 and without the barrier at exit, which waits up to 300 s
    for processes that may be dead.

    A service that does not answer is a fatal error of XLA: the process ends, it does not
    raise. The launcher reports it with the process's last lines.
    """
    from jax._src import distributed

    state = distributed.global_state
    client = runtime().get_distributed_runtime_client(
        address,
        process_index,
        init_timeout=timeout_seconds,
        heartbeat_timeout=_HEARTBEAT_SECONDS,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    state.coordinator_address = address
    state.process_id = process_index
    state.num_processes = num_processes
    state.client = client


def accept_initialize(process_index: int, size: int) -> None:
    """Has ``jax.distributed.initialize`` accept that the processes are joined.

    They stay so: code that has called ``shutdown`` is only told what it is told elsewhere.
    """
    from jax import distributed

    is_joined = True

    def shutdown() -> None:
        nonlocal is_joined
        is_joined = False

    def initialize(
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        *_: Any,
        **__: Any,
    ) -> None:
        asked = ((process_id, process_index), (num_processes, size))
        if any(given is not None and given != here for given, here in asked):
            raise RuntimeError(
                f"jax.distributed.initialize() was called with num_processes={num_processes}, "
                f"process_id={process_id}, but this is process {process_index} of {size}, and "
                "jaxnb has joined them already. Leave these arguments out. `jaxnb run -n N` "
                "replaces '{num_processes}' and '{process_index}' in a script's arguments."
            )

    for name, function in (
        ("initialize", initialize),
        ("shutdown", shutdown),
        ("is_initialized", lambda: is_joined),
    ):
        setattr(distributed, name, function)


def bind_gloo_to(host: str) -> None:
    """Makes gloo, the CPU collectives, listen on ``host`` only.

    Left alone it listens on the address of the host's name, which other machines reach.
    Must be called after :func:`connect_coordination_service` and before the first use of a
    backend.

    Raises:
        StartError: This JAX has no backend factories to replace. jaxnb promises loopback, so
            there is no group then.
    """
    from jax._src import distributed, xla_bridge

    factories = getattr(xla_bridge, "_backend_factories", None)
    if not factories or "cpu" not in factories:
        raise StartError(
            "This JAX offers no way to bind gloo to an address (jax._src.xla_bridge."
            "_backend_factories is gone): its collectives would listen on all of the host's "
            "network. Type `pip install 'jax>=0.10.2'`."
        )

    def make_cpu_client() -> Any:
        collectives = runtime().make_gloo_tcp_collectives(
            distributed_client=distributed.global_state.client, hostname=host
        )
        return xla_bridge.make_cpu_client(collectives=collectives)

    factories["cpu"] = dataclasses.replace(
        factories["cpu"], factory=functools.wraps(xla_bridge.make_cpu_client)(make_cpu_client)
    )


def preload() -> None:
    """Imports what JAX imports at its first compilation; where it is gone, nothing is lost."""
    with contextlib.suppress(ImportError):
        from jax._src.lib.mlir.dialects import builtin, mhlo  # noqa: F401


def jit_settings(function: Any) -> Any:
    """Returns what a function was jitted with, shardings included: a named tuple.

    None for what is no jitted function, and where this JAX has no such attribute: then a
    function jitted with shardings is carried without them.
    """
    return vars(function).get("_jit_info") if type(function).__name__ == "PjitFunction" else None


def jit_again(function: Any, settings: Any) -> Any:
    """Returns a jitted function, jitted anew with other settings.

    Where this JAX has no such function, the old one is returned.
    """
    from jax._src import pjit

    make = getattr(pjit, "_cpp_pjit", None)
    return function if make is None else make(function.__wrapped__, settings)


def coordination_client() -> Any:
    """Returns this process's connection to the coordination service; None outside a group."""
    from jax._src import distributed

    return distributed.global_state.client


def backends_are_initialized() -> bool:
    """Whether a backend exists already, after which joining is no longer possible."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


Around = Callable[[str, Sequence[int] | None], AbstractContextManager[None]]
"""Takes a barrier's name, and the processes that are to come to it; None for all."""


@reporting
def hook_barriers(around: Around) -> None:
    """Has each wait at a barrier made within a context manager."""
    kind = runtime().DistributedRuntimeClient
    wait = kind.wait_at_barrier

    def wait_at_barrier(
        self: Any,
        barrier_id: str,
        timeout_in_ms: int,
        process_ids: Sequence[int] | None = None,
        **more: Any,
    ) -> Any:
        with around(barrier_id, process_ids):
            return wait(self, barrier_id, timeout_in_ms, process_ids, **more)

    kind.wait_at_barrier = wait_at_barrier


_lane: Any = None


@reporting
def separate_main_thread() -> None:
    """Has C++ find the main thread's calls of jitted functions apart from other threads' calls.

    It has a thread wait while another one calls the same function with such arguments for the
    first time. That call may wait for other processes, whose main threads come to theirs before
    the thread that it waits for: for ever. Now it does not wait for the main thread's, nor that for
    it. Nothing is traced or compiled anew: only what C++ has found is kept twice.

    Call it in the main thread.
    """
    global _lane
    from jax._src import config

    if _lane is None:  # JAX has it for good then
        _lane = config.config_ext.Config("jaxnb_lane", "other", include_in_jit_key=True)
    _lane.set_local("main")
