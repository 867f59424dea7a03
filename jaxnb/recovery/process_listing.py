"""Which arrays over several processes are packed, and where: so that others can be made of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from jaxnb.arrays.process_layouts import unreduced_axes
from jaxnb.arrays.process_value_paths import paths_to
from jaxnb.compat.jax_arrays import is_deleted
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.recovery.fit_to_size import SavedArray, SavedPart
from jaxnb.recovery.process_arrays import device_at, is_array, place_of, plain_origin
from jaxnb.wire.pickling import OutOfBand


class Listing:
    """Lists arrays while they are packed, and has their parts left out of the pickle."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begins anew: the same values are packed once more."""
        self._arrays: list[SavedArray] = []
        self._met: list[Any] = []
        self._holders: dict[int, Any] = {}

    def named(self, variables: Mapping[str, Any]) -> tuple[SavedArray, ...]:
        """Returns the arrays, in the order in which they were met, with where they are.

        Args:
            variables: What was packed.
        """
        wanted = [self._holders.get(id(each), each) for each in self._met]
        found = paths_to(variables, {*map(id, wanted)})
        paths = (found[id(each)].path if id(each) in found else "" for each in wanted)
        pairs = zip(self._arrays, paths, strict=True)
        return tuple(replace(array, path=path) for array, path in pairs)

    def numbered(self, value: Any, reduced: Any, name: str, buffers: OutOfBand) -> Any:
        """Notes an array that is about to be pickled; returns what a ``reducer_override`` returns.

        Args:
            value: What is pickled.
            reduced: What makes it again.
            name: The variable that it is in.
            buffers: Takes its parts next.
        """
        if not is_listed(value):
            if isinstance(reduced[1][0], jax.Array):  # keys and refs are made of one
                self._holders[id(reduced[1][0])] = value
            return reduced
        maker, (*arguments, parts), attributes = reduced
        sharding: Any = value.sharding
        is_named = _is_named(sharding)
        is_of_all = is_named and _is_of_all(sharding.mesh)
        sums = unreduced_axes(sharding)
        found: tuple[SavedPart, ...] = ()
        if is_of_all and not sums:
            first = len(buffers.buffers)
            buffers.take_next = len(parts)
            places = sharding.addressable_devices_indices_map(value.shape)
            found = tuple(
                SavedPart(box_of(places[device_at(place)], value.shape), dtype, first + k)
                for k, (place, dtype, _, _) in enumerate(parts)
            )
        origin = plain_origin(ORIGINS.of(self._holders.get(id(value), value)))
        needs = [place_of(device)[1:] for device in sharding.device_set]
        self._arrays.append(
            SavedArray(
                name=name,
                path="",
                origin=repr(origin) if origin is not None else "",
                shape=tuple(value.shape),
                dtype=str(value.dtype),
                mesh=dict(sharding.mesh.shape) if is_named else {},
                is_of_all=is_of_all,
                needs=(1 + max(p for p, _ in needs), 1 + max(d for _, d in needs)),
                spec=_spec(sharding.spec, value.ndim) if is_named else ((),) * value.ndim,
                parts=found,
                unreduced=tuple(sorted(sums)),
            )
        )
        self._met.append(value)
        return maker, (*arguments, parts, len(self._arrays) - 1), attributes


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
    parts = [*spec.partitions, *[None] * (ndim - len(spec.partitions))]
    return tuple(
        part if isinstance(part, tuple) else (part,) if isinstance(part, str) else ()
        for part in parts
    )
