"""Values pickled for another process of the group: what differs by process alone is left out.

Equal values have equal pickles on all processes. Devices of the process's own stand as "the first
of the process's own" where nothing else is with them. Arrays that are spread over processes leave
the pickle: each process has other parts of them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jaxnb.arrays.lost import LostValue
from jaxnb.arrays.process_layouts import dtype_facts
from jaxnb.compat.jax_arrays import is_deleted
from jaxnb.recovery import process_arrays
from jaxnb.recovery.process_arrays import (
    Check,
    Facts,
    Part,
    PlainOrigin,
    is_array,
    own_device,
    place_of,
)

Pieces = Mapping[tuple[int, tuple[str, int]], tuple[Any, ...]]
"""Parts of arrays: (the array's number, the place among a process's devices) to the part."""


class Spread:
    """Tells pickle how to pickle what concerns several processes.

    Attributes:
        arrays: The arrays that are spread over processes, by the numbers that stand for them.
        class_ids: By what cloudpickle knows classes again, which each process makes by chance.
        is_common: Something that concerns several processes was met: such an array, or a mesh.
        lost: What was met that had been lost before, by id.
    """

    def __init__(self) -> None:
        self.lost: dict[int, LostValue] = {}
        self.clear()

    def clear(self) -> None:
        """Begins anew: the same values are packed once more."""
        self.arrays: list[jax.Array] = []
        self.class_ids: list[str] = []
        self.is_common = bool(self.lost)

    def reduced(self, value: Any, check: Check) -> Any:
        """Returns what a ``reducer_override`` returns; NotImplemented for whatever else."""
        kind = type(value)
        if issubclass(kind, jax.Device):
            self.is_common |= not _is_own([value])
        elif issubclass(kind, Mesh) and not value.empty:
            if not _is_own(value.devices.flat):
                self.is_common = True
                return NotImplemented
            places = [own_place(device) for device in value.devices.flat]
            axes = [*value.axis_names], [*value.axis_types]
            return _mesh, (places, [*value.devices.shape], *axes)
        elif issubclass(kind, NamedSharding | SingleDeviceSharding):
            maker, *arguments = _sharding(value)
            return maker, tuple(arguments)
        elif is_array(value) and not jax.numpy.issubdtype(value.dtype, jax.dtypes.prng_key):
            return self._array(value, check)
        return NotImplemented

    def meet_lost(self, value: LostValue) -> None:
        """Notes something that had been lost before, which all processes have lost as a rule."""
        self.is_common = True
        self.lost[id(value)] = value

    def tracked(self, class_id: str) -> _ClassId:
        """Returns what stands for a class's id: equal on all processes."""
        if class_id not in self.class_ids:
            self.class_ids.append(class_id)
        return _ClassId(self.class_ids.index(class_id))

    def _array(self, array: jax.Array, check: Check) -> Any:
        if is_deleted(array) or not is_known(array.sharding):
            return NotImplemented
        whole = check(array)
        what = process_arrays.facts_of(array), _sharding(array.sharding)
        attributes = process_arrays.added_attributes(array) or None
        if _is_own(array.sharding.device_set):
            return _own_array, (*what, own_parts(array, whole)), attributes
        self.is_common = True
        self.arrays.append(array)
        return _spread_array, (*what, len(self.arrays) - 1), attributes


class _ClassId:
    """Stands for the id of a class."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __reduce__(self) -> Any:
        return _class_id, (self._number,)


def own_parts(array: jax.Array, whole: Sequence[jax.Array] | None = None) -> list[Part]:
    """Returns what this process has of an array, by the places among its devices."""
    parts = process_arrays.parts_of(array, whole)
    return [(own_place(device), *part) for device, *part in parts]


def is_known(sharding: Any) -> bool:
    """Whether a sharding is of a kind that can be given to another process."""
    return isinstance(sharding, SingleDeviceSharding) or (
        isinstance(sharding, NamedSharding) and isinstance(sharding.mesh, Mesh)
    )


def own_place(device: Any) -> tuple[str, int]:
    """Returns the platform of a device of this process, and its place among those."""
    platform, _, number = place_of(device)
    return platform, number


def _is_own(devices: Any) -> bool:
    own = jax.process_index()
    return all(device.process_index == own for device in devices)


def _sharding(sharding: Any) -> list[Any]:
    """Returns what makes a sharding, and of what: which object it is, is no part of its value."""
    if isinstance(sharding, NamedSharding):
        spec = sharding.spec
        axes = [[*part] if isinstance(part, tuple) else part for part in spec.partitions]
        sums = sorted(spec.unreduced), sorted(spec.reduced)
        return [_named, sharding.mesh, axes, *sums, sharding.memory_kind]
    (device,) = sharding.device_set
    place = own_place(device) if _is_own([device]) else device
    return [_single, place, sharding.memory_kind]


# ------------------------------------------------------------------------- in the other process

_pieces: Pieces = {}
_origins: Sequence[PlainOrigin | None] = ()
_class_ids: Sequence[str] = ()


@contextmanager
def given(
    pieces: Pieces, origins: Sequence[PlainOrigin | None], class_ids: Sequence[str]
) -> Iterator[None]:
    """Has what is unpickled in the block made with what stands beside the pickle."""
    global _pieces, _origins, _class_ids
    _pieces, _origins, _class_ids = pieces, origins, class_ids
    try:
        yield
    finally:
        _pieces, _origins, _class_ids = {}, (), ()


def _class_id(number: int) -> str:
    return _class_ids[number]


def _named(
    mesh: Any, axes: list[Any], unreduced: list[str], reduced: list[str], kind: str | None
) -> NamedSharding:
    parts = [tuple(part) if isinstance(part, list) else part for part in axes]
    spec = jax.P(*parts, unreduced=set(unreduced), reduced=set(reduced))
    return NamedSharding(mesh, spec, memory_kind=kind)


def _single(place: Any, memory_kind: str | None) -> SingleDeviceSharding:
    device = own_device(place) if isinstance(place, tuple) else place
    return SingleDeviceSharding(device, memory_kind=memory_kind)


def _mesh(
    places: list[tuple[str, int]], shape: list[int], names: list[str], types: list[Any]
) -> Mesh:
    axes = dict(zip(names, shape, strict=True))
    return process_arrays.mesh_of(map(own_device, places), axes, types)


def _own_array(facts: Facts, made_of: list[Any], parts: list[Part]) -> jax.Array:
    maker, *arguments = made_of
    placed = [(own_device(place), *part) for place, *part in parts]
    return process_arrays.made(facts, maker(*arguments), placed)


def _spread_array(facts: Facts, made_of: list[Any], number: int) -> jax.Array:
    maker, *arguments = made_of
    sharding = maker(*arguments)
    shape, dtype, *_ = facts
    parts = []
    for device, index in sharding.addressable_devices_indices_map(tuple(shape)).items():  # in order
        found = _pieces.get((number, own_place(device)))
        sizes = [len(range(*s.indices(n))) for s, n in zip(index, shape, strict=True)]
        if 0 in sizes:  # there is nothing to give
            found = dtype_facts(jax.numpy.dtype(dtype)).host_name, sizes, b""
        if found is None:
            raise pickle.PicklingError("nobody has a replica of its shards here")
        parts.append((device, *found))
    array = process_arrays.made(facts, sharding, parts)
    process_arrays.set_origin(array, _origins[number])
    return array
