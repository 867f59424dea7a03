"""A process's side of the reconnecting of its group, with its variables.

After a collective has gone wrong the clique of the processes stays broken, and what is still
pending would pair with the wrong one later. So each process copies its shards to host memory,
drops its backends and its client, joins the others at a new coordination service, and only then
puts new arrays into the places of the old ones: under names, in containers, objects, closures and
caches, the user's modules and others' included. A process that is new gets from the others what
it can (:mod:`jaxnb.engine.handing`).
"""

from __future__ import annotations

import contextvars
import ctypes
import gc
import time
from typing import Any

import jax

from jaxnb.engine import bootstrap, handing, hooks
from jaxnb.engine.holders import Replaced, left_over, replace_held
from jaxnb.engine.keeping import Again, Kept, is_array, type_text
from jaxnb.engine.leaving import Away
from jaxnb.engine.lost import MAKE_AGAIN, LostArray
from jaxnb.engine.modules import modules_of_user
from jaxnb.engine.rebinding import CACHE_TYPE, Rebinder
from jaxnb.errors import ArrayGoneError
from jaxnb.model import Reformed, ReformRequest
from jaxnb.model.recovery import CallHooks, Give, JoinAgain, PutAway, Survey, Take


def reform(request: ReformRequest, process_index: int, namespace: dict[str, Any]) -> Any:
    """Takes one step of the reconnecting.

    Args:
        request: The step.
        process_index: This process.
        namespace: The variables; under ``"names"`` those of cells.
    """
    match request.step:
        case PutAway():
            with bootstrap.backend_in_use:
                return _put_away()
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


_away: Away | None = None


def _put_away() -> bool:
    """Copies what belongs to the backend to host memory; nothing of it changes.

    Returns:
        Whether nothing is under way any more.

    Raises:
        MemoryError: There is no room for the copies; nothing has changed.
    """
    global _away
    if _away is None or not _away.has_left:
        _away = None  # of an attempt that went no further: the arrays may have changed since
        _away = Away()
    return _away.is_settled


def _join_again(request: JoinAgain, process_index: int, namespace: dict[str, Any]) -> Reformed:
    """Takes this process out of its group and into a new one; its variables are kept.

    Blocks until every process of the group has joined. Functions are compiled anew when they
    are next called.

    Args:
        request: Where the new coordination service is, and who has died.
        process_index: This process.
        namespace: The variables.
    """
    global _away
    started = time.perf_counter()
    assert _away is not None, "nothing was put away"
    away = _away
    away.leave(frozenset(request.dead), namespace["names"])
    left_service = bootstrap.leave()
    _return_memory()
    bootstrap.join_again(request.coordinator_address, request.timeout_seconds)
    _away = None  # what is made again takes the copies
    _come_back(away, namespace)
    return Reformed(
        process_index=process_index,
        arrays=away.arrays,
        nbytes=away.nbytes,
        lost=tuple(away.lost),
        collective_ports=bootstrap.collective_ports(),
        left_service=left_service,
        seconds=away.seconds + time.perf_counter() - started,
        lost_shards=tuple(away.without),
        unkept=away.unkept,
        hooks=hooks.count(),
        is_settled=away.is_settled,
    )


def _come_back(away: Away, namespace: dict[str, Any]) -> None:
    """Makes everything again that was put away, and ends the old backends."""
    again = Again({device.id: device for device in jax.devices()})
    away.lost += _put_back(away.kept, again, namespace)
    away.keys.clear()
    while away.ambient:
        choose, thing = away.ambient.pop()
        choose(again(thing))
        del thing
    del again
    assert away.backends is not None
    away.is_settled &= away.backends.end()
    away.lost += left_over(namespace["names"])


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

    rebinder = Rebinder(swap)
    rebinder.rebind(roots)
    failed += rebinder.failed
    del roots, rebinder
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


def _return_memory() -> None:
    """Gives memory that has been freed back to the system, where glibc is.

    XLA and its compiler take theirs in threads, for each of which glibc has heaps of its own and
    keeps what is freed there. A backend that has gone leaves some 4 MB of that, and the next one
    has new threads.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
