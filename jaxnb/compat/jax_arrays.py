"""Arrays that come into being outside of recorded dispatches, by JAX's private names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxnb.compat.jax_runtime import reporting, wait_until_ready


def make_array(
    aval: Any, sharding: Any, parts: Sequence[jax.Array], *, committed: bool, checks: bool = True
) -> jax.Array:
    """Returns an array of a given abstract value, made of this process's shards.

    ``jax.make_array_from_single_device_arrays``, which is public, makes every array strongly
    typed and committed. It is used where this JAX has no ``ArrayImpl``, and that is what is lost
    then: weak types, and that an array is not committed.

    Args:
        aval: The abstract value: shape, dtype, weak type, and sharding without devices.
        sharding: Its sharding, on devices that there are.
        parts: Its shards on this process's devices; empty if it has none here.
        committed: Whether it is bound to its devices.
        checks: Whether JAX checks that the shards fit, which takes three quarters of the time.
    """
    from jax._src import array

    make: Any = getattr(array, "ArrayImpl", None)
    if make is None:
        return jax.make_array_from_single_device_arrays(
            aval.shape, sharding, list(parts), dtype=aval.dtype
        )
    made: jax.Array = make(
        aval, sharding, list(parts), committed=committed, _skip_checks=not checks
    )
    return made


def make_ref(array: jax.Array) -> Any:
    """Returns a ref to an array, whose buffer it takes over; nothing is computed.

    JAX from 0.11 on commits the buffer of every ref, and cannot write to one that is not
    committed: such an array, of an older JAX, is committed.

    Where this JAX has no such names, ``jax.new_ref`` copies the array: a computation of all
    processes that hold a part of it.
    """
    from jax._src import core
    from jax._src.state import types

    kind, impl = getattr(core, "Ref", None), getattr(core, "ArrayRefImpl", None)
    if kind is None or impl is None:
        return jax.new_ref(array)
    aval: Any = types.AbstractRef(jax.typeof(array))
    if not array.committed and not _may_become_committed(array):
        array = _as_committed(array, committed=True)
    return kind(aval, impl(aval, array))


def _may_become_committed(array: jax.Array) -> bool:
    """Whether a write, whose result is committed, may replace a buffer that is not."""
    buffer, written = (_as_committed(array, committed=each) for each in (False, True))
    try:
        buffer._replace_with(written)  # type: ignore[attr-defined]
    except (AttributeError, jax.errors.JaxRuntimeError):
        return False
    return True


def _as_committed(array: jax.Array, *, committed: bool) -> jax.Array:
    parts = [shard.data for shard in array.addressable_shards]
    aval: Any = array.aval
    return make_array(aval, array.sharding, parts, committed=committed)


def is_registered(kind: type) -> bool:
    """Whether a class is one of pytrees' nodes; False where this JAX does not tell."""
    from jax._src import tree_util

    return kind in getattr(tree_util, "_registry", {})


def registration_of(kind: type) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Returns what takes an object of a class apart, and puts one together, as a pytree.

    None for a class that is none, and where this JAX has no such registry: then a class of a cell
    that a decorator registers is no pytree in the process that it is carried to.
    """
    from jax._src import tree_util

    entry = getattr(tree_util, "_registry", {}).get(kind)
    return None if entry is None else (entry.to_iter, entry.from_iter)


@reporting
def hook_creations(created: Callable[[Any, Any], None]) -> None:
    """Has every array told that is made of buffers, as ``jax.make_array_from_callback`` does.

    Results of computations are not told: those are stamped after their dispatch.

    Args:
        created: Takes an array that has just been made, and what it was made of: one array of JAX
            or NumPy for each device of this process.

    Where this JAX lacks a name, such arrays have no origin.
    """
    from jax._src import array
    from jax._src.lib import xla_client  # type: ignore[attr-defined]

    batched_device_put = xla_client.batched_device_put
    init = array.ArrayImpl.__init__

    def put(aval: Any, sharding: Any, xs: Any, *rest: Any, **named: Any) -> Any:
        made = batched_device_put(aval, sharding, xs, *rest, **named)
        created(made, xs)
        return made

    def init_and_tell(
        self: Any, aval: Any, sharding: Any, arrays: Any, *rest: Any, **named: Any
    ) -> None:
        init(self, aval, sharding, arrays, *rest, **named)
        created(self, arrays)

    xla_client.batched_device_put = put
    array.ArrayImpl.__init__ = init_and_tell  # type: ignore[method-assign]


@reporting
def hook_puts(carried: Callable[[Any, Any], None], given: Callable[[Any, Any], None]) -> None:
    """Has it told that ``jax.device_put`` has made an array anew, of one that it has just made.

    JAX 0.10.2 to 0.12 make it wrongly, where an array of this process is replicated over several
    that have a device each: its only part is the whole array, so its shards cannot be had. It is
    mended.

    Args:
        carried: Takes the array that it returns, and the one before.
        given: Takes then the array that it returns, and what it was given to put.
    """
    from jax._src import dispatch

    handle = dispatch._DeferredShardArg.result_handler

    def result_handler(self: Any, put: Any) -> Any:
        made = _with_own_parts(handle(self, put))  # type: ignore[no-untyped-call]
        carried(made, put)
        given(made, self.x)
        return made

    dispatch._DeferredShardArg.result_handler = result_handler  # type: ignore[method-assign]


def _with_own_parts(made: Any) -> Any:
    parts: Any = getattr(made, "_arrays", ())
    if len(parts) != 1 or len(parts[0].sharding.device_set) == 1:
        return made
    own = made.addressable_data(0)
    return type(made)(made.aval, made.sharding, [own], committed=made.committed)


@reporting
def hook_parts(separated: Callable[[Any, list[Any]], None]) -> None:
    """Has it told when parts of arrays become arrays of their own: ``x.addressable_shards``.

    Args:
        separated: Takes an array, and arrays of one device each that were made of it.
    """
    kind: Any = array_class()
    by_device, replica = kind._arrays.__get__, kind._fully_replicated_shard

    def separate(self: Any) -> Any:
        found = by_device(self)
        if found is not None:  # it was not deleted
            separated(self, found)
        return found

    def separate_replica(self: Any) -> Any:
        found = replica(self)
        separated(self, [found])
        return found

    setattr(kind, _UNTOLD, kind._arrays)
    kind._arrays, kind._fully_replicated_shard = property(separate), separate_replica


_UNTOLD = "_jaxnb_arrays"
"""Under this name arrays have their parts where nobody is told that they were looked at."""


def _parts_of(array: Any) -> Any:
    """Returns what this process's devices hold of an array; None where it, or JAX, has no such."""
    return getattr(array, _UNTOLD if hasattr(type(array), _UNTOLD) else "_arrays", None)


def array_class() -> type:
    """Returns the class of concrete arrays, but for those of PRNG keys."""
    from jax._src import array

    return array.ArrayImpl


def is_deleted(array: Any) -> bool:
    """Whether an array was deleted or donated, or a part of it was.

    JAX donates device by device: on CPU a part that NumPy looks at stays, the others go, and
    ``array.is_deleted()`` is false. What JAX computes with the rest crashes the process. To look
    makes arrays for the parts, which JAX keeps as long as the array.
    """
    if array.is_deleted():
        return True
    if len(array.sharding.addressable_devices) < 2:
        return False
    parts = _parts_of(getattr(array, "_base_array", array)) or ()
    return any(part.is_deleted() for part in parts)


def buffer_of(value: Any) -> Any:
    """Returns the array in which a PRNG key array or a ref keeps its elements; nothing is read.

    None for what has none, and where this JAX keeps it elsewhere: then it has no origin.
    """
    # A user's object is not asked: its `__getattr__` may raise anything, or have every name.
    if issubclass(type(value), jax.Array):
        return getattr(value, "_base_array", None)
    return array_of_ref(value)


def array_of_ref(value: Any) -> Any:
    """Returns the array that a ref is to; None for what is none, or where JAX has it elsewhere."""
    kind = type(value)
    is_ref = kind.__name__ == "Ref" and kind.__module__.startswith("jax")
    return getattr(getattr(value, "_refs", None), "_buf", None) if is_ref else None


def array_of_ref_now(value: Any) -> Any:
    """Returns what :func:`array_of_ref` does, with its shards as they are now.

    JAX remembers an array's shards once they were read, and goes on to remember them when the ref
    was written to: it is made to forget them.
    """
    array = array_of_ref(value)
    own = getattr(getattr(array, "_base_array", array), "__dict__", {})
    own.pop("addressable_shards", None)
    if array is not None:
        own[_OF_REF] = True
    return array


_OF_REF = "_jaxnb_of_ref"


def is_of_ref(array: Any) -> bool:
    """Whether :func:`array_of_ref_now` has returned an array: it may be written to."""
    return _OF_REF in getattr(getattr(array, "_base_array", array), "__dict__", {})


def host_words(array: Any) -> Any:
    """Returns the elements of an array on one device for NumPy; JAX does not keep them.

    Nothing is dispatched; the array is waited for, as :func:`wait_until_ready` does. Where this JAX
    has no such method, it keeps a copy as long as the array lives, as it does for ``np.asarray``.
    """
    import numpy as np

    wait_until_ready(array)
    view = getattr(array, "_single_device_array_to_np_array_did_copy", None)
    return np.asarray(array) if view is None else view()[0]


def device_arrays(array: Any) -> list[Any]:
    """Returns what this process's devices hold of an array, each as an array of that device alone.

    ``addressable_data(i)`` is the first device's for every ``i``, where the array is replicated.
    Where this JAX has no such name, JAX keeps the arrays as long as that one lives.
    """
    found = _parts_of(array)
    return [each.data for each in array.addressable_shards] if found is None else list(found)


def data_of(array: Any) -> Any:
    """Returns what stands for an array's data: another object once a ref to it was written to.

    None for an array that is deleted, and where JAX has another form of it.
    """
    array = getattr(array, "_base_array", array)
    parts = None if array.is_deleted() else _parts_of(array)
    return parts[0] if parts else None


def refs_written(executable: Any, arguments: Sequence[Any]) -> list[Any]:
    """Returns the arrays that a computation's results replace, as refs to them were given to it.

    Empty where this JAX does not tell: then such an array keeps the origin that it had.
    """
    changes = getattr(executable, "mut", None)
    if changes is None:
        return []
    kept = [each for i, each in enumerate(arguments) if i in executable.kept_var_idx]
    given = [*kept, *changes.in_mut]
    return [buffer_of(given[i]) for i in changes.out_mut if i is not None]
