"""Which arrays over several processes are packed, and where: so that others can be made of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxnb.engine._jax_internals.arrays import is_deleted
from jaxnb.engine.layouts import unreduced_axes
from jaxnb.pickling import OutOfBand
from jaxnb.recovery.fitting import SavedArray, SavedPart
from jaxnb.recovery.process_arrays import device_at, is_array


class Listing:
    """Lists arrays while they are packed, and has their parts left out of the pickle.

    Attributes:
        arrays: The arrays, in the order in which they were met.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begins anew: the same values are packed once more."""
        self.arrays: list[SavedArray] = []
        self._met: Counter[str] = Counter()

    def numbered(self, value: Any, reduced: Any, name: str, buffers: OutOfBand) -> Any:
        """Notes an array that is about to be pickled; returns what a ``reducer_override`` returns.

        Args:
            value: What is pickled.
            reduced: What makes it again.
            name: The variable that it is in.
            buffers: Takes its parts next.
        """
        if not is_listed(value):
            return reduced
        maker, (*arguments, parts), attributes = reduced
        first = len(buffers.buffers)
        buffers.take_next = len(parts)
        sharding: Any = value.sharding
        places = sharding.addressable_devices_indices_map(value.shape)
        found = (
            SavedPart(box_of(places[device_at(place)], value.shape), dtype, first + k)
            for k, (place, dtype, _, _) in enumerate(parts)
        )
        is_named = _is_named(sharding)
        mesh = dict(sharding.mesh.shape) if is_named else {}
        spec = _spec(sharding.spec, value.ndim) if is_named else ((),) * value.ndim
        is_of_all = is_named and _is_of_all(sharding.mesh)
        shape, dtype = tuple(value.shape), str(value.dtype)
        sums = tuple(sorted(unreduced_axes(sharding)))
        number = self._met[name]
        self._met[name] += 1
        self.arrays.append(
            SavedArray(name, number, shape, dtype, mesh, is_of_all, spec, tuple(found), sums)
        )
        return maker, (*arguments, parts, len(self.arrays) - 1), attributes


def is_listed(value: Any) -> bool:
    """Whether a value is an array over several processes, or all devices, that can be read."""
    if (
        not is_array(value)
        or jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key)
        or is_deleted(value)
    ):
        return False
    sharding: Any = value.sharding
    if not sharding.is_fully_addressable:
        return True
    return _is_named(sharding) and _is_of_all(sharding.mesh)


def _is_named(sharding: Any) -> bool:
    return isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)


def _is_of_all(mesh: Mesh) -> bool:
    return bool(mesh.size == len(jax.devices(mesh.devices.flat[0].platform)))


def box_of(index: Any, shape: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Returns the part of an array that an index is, as JAX gives it."""
    return tuple(part.indices(size)[:2] for part, size in zip(index, shape, strict=True))


def _spec(spec: Any, ndim: int) -> tuple[tuple[str, ...], ...]:
    parts = [*spec, *[None] * (ndim - len(spec))]
    return tuple(
        part if isinstance(part, tuple) else (part,) if isinstance(part, str) else ()
        for part in parts
    )
