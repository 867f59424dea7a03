"""A process's side of the forming anew of its group, with its variables.

After a collective has gone wrong the clique of the processes stays broken, and what is still
pending would pair with the wrong one later. So each process copies its shards to host memory,
drops its backends and its client, joins the others at a new coordination service, and puts the
arrays back on the new devices, wherever the old ones were: under names, in containers, in
closures. A process that is new gets from the others what it can (:mod:`jaxnb.engine.handing`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import inspect
import sys
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any

import jax

from jaxnb.engine import bootstrap, handing
from jaxnb.engine.keeping import (
    Kept,
    KeptArray,
    KeptDevice,
    KeptMesh,
    LostShards,
    Unkept,
    is_of_devices,
    lost_with,
    put_away,
    type_text,
)
from jaxnb.engine.rebinding import Rebinder, objects_of, paths_of
from jaxnb.model import Reformed, ReformRequest
from jaxnb.model.recovery import Give, JoinAgain, Survey, Take


def reform(request: ReformRequest, process_index: int, namespace: dict[str, Any]) -> Any:
    """Takes one step of the forming anew.

    Args:
        request: The step.
        process_index: This process.
        namespace: The variables; under ``"names"`` those of cells.
    """
    match request.step:
        case JoinAgain() as step:
            with bootstrap.backend_in_use:
                return _join_again(step, process_index, namespace)
        case Survey():
            return handing.survey(namespace["names"], namespace["hidden"])
        case Give() as step:
            return handing.give(step, process_index, namespace["names"])
        case Take() as step:
            return handing.take(step, namespace["names"])


def _join_again(request: JoinAgain, process_index: int, namespace: dict[str, Any]) -> Reformed:
    """Takes this process out of its group and into a new one; its variables are kept.

    Blocks until every process of the group has joined. Functions are compiled anew when they
    are next called.

    Args:
        request: Where the new coordination service is, and who has died.
        process_index: This process.
        namespace: The variables.

    Raises:
        MemoryError: There is no room for the copies; nothing has changed.
    """
    started = time.perf_counter()
    kept = _put_away_all(namespace, frozenset(request.dead))
    arrays = [thing for thing in kept.values() if isinstance(thing, KeptArray)]
    failed = [thing.text for thing in kept.values() if isinstance(thing, Unkept)]
    without = [thing.name for thing in kept.values() if isinstance(thing, LostShards)]
    Rebinder(lambda value: kept.get(id(value), value)).rebind(namespace)
    kept.clear()
    ambient = _put_away_ambient()
    lost = [*failed, *_left_behind()]
    left_service = bootstrap.leave()
    _return_memory()
    bootstrap.join_again(request.coordinator_address, request.timeout_seconds)
    devices = {device.id: device for device in jax.devices()}

    def restore(value: Any) -> Any:
        return value.restore(devices) if isinstance(value, Kept) else value

    Rebinder(restore).rebind(namespace)
    for choose, thing in ambient:
        choose(thing.restore(devices))
    return Reformed(
        process_index=process_index,
        arrays=len(arrays),
        nbytes=sum(array.nbytes for array in arrays),
        lost=tuple(lost),
        collective_ports=bootstrap.collective_ports(),
        left_service=left_service,
        seconds=time.perf_counter() - started,
        lost_shards=tuple(without),
    )


def _put_away_all(namespace: dict[str, Any], dead: frozenset[int]) -> dict[int, Kept]:
    """Returns what stands for each thing that belongs to the backend, by the thing's id."""
    kept: dict[int, Kept] = {}
    lost = []
    for thing in objects_of(namespace, is_of_devices):
        if isinstance(thing, jax.Array) and lost_with(thing, dead):
            lost.append(thing)
        else:
            kept[id(thing)] = put_away(thing)
    paths = paths_of(namespace["names"], lost)
    for array in lost:
        kept[id(array)] = LostShards(array, paths.get(id(array), ""), dead)
    return kept


def _put_away_ambient() -> list[tuple[Callable[[Any], object], Kept]]:
    """Takes back what the user has set for all calls; returns how to set each again, and to what.

    That is the mesh of ``jax.set_mesh`` and the default device.
    """
    found: list[tuple[Callable[[Any], object], Kept]] = []
    mesh = jax.sharding.get_mesh()
    if not mesh.empty:
        found.append((jax.set_mesh, KeptMesh(mesh)))
        jax.set_mesh(None)
    device: Any = getattr(jax.config, "jax_default_device", None)
    if isinstance(device, jax.Device):
        found.append((partial(jax.config.update, "jax_default_device"), KeptDevice(device)))
        jax.config.update("jax_default_device", None)
    return found


def _left_behind() -> list[str]:
    """Returns the arrays that something holds which was not looked into."""
    # The frames of the error that ended the cell hold what it was about, for %debug.
    for name in ("last_exc", "last_value", "last_traceback"):
        setattr(sys, name, None)
    _clear_finished_frames()
    jax.clear_caches()
    gc.collect()
    return [type_text(array) for array in jax.live_arrays() if not array.is_deleted()]


def _return_memory() -> None:
    """Gives memory that has been freed back to the system, where glibc is.

    XLA and its compiler take theirs in threads, for each of which glibc has heaps of its own and
    keeps what is freed there. A backend that has gone leaves some 4 MB of that, and the next one
    has new threads.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _clear_finished_frames() -> None:
    """Drops the local variables of calls that have ended but are still in a traceback.

    IPython keeps the traceback of the last error, users keep exceptions.
    """
    suspendable = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR
    for thing in gc.get_objects():
        if type(thing) is TracebackType and not thing.tb_frame.f_code.co_flags & suspendable:
            with contextlib.suppress(RuntimeError):  # it has not ended
                thing.tb_frame.clear()
                # Who has read this has left a copy (up to Python 3.12), which is renewed.
                _ = thing.tb_frame.f_locals
