"""Multi-process JAX from one notebook.

``import jaxnb`` loads neither jax nor ipyparallel; ``%load_ext jaxnb`` gives the magics.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from jaxnb._version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jaxnb.arrays.gathered import GatheredArray
    from jaxnb.arrays.lost import PerProcess
    from jaxnb.compiled.comparison import Comparison
    from jaxnb.compiled.compiling import Collectives
    from jaxnb.display.card import Card
    from jaxnb.errors import CellError, JaxnbError
    from jaxnb.model.dispatches import CheckMode
    from jaxnb.session import Session

__all__ = [
    "CellError",
    "Collectives",
    "Comparison",
    "GatheredArray",
    "JaxnbError",
    "PerProcess",
    "__version__",
    "compare",
    "load_ipython_extension",
    "on_recover",
    "picture",
    "plan",
    "start",
]

_HOMES = {
    "CellError": "jaxnb.errors",
    "Collectives": "jaxnb.compiled.compiling",
    "Comparison": "jaxnb.compiled.comparison",
    "GatheredArray": "jaxnb.arrays.gathered",
    "JaxnbError": "jaxnb.errors",
    "PerProcess": "jaxnb.arrays.lost",
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
    hosts: str | Sequence[str] = (),
    env: Sequence[str] = (),
    lost_after: float = 60.0,
    attach: str = "",
    nodes: int | None = None,
    gpus_per_node: int | None = None,
    partition: str = "",
    account: str = "",
    qos: str = "",
    time_limit: str = "",
    collectives: str = "gloo",
    compile_cache: str = "",
    bare: bool = False,
    check: CheckMode = "strict",
    pitfalls: bool = True,
    timeout: float = 60.0,
    progress: Any = None,
) -> Session:
    """Starts JAX processes, joins them with ``jax.distributed``, and checks them.

    When it returns, every process has been asked what it sees, and a ``psum`` over all devices
    of the group has come out right. On one host, everything binds loopback. The processes end
    when the session is closed, and when this process ends in whatever way.

    Args:
        num_processes: How many; by default one per GPU, else 4.
        devices_per_process: CPU devices of each process; 1 by default.
        platform: ``"auto"`` (GPUs where there are any), ``"cpu"`` or ``"gpu"``.
        launcher: How they are started; ``"fork"`` on Linux, ``"local"`` elsewhere. ``"slurm"``: on
            the nodes of the allocation that this process runs in, else in a job that is submitted.
            Every other launcher of engines that ipyparallel knows too, such as ``"mpi"``.
        hosts: The hosts to start them on over ssh, as ``"hostA,hostB:4"`` or a list, four processes
            on the second; this host by default. See :doc:`/clusters`.
        env: Variables that processes on other hosts get beside ``JAX_…``, ``XLA_…`` and ``NCCL_…``,
            each as ``NAME`` or ``NAME=VALUE``.
        lost_after: Seconds without an answer after which another host is given up: 5 to 90.
        attach: A profile of ipyparallel's, as ``"PROFILE"`` or ``"PROFILE:CLUSTER_ID"``: the
            engines of a cluster that runs start the processes, one for each engine.
        nodes: On how many nodes a job that is submitted is to run; by default one.
        gpus_per_node: How many GPUs it asks for on each.
        partition: Its partition, or queue. This and all that follows: as the site has it, or as the
            user has configured it for ipyparallel, unless it is given.
        account: The account that it is charged to.
        qos: Its quality of service.
        time_limit: How long it may run, as Slurm writes times: ``"1:30:00"``.
        collectives: The library of the CPU collectives: ``"gloo"``.
        compile_cache: A folder for compiled programs. The first process that needs a program
            compiles it and keeps it there; the others load it, and so do later groups. By default
            in the user's cache (``~/.cache/jaxnb``), of at most 1 GiB; ``"off"``: each process
            compiles by itself, and nothing is kept. On GPUs it is off.
        bare: Do not put ``jax``, ``jnp``, ``np``, ``P``, ``NamedSharding``,
            ``process_index`` and ``num_processes`` into the processes' namespaces.
        check: ``"strict"``: the processes agree on each computation over several of them before
            it runs, and raise :class:`~jaxnb.errors.DivergenceError` if they do not; ``"off"``:
            plain JAX, which waits for ever then.
        pitfalls: Say once of each cause what a cell does that JAX says nothing of, such as a
            hidden all-gather or a recompilation in a loop (``result.pitfalls``). Not with
            ``check="off"``.
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
        hosts=hosts if isinstance(hosts, str) else ",".join(hosts),
        env=tuple(env),
        lost_after=lost_after,
        attach=attach,
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        partition=partition,
        account=account,
        qos=qos,
        time_limit=time_limit,
        collectives=collectives,
        compile_cache=os.fspath(compile_cache),
        bare=bare,
        check=check,
        pitfalls=pitfalls,
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
    from jaxnb.compiled import planning

    return planning.plan(f"{setup}\n{call}" if setup else call, devices=devices)


def picture(
    collective: str,
    *,
    mesh_shape: Mapping[str, int] | Sequence[int],
    axis: str | int,
    values: Any = None,
) -> Card:
    """Draws a collective: what devices have before, who sends what to whom, what they have after.

    No group is needed, nothing is run, and no JAX imported. Sums, gathers and scatters go around a
    ring step by step, an exchange of all with all pair by pair, a permute to the next.

    Args:
        collective: ``"psum"``, ``"all_gather"``, ``"psum_scatter"``, ``"all_to_all"`` or
            ``"ppermute"``.
        mesh_shape: The mesh: ``{"data": 2, "model": 4}``, or ``(2, 4)`` with axes x and y.
        axis: The axis that it goes along; its name or place.
        values: The numbers that each device has, to be shown in place of letters; as many as there
            are devices along the axis, where the collective cuts them into parts.

    Returns:
        The picture, which a notebook shows; ``print`` shows it as text.

    Raises:
        UsageError: There is no such collective or axis, or a mesh or values are not possible.
    """
    from jaxnb.pictures import card_exchange

    return card_exchange.picture(collective, mesh_shape, axis, values)


def compare(
    function: Callable[..., Any],
    args: Any,
    *,
    specs: Mapping[str, Any],
    kwargs: Mapping[str, Any] | None = None,
    mesh: Any = None,
    out_specs: Mapping[str, Any] | None = None,
    repeats: int | None = None,
    run: bool = True,
) -> Comparison:
    """Compiles and times a function under several shardings.

    For a ``%%spmd`` cell, or a script that all processes run; from the notebook it is
    ``session.compare("f(x, w)", specs=...)``. All processes of the cell take part, and each
    returns the same.

    For each variant the arguments are laid out as its specs say, and the function is jitted anew,
    compiled, called twice, and then called as often as is measured. It is traced with the
    variant's mesh set, so that ``with_sharding_constraint(x, P("data"))`` in it means that mesh.
    Nothing is changed: arrays are copied where they have to be moved, and none is donated. A
    variant that does not work is a row that says why.

    Args:
        function: The function, best not jitted.
        args: Its positional arguments, a tuple; with ``jax.ShapeDtypeStruct`` among them nothing
            is run. What is no array stays what it is. Arrays that each process holds for itself
            (NumPy's, ``jnp.ones``) must be the same on all.
        specs: Name of a variant to its specs: one for all arrays, or a tuple with one for each
            argument; for an argument that is a pytree, one for all of it or a pytree of specs.
            None leaves an array as it is. A ``NamedSharding`` brings its mesh, which is the
            variant's then.
        kwargs: Its keyword arguments; none has arrays.
        mesh: The mesh, or axes and sizes to make one of (``{"data": 4, "model": 2}``); by default
            that of the arguments, or the only one there is.
        out_specs: Name of a variant to specs of its outputs, as ``jax.jit``'s ``out_shardings``;
            else the compiler chooses.
        repeats: How many calls to measure; by default as many as take about a second, 5 to 200.
        run: False compiles only.

    Returns:
        A row for each variant; ``print`` shows a table, ``.plot()`` draws a chart.

    Raises:
        UsageError: There is nothing to compare; nothing was run.
        JaxnbError: A call raised on some processes, and others did not come back from it.
    """
    from jaxnb.compiled import comparing

    return comparing.compare_here(function, args, kwargs, specs, mesh, out_specs, repeats, run)


def on_recover(function: Any) -> Any:
    """Has a function called on each process after each recovery, once its variables are there.

    For a ``%%spmd`` cell: what a library keeps that belongs to the old group is made again there.
    Functions are called in the order in which they were given, on all processes at once, when all
    arrays are back, and those of a process that is new have come; so they may compute together.
    One that raises is reported, and does not keep the others from being called. Giving one of the
    same name again takes the place of the first. They are forgotten at a restart. Outside a group's
    processes, in the notebook itself, it warns and does nothing else.

    Args:
        function: Takes no arguments. May be used as a decorator.

    Returns:
        The function.
    """
    from jaxnb.recovery import hooks

    return hooks.add(function)


def load_ipython_extension(shell: Any) -> None:
    """Registers the magics: what ``%load_ext jaxnb`` calls."""
    from jaxnb.magics import load

    load(shell)
