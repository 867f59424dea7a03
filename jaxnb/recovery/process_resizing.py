"""Variables of a group of another size, made again in this process."""

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
from jax.sharding import Mesh

from jaxnb.arrays import process_ambient
from jaxnb.arrays.dtypes import numpy_dtype
from jaxnb.arrays.process_exposures import as_bytes
from jaxnb.arrays.process_layouts import dtype_facts
from jaxnb.recovery import fit_to_size, process_arrays
from jaxnb.recovery.files import Contents
from jaxnb.recovery.fit_to_size import Box, MisfitError, SavedArray, SavedPart
from jaxnb.recovery.process_arrays import Part, Place
from jaxnb.recovery.process_listing import box_of

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
        now: Mesh | None = process_ambient.mesh()
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
    if (now := process_ambient.mesh()) is not None:
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
