"""Private names of JAX about arrays and shardings: making one exactly as it was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax


def make_array(
    aval: Any, sharding: Any, parts: Sequence[jax.Array], *, committed: bool
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
    """
    from jax._src import array

    make: Any = getattr(array, "ArrayImpl", None)
    if make is None:
        return jax.make_array_from_single_device_arrays(
            aval.shape, sharding, list(parts), dtype=aval.dtype
        )
    made: jax.Array = make(aval, sharding, list(parts), committed=committed)
    return made


def make_deleted_array(
    aval: Any, sharding: Any, parts: Sequence[jax.Array], *, committed: bool
) -> jax.Array | None:
    """Returns an array that has been deleted; None where this JAX has no way to make one.

    Args:
        aval: See :func:`make_array`.
        sharding: See :func:`make_array`.
        parts: One empty array on each of this process's devices that the sharding has.
        committed: See :func:`make_array`.
    """
    from jax._src import array

    make: Any = getattr(array, "ArrayImpl", None)
    if make is None:
        return None
    # Without the check the parts need not have the shards' sizes: no memory is taken for them.
    made: jax.Array = make(aval, sharding, list(parts), committed=committed, _skip_checks=True)
    made.delete()
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
