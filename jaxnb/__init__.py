"""Multi-process JAX from one notebook.

``import jaxnb`` loads neither jax nor ipyparallel; ``%load_ext jaxnb`` gives the magics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxnb._version import __version__

if TYPE_CHECKING:
    from jaxnb.collectives import Collectives
    from jaxnb.gathered import GatheredArray
    from jaxnb.model import CheckMode
    from jaxnb.result import PerProcess
    from jaxnb.session import Session

__all__ = [
    "Collectives",
    "GatheredArray",
    "PerProcess",
    "__version__",
    "load_ipython_extension",
    "plan",
    "start",
]

_HOMES = {
    "Collectives": "jaxnb.collectives",
    "GatheredArray": "jaxnb.gathered",
    "PerProcess": "jaxnb.result",
}


def __getattr__(name: str) -> Any:
    # Imported on use: the import of jaxnb stays light.
    if name not in _HOMES:
        raise AttributeError(f"module 'jaxnb' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def start(
    num_processes: int | None = None,
    *,
    devices_per_process: int | None = None,
    platform: str = "auto",
    launcher: str | None = None,
    collectives: str = "gloo",
    bare: bool = False,
    check: CheckMode = "record",
    timeout: float = 60.0,
    progress: Any = None,
) -> Session:
    """Starts JAX processes, joins them with ``jax.distributed``, and checks them.

    When it returns, every process has been asked what it sees, and a ``psum`` over all devices
    of the group has come out right. Everything binds loopback. The processes end when the
    session is closed, and when this process ends in whatever way.

    Args:
        num_processes: How many; by default one per GPU, else 4.
        devices_per_process: CPU devices of each process; 1 by default.
        platform: ``"auto"`` (GPUs where there are any), ``"cpu"`` or ``"gpu"``.
        launcher: ``"fork"`` (the default on Linux) or ``"local"``.
        collectives: The library of the CPU collectives: ``"gloo"``.
        bare: Do not put ``jax``, ``jnp``, ``np``, ``P``, ``NamedSharding``,
            ``process_index`` and ``num_processes`` into the processes' namespaces.
        check: ``"record"``: computations that span processes are recorded on each, and compared
            after every cell (``result.divergence``); ``"strict"``: the processes agree on each
            before it runs, and raise :class:`~jaxnb.errors.DivergenceError` if they do not;
            ``"off"``.
        timeout: Seconds that the start may take.
        progress: Called with the name of each stage and a detail.

    Returns:
        The session; use it in ``with``, or call its ``close()``.

    Raises:
        UsageError: The arguments are not possible; nothing was started.
        StartError: The group could not be started; nothing is left running.
    """
    from jaxnb.options import StartOptions
    from jaxnb.session import Session

    options = StartOptions(
        num_processes=num_processes,
        devices_per_process=devices_per_process,
        platform=platform,
        launcher=launcher,
        collectives=collectives,
        bare=bare,
        check=check,
        timeout=timeout,
    )
    return Session(options, progress)


def plan(call: str, *, devices: int, setup: str = "") -> Collectives:
    """Compiles a call for devices that there need not be; no group is needed, nothing is run.

    A scratch process with that many CPU devices runs ``setup``, and lowers and compiles the
    call; then it ends. It has ``jax``, ``jnp``, ``np``, ``P`` and ``NamedSharding`` from the
    start, and knows nothing of this process's variables. With ``jax.ShapeDtypeStruct`` as
    arguments no data are needed.

    Args:
        call: The call, as an expression: ``"step(state, batch)"``. Lines before it are run.
        devices: How many devices to plan for, e.g. 256.
        setup: Code to run first: it makes the mesh, the function and the arguments.

    Returns:
        Its collectives and what it costs each device; ``print`` shows them as a table.

    Raises:
        UsageError: The last line is not a call.
        NotCompiledError: The code raised, or the call cannot be compiled.
        JaxnbError: The scratch process ended early.
    """
    from jaxnb import planning

    return planning.plan(f"{setup}\n{call}" if setup else call, devices=devices)


def load_ipython_extension(shell: Any) -> None:
    """Registers the magics: what ``%load_ext jaxnb`` calls."""
    from jaxnb.magics import load

    load(shell)
