"""What a process puts away before it leaves its group: everything of its backend, copied.

The copies are made while nothing has changed yet. Whoever cannot make them, or does not come as far
as that, has lost nothing: its variables can still be read out, and it can be replaced. A process
that has left and could not join keeps its copies for the next attempt.
"""

from __future__ import annotations

import contextlib
import gc
import inspect
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import jax

from jaxnb.engine import _jax_internals, settling
from jaxnb.engine.holders import things_of_devices
from jaxnb.engine.keeping import (
    Kept,
    KeptArray,
    KeptView,
    LostShards,
    Unkept,
    added_attributes,
    is_array,
    is_of_keys,
    loses_shards,
    lost_with,
    put_away,
)
from jaxnb.engine.rebinding import INSIDE, paths_of
from jaxnb.engine.unkept import name_unkept
from jaxnb.model.recovery import UnkeptArray


class Away:
    """What this process has put away, until it is back in a group.

    An attempt to join that fails leaves it as it is: the next one goes on with it.

    Attributes:
        kept: Everything that belongs to the backend, and what each thing is made again from.
        arrays: How many arrays are kept.
        nbytes: Their bytes on this process.
        lost: What else could not be kept, in words.
        unkept: Arrays that could not be kept.
        without: Names of arrays that had shards on dead processes only.
        keys: Arrays of PRNG keys: the arrays of their words, which are kept, are put back in them.
        ambient: How to set again what the user has set for all calls, and to what.
        backends: The old backends, once they are being left.
        seconds: What it took to put it away.

    Raises:
        MemoryError: There is no room for the copies; nothing has changed.
    """

    def __init__(self) -> None:
        started = time.perf_counter()
        _drop_finished_calls()
        things = things_of_devices()
        self.is_settled = settling.settle([thing for thing in things if is_array(thing)])
        del things
        # Which looks for all things again: among those before were the tokens of ordered effects,
        # which are arrays too, and which settling has dropped.
        self.kept, self.keys = _put_away_all()
        self.arrays = self.nbytes = 0
        self.lost: list[str] = []
        self.unkept: tuple[UnkeptArray, ...] = ()
        self.without: dict[str, None] = {}
        self.ambient: list[tuple[Callable[[Any], object], Any]] = []
        self.backends: settling.Backends | None = None
        self.seconds = time.perf_counter() - started

    @property
    def has_left(self) -> bool:
        """Whether the old arrays are gone: the copies are all there is."""
        return self.backends is not None

    def leave(self, dead: frozenset[int], names: dict[str, Any]) -> None:
        """Lets the old backend go, as far as that has not been done."""
        self._lose(dead, names)
        if self.backends is None:
            self.backends = settling.Backends()
            self.unkept = name_unkept(self.kept, names)
            self.arrays, self.nbytes = _delete_all(self.kept)
            self.lost = [
                how.text
                for thing, how in self.kept
                if isinstance(how, Unkept) and not is_array(thing)
            ]
            self.ambient = _take_back_ambient()

    def _lose(self, dead: frozenset[int], names: dict[str, Any]) -> None:
        """Gives up what had shards on dead processes only."""
        things = [*self.kept, *((key, None) for key in self.keys)]
        lost = [(thing, how) for thing, how in things if _is_lost(thing, how, dead)]
        if not lost:
            return
        paths = paths_of(names, [thing for thing, _ in lost])
        inside = {id(part) for thing, _ in lost for part in vars(thing).values()}
        of_words = {id(thing): how for thing, how in self.kept}
        gone = {
            id(t): LostShards(t, how or _how_of_words(t, of_words), paths.get(id(t), ""), dead)
            for t, how in lost
        }
        names_of_lost = {each.name: None for each in gone.values()}
        for name in names_of_lost:  # but not the words within keys that are lost themselves
            if not name.endswith(INSIDE) or name.removesuffix(INSIDE) not in names_of_lost:
                self.without[name] = None
        wholes = {id(how) for _, how in lost}
        kept: list[tuple[Any, Kept]] = [(thing, gone[id(thing)]) for thing, _ in lost]
        for thing, how in self.kept:
            # Not the array in an array of keys, which is lost itself.
            if id(thing) in gone or id(thing) in inside:
                continue
            is_view = isinstance(how, KeptView) and id(how.whole) in wholes
            kept.append((thing, put_away(thing) if is_view else how))
        self.kept[:] = kept
        self.keys = [key for key in self.keys if id(key) not in gone]


def _how_of_words(key: Any, hows: Mapping[int, Kept]) -> Kept | None:
    """Returns what is kept of the array of an array of keys' words."""
    return next((hows[id(part)] for part in vars(key).values() if id(part) in hows), None)


def _is_lost(thing: Any, how: Kept | None, dead: frozenset[int]) -> bool:
    """Whether dead processes had shards of an array that nobody else has."""
    if not isinstance(thing, jax.Array) or not dead or isinstance(how, KeptView | LostShards):
        return False
    if isinstance(how, KeptArray):
        return not how.is_deleted and loses_shards(how.sharding, how.shape, dead)
    return lost_with(thing, dead)


def _put_away_all() -> tuple[list[tuple[Any, Kept]], list[Any]]:
    """Returns all that belongs to the backend, with what it is made again from; and the keys."""
    things = things_of_devices()
    client = _jax_internals.coordination_client()  # of which the collector knows nothing
    if client is not None and not any(thing is client for thing in things):
        things.append(client)
    # An array over several devices first: JAX keeps an array for each of its shards beside it.
    things.sort(key=lambda thing: not (is_array(thing) and len(thing.sharding.device_set) > 1))
    keys = [thing for thing in things if is_of_keys(thing)]
    things = [thing for thing in things if not is_of_keys(thing)]
    kept: dict[int, Kept] = {}
    views: dict[int, tuple[KeptArray, int]] = {}
    for thing in things:
        if id(thing) in views:
            kept[id(thing)] = KeptView(*views[id(thing)], added_attributes(thing))
            continue
        found = kept[id(thing)] = put_away(thing)
        if isinstance(found, KeptArray):
            views.update({key: (found, device) for key, device in found.views.items()})
    return [(thing, kept[id(thing)]) for thing in things], keys


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
