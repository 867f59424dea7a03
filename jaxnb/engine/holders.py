"""What still holds things of a backend that is gone, where no walk led: found by the collector.

CPython's garbage collector knows who refers to an object, whatever kind of object that is. So
what a library keeps in a registry of its own is mended too; and what cannot be is found, its
holder is named, and using it raises an error that says what to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
from collections.abc import Iterable, Sequence
from types import FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, NoReturn

import jax
from jax.sharding import Mesh

from jaxnb.engine._jax_internals import exact_arrays as exact
from jaxnb.engine.keeping import device_of, is_array, is_of_devices, is_of_keys, type_text
from jaxnb.engine.lost import MAKE_AGAIN
from jaxnb.engine.rebinding import DirectRebinder
from jaxnb.errors import ArrayGoneError

MAX_ROUNDS = 8
"""Tuples in tuples are replaced one layer at a time."""

MAX_STEPS = 200
"""So many holders of holders are looked at to name the one that the user knows."""

MAX_NAMED = 20
"""So many things that are left are named."""


_BUFFER_TYPE: type = type(gc.get_referents(memoryview(b""))[0])
"""What a memoryview holds of the object whose memory it shows; it has no public name."""


class Replaced:
    """Something of the old backend, and what took its place.

    Args:
        old: The old thing.
        new: The new one.
    """

    __slots__ = ("new", "old")

    def __init__(self, old: Any, new: Any) -> None:
        self.old, self.new = old, new

    def is_held(self) -> bool:
        """Whether something else refers to the old thing; in doubt, yes."""
        return sys.getrefcount(self.old) > 2  # this object's reference, and the call's


def things_of_devices() -> list[Any]:
    """Returns all arrays, meshes, shardings and devices of the process, wherever they are held.

    Arrays of keys are among them, beside the arrays of their words.
    """
    wanted: dict[type, bool] = {}
    found = []
    for thing in gc.get_objects():
        kind = type(thing)
        known = wanted.get(kind)
        if known is None:
            known = wanted[kind] = _may_be_of_devices(kind)
        if known and not _is_gone(thing) and (is_of_devices(thing) or is_of_keys(thing)):
            found.append(thing)
    return found


def _is_gone(thing: Any) -> bool:
    """Whether an earlier reconnect has made an array unusable, and has told who held it."""
    return isinstance(thing, jax.Array) and type(getattr(thing, "aval", None)) is _Gone


def _may_be_of_devices(kind: type) -> bool:
    client = exact.coordination_client_type()
    stages = jax.stages.Compiled, jax.stages.Lowered
    kinds = jax.Array, Mesh, jax.sharding.Sharding, jax.Device, *stages
    return kind is client or any(issubclass(kind, each) for each in kinds)


def replace_held(replaced: Iterable[Replaced]) -> None:
    """Replaces old things wherever the collector finds them.

    Args:
        replaced: Old things and new ones. Nothing else of the caller's may refer to an old one.
    """
    table = {id(each.old): each for each in replaced}
    for _ in range(MAX_ROUNDS):
        held = {key: each for key, each in table.items() if each.is_held()}
        olds = [each.old for each in held.values()]
        before = len(table)
        own = {id(olds), *map(id, held.values())}
        holders = [h for h in gc.get_referrers(*olds) if id(h) not in own] if olds else []
        own.add(id(holders))
        del olds
        rebinder = DirectRebinder(lambda v: table[id(v)].new if id(v) in table else v)
        for holder in holders:
            with contextlib.suppress(Exception):  # it is reported as left
                new = rebinder.replace_in(holder)
                if new is not holder and id(holder) not in table:
                    table[id(holder)] = Replaced(holder, new)
                if type(holder) is dict:
                    _forget_attributes(holder)
        del holders
        if len(table) == before:  # nothing has a successor that is still to be put into its places
            return


def _forget_attributes(namespace: dict[Any, Any]) -> None:
    """Makes Python look attributes of a class up again whose namespace has been changed."""
    for owner in gc.get_referrers(namespace):
        if isinstance(owner, type):
            ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))


def left_over(names: dict[str, Any]) -> list[str]:
    """Makes what is left of old backends say so when it is used; returns it, and who holds it.

    Args:
        names: The variables of cells.
    """
    current = set(map(id, jax.devices())) | set(map(id, jax.local_devices()))
    old = []
    for thing in things_of_devices():
        device = device_of(thing)
        is_held_by_user = isinstance(thing, jax.Array | Mesh | jax.sharding.Sharding)
        if is_held_by_user and device is not None and id(device) not in current:
            old.append(thing)
    texts = []
    named = old[:MAX_NAMED]
    skip = old, named
    for thing in named:
        holder = _holder(thing, names, skip)
        if not holder and not (is_array(thing) and _is_held_as_array(thing, skip)):
            # No code can reach it: the sharding of an array that is left, the mesh of what XLA has
            # not yet let go of after a computation was broken off. Or it is an array of whose
            # memory NumPy has a view, which is as good as ever.
            continue
        texts.append(_described(thing) + (f", held by {holder}" if holder else ""))
    for thing in old:
        _make_unusable(thing)
    if len(old) > MAX_NAMED:
        texts.append(f"{len(old) - MAX_NAMED} more")
    return texts


def _is_held_as_array(thing: Any, skip: Sequence[Any]) -> bool:
    """Whether something refers to an array, but for those here and for views of its memory."""
    own = {id(each) for each in skip}
    return any(
        id(holder) not in own and not isinstance(holder, FrameType | _BUFFER_TYPE)
        for holder in gc.get_referrers(thing)
    )


def _described(thing: Any) -> str:
    return type_text(thing) if is_array(thing) else f"a {type(thing).__name__}"


def _make_unusable(thing: Any) -> None:
    if is_array(thing):
        message = f"An array ({type_text(thing)}) was made before the group was reconnected"
        if not thing.is_deleted():
            thing.delete()
        exact.replace_aval(thing, _Gone(message))
    elif isinstance(thing, Mesh):
        gone = _Gone(f"A mesh ({thing.shape}) was made before the group was reconnected")
        # What it has worked out of its devices is worked out again, and raises.
        kept = {"axis_names": thing.axis_names, "axis_types": thing.axis_types, "size": thing.size}
        vars(thing).clear()
        vars(thing).update(kept, devices=gone)


class _Gone:
    """What an old array reads its shape from, or an old mesh its devices: says that it is gone."""

    def __init__(self, what: str) -> None:
        object.__setattr__(self, "_what", what)

    def __getattribute__(self, name: str) -> Any:
        if name in ("__class__", "__reduce_ex__", "__dict__"):
            return object.__getattribute__(self, name)
        return _raise_gone(object.__getattribute__(self, "_what"))

    def __iter__(self) -> Any:
        _raise_gone(object.__getattribute__(self, "_what"))

    def __repr__(self) -> str:
        return "<gone>"


def _raise_gone(what: str) -> NoReturn:
    raise ArrayGoneError(
        f"{what}, and could not be replaced where it was held. Nothing was computed. {MAKE_AGAIN}"
    )


def _holder(thing: Any, names: dict[str, Any], skip: Sequence[Any]) -> str:
    """Returns who holds something, in words: the nearest holder that a user knows by name."""
    seen = {id(names), *map(id, skip)}
    level, steps = [thing], 0
    while level and steps < MAX_STEPS:
        above = []
        for part in level:
            for holder in gc.get_referrers(part):
                if id(holder) in seen and holder is not names:
                    continue
                seen.add(id(holder))
                steps += 1
                found = _known_as(holder, part, names)
                if found:
                    return found
                if not isinstance(holder, FrameType) and holder is not level:
                    above.append(holder)
        seen.add(id(above))
        level = above
    return ""


def _known_as(holder: Any, part: Any, names: dict[str, Any]) -> str:
    if holder is names:
        return _key_of(names, part, "`{}`")
    if type(holder) is dict and isinstance(holder.get("__name__"), str):
        module = sys.modules.get(holder["__name__"])
        if isinstance(module, ModuleType) and vars(module) is holder:
            return _key_of(holder, part, f"`{module.__name__}.{{}}`")
    if isinstance(holder, GeneratorType | FunctionType):
        kind = "generator" if isinstance(holder, GeneratorType) else "function"
        return f"the {kind} `{holder.__qualname__}`"
    return ""


def _key_of(namespace: dict[str, Any], part: Any, form: str) -> str:
    for name, value in namespace.items():
        if value is part and name != "_":
            return form.format(name)
    return ""
