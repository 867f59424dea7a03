"""A process's side of the reconnecting of its group, with its variables.

After a collective has gone wrong the clique of the processes stays broken, and what is still
pending would pair with the wrong one later. So each process copies its shards to host memory,
drops its backends and its client, joins the others at a new coordination service, and only then
puts new arrays into the places of the old ones: under names, in containers, objects, closures and
caches, the user's modules and others' included. A process that is new gets from the others what
it can (:mod:`jaxnb.engine.handing`).
"""

from __future__ import annotations

import contextlib
import contextvars
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

from jaxnb.engine import _jax_internals, bootstrap, handing, hooks, settling
from jaxnb.engine.holders import Replaced, left_over, replace_held, things_of_devices
from jaxnb.engine.keeping import (
    Again,
    Kept,
    KeptArray,
    KeptView,
    LostShards,
    Unkept,
    added_attributes,
    is_array,
    lost_with,
    put_away,
    type_text,
)
from jaxnb.engine.lost import MAKE_AGAIN, LostArray
from jaxnb.engine.modules import modules_of_user
from jaxnb.engine.rebinding import CACHE_TYPE, Rebinder, paths_of
from jaxnb.engine.unkept import name_unkept
from jaxnb.errors import ArrayGoneError
from jaxnb.model import Reformed, ReformRequest
from jaxnb.model.recovery import CallHooks, Give, JoinAgain, Survey, Take


def reform(request: ReformRequest, process_index: int, namespace: dict[str, Any]) -> Any:
    """Takes one step of the reconnecting.

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
        case CallHooks():
            return hooks.call(process_index)


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
    _drop_finished_calls()
    has_settled = settling.settle([thing for thing in things_of_devices() if is_array(thing)])
    backends = settling.Backends()
    kept = _put_away_all(namespace["names"], frozenset(request.dead))
    unkept = name_unkept(kept, namespace["names"])
    arrays, nbytes = _delete_all(kept)
    lost = [thing.text for old, thing in kept if isinstance(thing, Unkept) and not is_array(old)]
    without = [thing.name for _, thing in kept if isinstance(thing, LostShards)]
    ambient = _take_back_ambient()
    left_service = bootstrap.leave()
    _return_memory()
    bootstrap.join_again(request.coordinator_address, request.timeout_seconds)
    again = Again({device.id: device for device in jax.devices()})
    lost += _put_back(kept, again, namespace)
    while ambient:
        choose, thing = ambient.pop()
        choose(again(thing))
        del thing
    del again
    has_ended = backends.end() and has_settled
    lost += left_over(namespace["names"])
    return Reformed(
        process_index=process_index,
        arrays=arrays,
        nbytes=nbytes,
        lost=tuple(lost),
        collective_ports=bootstrap.collective_ports(),
        left_service=left_service,
        seconds=time.perf_counter() - started,
        lost_shards=tuple(without),
        unkept=unkept,
        hooks=hooks.count(),
        is_settled=has_ended,
    )


def _put_away_all(names: dict[str, Any], dead: frozenset[int]) -> list[tuple[Any, Kept]]:
    """Returns all that belongs to the backend, and what each thing is made again from."""
    things = things_of_devices()
    client = _jax_internals.coordination_client()  # of which the collector knows nothing
    if client is not None and not any(thing is client for thing in things):
        things.append(client)
    # An array over several devices first: JAX keeps an array for each of its shards beside it.
    things.sort(key=lambda thing: not (is_array(thing) and len(thing.sharding.device_set) > 1))
    lost = [thing for thing in things if isinstance(thing, jax.Array) and lost_with(thing, dead)]
    paths = paths_of(names, lost) if lost else {}
    inside_lost = {id(part) for thing in lost for part in vars(thing).values()}
    kept: dict[int, Kept] = {}
    views: dict[int, tuple[KeptArray, int]] = {}
    for thing in things:
        if id(thing) in inside_lost:  # the array in an array of keys, which is lost itself
            continue
        if any(thing is each for each in lost):
            kept[id(thing)] = LostShards(thing, paths.get(id(thing), ""), dead)
        elif id(thing) in views:
            kept[id(thing)] = KeptView(*views[id(thing)], added_attributes(thing))
        elif not isinstance(thing, jax.Array) or is_array(thing):
            found = kept[id(thing)] = put_away(thing)
            if isinstance(found, KeptArray):
                views.update({key: (found, device) for key, device in found.views.items()})
    return [(thing, kept[id(thing)]) for thing in things if id(thing) in kept]


def _delete_all(kept: list[tuple[Any, Kept]]) -> tuple[int, int]:
    """Gives the memory of old arrays back; the objects stay in their places.

    Returns:
        How many arrays are kept, and their bytes on this process.
    """
    count = nbytes = 0
    for thing, how in kept:
        if is_array(thing):
            thing.delete()
            vars(thing).clear()  # its shards, among others, which would keep the old backend
        if isinstance(how, KeptArray) and not how.is_deleted:
            count, nbytes = count + 1, nbytes + how.nbytes
    return count, nbytes


def _put_back(kept: list[tuple[Any, Kept]], again: Again, namespace: dict[str, Any]) -> list[str]:
    """Makes everything again, and puts it into the places of what was there before.

    Empties ``kept``. Returns what could not be made again, in words.
    """
    failed: list[str] = []
    replaced = {}
    # The settings of the user must not change what an array is made of.
    with jax.enable_x64(True), jax.transfer_guard("allow"):
        for old, thing in kept:
            replaced[id(old)] = Replaced(old, _restored(old, thing, again, failed))
    del old
    kept.clear()
    roots = {
        **namespace,
        "modules": [vars(module) for module in modules_of_user()],
        "context": list(contextvars.copy_context()),
        "caches": [thing for thing in gc.get_objects() if type(thing) is CACHE_TYPE],
    }

    def swap(value: Any) -> Any:
        found = replaced.get(id(value))
        return value if found is None else found.new

    Rebinder(swap).rebind(roots)
    del roots
    things = list(replaced.values())
    replaced.clear()
    again.forget_old()
    _release(things)
    return failed


def _restored(old: Any, thing: Kept, again: Again, failed: list[str]) -> Any:
    try:
        new = thing.restore(again)
    except Exception as error:  # no memory on a device, say: the others are worth the more
        if isinstance(error, ArrayGoneError) and not is_array(old):
            return old  # an earlier reconnect has made it unusable, and has told who held it
        text = type_text(old) if is_array(old) else f"a {type(old).__name__}"
        failed.append(f"{text} ({type(error).__name__}: {error})")
        return LostArray(f"{text} could not be put back when the group was reconnected", (),
                         MAKE_AGAIN)  # fmt: skip
    if is_array(old) and is_array(new) and old.weak_type != new.weak_type:
        failed.append(f"{type_text(old)} was weakly typed and is not any more")
    return new


def _release(things: list[Replaced]) -> None:
    """Lets old things go, those first that refer to others; replaces them where one is held."""
    for kind in (jax.Array, jax.sharding.Sharding, object):
        some = [each for each in things if isinstance(each.old, kind)]
        things[:] = [each for each in things if not isinstance(each.old, kind)]
        replace_held([each for each in some if each.is_held()])


def _take_back_ambient() -> list[tuple[Callable[[Any], object], Any]]:
    """Takes back what the user has set for all calls; returns how to set each again, and to what.

    That is the mesh of ``jax.set_mesh`` and the default device.
    """
    found: list[tuple[Callable[[Any], object], Any]] = []
    mesh = jax.sharding.get_mesh()
    if not mesh.empty:
        found.append((jax.set_mesh, mesh))
        jax.set_mesh(None)
    device: Any = getattr(jax.config, "jax_default_device", None)
    if isinstance(device, jax.Device):
        found.append((partial(jax.config.update, "jax_default_device"), device))
        jax.config.update("jax_default_device", None)
    return found


def _drop_finished_calls() -> None:
    """Lets go of what calls that have ended held, and of what JAX has cached."""
    # The frames of the error that ended the cell hold what it was about, for %debug.
    for name in ("last_exc", "last_value", "last_traceback"):
        setattr(sys, name, None)
    _clear_finished_frames()
    jax.clear_caches()
    gc.collect()


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
