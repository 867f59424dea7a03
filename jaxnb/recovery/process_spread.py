"""Values pickled for another process of the group: what differs by process alone is left out.

Equal values have equal pickles on all processes. Devices of the process's own stand as "the first
of the process's own" where nothing else is with them. Arrays that are spread over processes leave
the pickle: each process has other parts of them.
"""

from __future__ import annotations

import functools
import math
import pickle
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jaxnb.arrays import process_pushes
from jaxnb.arrays.gathered import numpy_dtype
from jaxnb.arrays.lost import LostValue
from jaxnb.arrays.process_describe import dtype_facts
from jaxnb.arrays.process_held import as_bytes
from jaxnb.compat.jax_arrays import is_deleted
from jaxnb.recovery import fit_to_size, process_arrays
from jaxnb.recovery.files import Contents
from jaxnb.recovery.fit_to_size import Box, MisfitError, SavedArray, SavedPart
from jaxnb.recovery.process_arrays import (
    Check,
    Facts,
    Part,
    Place,
    PlainOrigin,
    box_of,
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


_Held = tuple[SavedPart, Sequence[memoryview]]
"""A part of an array, and the buffers of the file that it is in."""


@dataclass(slots=True)
class Resizing:
    """Makes what concerns devices, where there are more or fewer of them than before.

    Devices of the process whose file is read become this process's own. A mesh of all devices
    becomes a mesh of all devices there are now: the user's, if one has the same axis names, else
    one whose first axis has changed. Another mesh needs the devices that it had.

    Args:
        process: Whose file is read.
        num_devices: How many devices the group had.
        contents: The files of all processes that saved one, by process.
        meshes: The meshes that the user has made here.
    """

    process: int
    num_devices: int
    contents: Mapping[int, Contents]
    meshes: Sequence[Mesh]
    _parts: dict[object, list[_Held]] = field(default_factory=dict)
    _counts: Counter[object] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._counts.update(array.key for array in self.arrays)
        for each in self.contents.values():
            for array in each.arrays:
                found = self._parts.setdefault(array.key, [])
                found += [(part, each.buffers) for part in array.parts]

    @property
    def arrays(self) -> Sequence[SavedArray]:
        """The arrays of the file that is read."""
        return self.contents[self.process].arrays

    def require_fit(self, names: Sequence[str]) -> None:
        """Looks whether all arrays fit, before anything is made.

        Args:
            names: The variables that are wanted; all if there are none.

        Raises:
            MisfitError: One does not.
        """
        wanted = [array for array in self.arrays if not names or array.name in names]
        size = jax.process_count(), jax.local_device_count()
        fit_to_size.require_all_fit(wanted, size, self._sizes)

    def device(self, place: Place) -> jax.Device:
        """Returns the device that stands for one of before.

        Raises:
            LookupError: There is none.
        """
        platform, process, number = place
        if process == self.process:
            return process_arrays.own_device((platform, number))
        return process_arrays.device_at(place)

    def mesh(self, places: Sequence[Place], mesh: Mapping[str, int], types: Any) -> Mesh:
        """Returns the mesh that stands for one of before.

        Raises:
            MisfitError, LookupError: There is none.
        """
        if len(places) == self.num_devices:
            found = self._of_user(mesh)
            if found is not None:
                return found
            devices = jax.devices(places[0][0])
            sizes = fit_to_size.resized(mesh, len(devices))
            return jax.make_mesh((*sizes.values(),), (*sizes,), axis_types=types, devices=devices)
        is_own = {process for _, process, _ in places} == {self.process}
        find = self.device if is_own else process_arrays.device_at
        return process_arrays.mesh_of(map(find, places), mesh, types)

    def _sizes(self, mesh: Mapping[str, int]) -> Mapping[str, int]:
        found = self._of_user(mesh)
        return fit_to_size.resized(mesh, jax.device_count()) if found is None else dict(found.shape)

    def _of_user(self, mesh: Mapping[str, int]) -> Mesh | None:
        """Returns the mesh of the same axis names that the user has made here, if there is one."""
        alike = dict.fromkeys(each for each in self.meshes if {*each.axis_names} == {*mesh})
        now: Mesh | None = process_pushes.mesh()
        if len(alike) > 1 and now in alike:
            return now
        if len(alike) > 1:
            raise MisfitError(
                f"there are {len(alike)} meshes with the axes {', '.join(map(repr, mesh))} here; "
                "delete those that are not meant, or choose one by `jax.set_mesh`"
            )
        return next(iter(alike), None)

    def parts(self, number: int, sharding: Any, own: Sequence[Part]) -> list[Part]:
        """Returns what this process's devices are to have of an array of the file that is read.

        Args:
            number: Which of the arrays there it is.
            sharding: Its sharding here.
            own: What the process had of it whose file is read, by places.

        Raises:
            pickle.PicklingError: Some of its elements are in no file, or replicas differ.
        """
        array = self.arrays[number]
        if not array.is_of_all:
            mine = [each for each in own if each[0][1] == jax.process_index()]
            return [(process_arrays.device_at(place), *part) for place, *part in mine]
        if array.unreduced:
            raise pickle.PicklingError(f"it has not been summed over {array.unreduced[0]} yet")
        if not array.origin and self._counts[array.key] > 1:
            raise pickle.PicklingError("it is unclear which of several arrays it is")
        known: dict[Box, list[_Held]] = {}
        for held in self._parts[array.key]:
            known.setdefault(held[0].box, []).append(held)
        only = functools.cache(lambda box: _only(known[box]))  # each is read once
        host = dtype_facts(jax.numpy.dtype(array.dtype)).host_name
        made: dict[Box, np.ndarray[Any, Any]] = {}
        parts: list[Part] = []
        for device, index in sharding.addressable_devices_indices_map(array.shape).items():
            box = box_of(index, array.shape)
            sizes = tuple(b - a for a, b in box)
            if box in known and fit_to_size.size_of(box):
                part, data = only(box)
                parts.append((device, part.dtype, sizes, data))
                continue
            if box not in made:
                made[box] = _put_together(box, known, only, host)
            parts.append((device, host, sizes, as_bytes(made[box]).data))
        return parts


def _only(replicas: Sequence[_Held]) -> tuple[SavedPart, memoryview]:
    """Returns one of several replicas of a part, and its bytes.

    Raises:
        pickle.PicklingError: They are not equal.
    """
    (first, buffers), *others = replicas
    data = buffers[first.buffer]
    for part, theirs in others:
        if not np.array_equal(np.frombuffer(data, "u1"), np.frombuffer(theirs[part.buffer], "u1")):
            raise pickle.PicklingError("its replicas differ by process")
    return first, data


def _put_together(
    box: Box,
    known: Iterable[Box],
    only: Callable[[Box], tuple[SavedPart, memoryview]],
    dtype: str,
) -> np.ndarray[Any, Any]:
    """Returns a part of an array, made of others."""
    kind = numpy_dtype(dtype)
    whole = np.empty([b - a for a, b in box], kind)
    found = 0
    for other in known:
        common = fit_to_size.overlap(box, other)
        if common is None:
            continue
        part, data = only(other)
        sizes = [b - a for a, b in other]
        if part.dtype != dtype or len(data) != math.prod(sizes) * kind.itemsize:
            raise pickle.PicklingError("its elements were saved with another dtype or layout")
        values = np.frombuffer(data, kind).reshape(sizes)
        whole[fit_to_size.within(common, box)] = values[fit_to_size.within(common, other)]
        found += fit_to_size.size_of(common)
    if found != fit_to_size.size_of(box):
        raise pickle.PicklingError("some of its elements are in no file")
    return whole


def meshes_of(namespace: Mapping[str, Any]) -> list[Mesh]:
    """Returns the meshes over all devices that are bound to names, each once."""
    found = [each for each in namespace.values() if isinstance(each, Mesh) and not each.empty]
    if (now := process_pushes.mesh()) is not None:
        found.append(now)
    return [*dict.fromkeys(each for each in found if each.size == len(_devices_of(each)))]


def _devices_of(mesh: Mesh) -> list[jax.Device]:
    """Returns all devices of the platform of a mesh."""
    return jax.devices(mesh.devices.flat[0].platform)


@contextmanager
def resizing(how: Resizing | None) -> Iterator[None]:
    """Has what is unpickled in the block made for this group; None for one of the same size."""
    process_arrays.set_resizing(how)
    try:
        yield
    finally:
        process_arrays.set_resizing(None)
