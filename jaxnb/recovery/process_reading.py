"""What a process reads its variables from: its own file, or another's and the parts in all files.

A process of a group of the same size has its own. One that replaces a dead process reads what the
others hold equal from the file of one of them; in a group of another size further processes read
that of the first. Arrays over several processes are then put together from the parts in all files.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import io
import math
import operator
import pickle
import pickletools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from jaxnb.arrays import process_pushes
from jaxnb.arrays.gathered import numpy_dtype
from jaxnb.arrays.lost import MAKE_AGAIN, LostArray, LostValue, loss_of, set_text
from jaxnb.arrays.process_describe import dtype_facts
from jaxnb.arrays.process_names import paths_to
from jaxnb.arrays.process_pulls import as_bytes
from jaxnb.recovery import files, fit_to_size, process_arrays
from jaxnb.recovery.files import Contents
from jaxnb.recovery.fit_to_size import Box, MisfitError, SavedArray, SavedPart
from jaxnb.recovery.messages import Lost, Source
from jaxnb.recovery.process_arrays import Part, Place, box_of, device_at, is_array
from jaxnb.recovery.process_losses import lost_text, others_of, reason_of

_Unpickler: Any = pickle._Unpickler
"""The one that is written in Python, whose memory of what was made can be set."""

_Held = tuple[SavedPart, Sequence[memoryview]]
"""A part of an array, and the buffers of the file that it is in."""


class Reading:
    """Makes what a file has.

    In a group of another size, devices of the process whose file is read become this process's
    own. A mesh of all devices becomes a mesh of all devices there are now: the user's, if one has
    the same axis names, else one whose first axis has changed. Another mesh needs the devices that
    it had.

    Args:
        source: What is read.
        namespace: The user's here, which may have meshes.
        maps: See :func:`~jaxnb.recovery.files.read`.

    Attributes:
        source: See above.
        contents: The file that is read.
        is_own: It is this process's.
        is_resized: The group that has written it was of another size.
    """

    def __init__(self, source: Source, namespace: Mapping[str, Any], *, maps: bool = False) -> None:
        self.source, self._meshes = source, _meshes_of(namespace)
        read = {i: files.read(Path(path), maps=maps) for i, path in source.paths.items()}
        self.contents: Contents = read[source.process]
        self.is_own = source.process == jax.process_index()
        self.is_resized = source.other_size > 0
        self._lost: list[tuple[str, LostValue]] = []
        self._name = ""
        self._counts: Counter[object] = Counter(array.key for array in self.contents.arrays)
        self._parts: dict[object, list[_Held]] = {}
        for each in read.values():
            for array in each.arrays:
                found = self._parts.setdefault(array.key, [])
                found += [(part, each.parts) for part in array.parts]

    def require_fit(self) -> None:
        """Looks whether all arrays of the variables fit, before anything is made.

        Raises:
            MisfitError: One does not.
        """
        names = self.source.names
        wanted = [array for array in self.contents.arrays if not names or array.name in names]
        size = jax.process_count(), jax.local_device_count()
        fit_to_size.require_all_fit(wanted, size, self._sizes)

    def device(self, place: Place) -> jax.Device:
        """Returns the device that stands for one of before.

        Raises:
            LookupError: There is none.
        """
        platform, process, number = place
        if self.is_resized and process == self.source.process:
            return device_at((platform, None, number))
        return device_at(place)

    def mesh(self, places: Sequence[Place], mesh: Mapping[str, int], types: Any) -> Mesh:
        """Returns the mesh that stands for one of before.

        Raises:
            MisfitError, LookupError: There is none.
        """
        if len(places) == self.source.other_size:
            return self.mesh_of_all(jax.devices(places[0][0]), mesh, types)
        return process_arrays.mesh_of(map(device_at, places), mesh, types)

    def mesh_of_all(
        self, devices: Sequence[jax.Device], mesh: Mapping[str, int], types: Any
    ) -> Mesh:
        """Returns the user's mesh of the same axis names, or else one of all devices.

        Raises:
            MisfitError: There is none.
        """
        found = self._of_user(mesh)
        if found is not None:
            return found
        sizes = fit_to_size.resized(mesh, len(devices))
        return jax.make_mesh(
            (*sizes.values(),), (*sizes,), axis_types=tuple(types), devices=devices
        )

    def _sizes(self, mesh: Mapping[str, int]) -> Mapping[str, int]:
        found = self._of_user(mesh)
        return fit_to_size.resized(mesh, jax.device_count()) if found is None else dict(found.shape)

    def _of_user(self, mesh: Mapping[str, int]) -> Mesh | None:
        """Returns the mesh of the same axis names that the user has made here, if there is one."""
        alike = dict.fromkeys(each for each in self._meshes if {*each.axis_names} == {*mesh})
        now: Mesh | None = process_pushes.mesh()
        if len(alike) > 1 and now in alike:
            return now
        if len(alike) > 1:
            raise MisfitError(
                f"there are {len(alike)} meshes with the axes {', '.join(map(repr, mesh))} here; "
                "delete those that are not meant, or choose one by `jax.set_mesh`"
            )
        return next(iter(alike), None)

    def parts(self, number: int, sharding: Any) -> list[Part]:
        """Returns what this process's devices are to have of an array of the file that is read.

        Args:
            number: Which of the arrays there it is.
            sharding: Its sharding here.

        Raises:
            pickle.PicklingError: Some of its elements are in no file, or replicas differ.
        """
        array = self.contents.arrays[number]
        if self.is_own and not (self.is_resized and array.is_of_all):
            return [*self._own_parts(array, sharding)]
        if array.unreduced:
            raise pickle.PicklingError(f"it has not been summed over {array.unreduced[0]} yet")
        if not array.origin and self._is_unclear(array):
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

    def _own_parts(self, array: SavedArray, sharding: Any) -> Iterator[Part]:
        platform = next(iter(sharding.device_set)).platform
        for part in array.parts:
            sizes = tuple(b - a for a, b in part.box)
            device = device_at((platform, None, part.device))
            yield device, part.dtype, sizes, self.contents.parts[part.buffer]

    def _is_unclear(self, array: SavedArray) -> bool:
        """Whether another file may have another array where this one is."""
        if self._counts[array.key] > 1:
            return True
        if self.is_resized:
            return False
        # What the variable holds must be the same in all files.
        names = [n for n in self.contents.names if re.match(rf"{re.escape(n)}\b", array.path)]
        return max(names, key=len, default="") not in self.source.names

    def lost(
        self, kind: str, error: BaseException, stand_in: type[LostValue] = LostArray
    ) -> LostValue:
        """Returns what takes the place of something that cannot be made, and notes it."""
        reason = reason_of(error)
        what = lost_text(Lost(self._name, kind, (), reason))
        made = stand_in(what, advice=MAKE_AGAIN, kind=kind, reason=reason)
        self._lost.append((self._name, made))
        return made

    def unpacked(self, met: Callable[[str, Any], None]) -> dict[str, Any]:
        """Makes the variables of the file again.

        One that cannot be made here (a module is missing, a class's ``__setstate__`` raises) does
        not keep the rest from it: a stand-in takes its place, and that of what others share with it
        and is not whole.

        Args:
            met: Called with each name and value, when it is made.

        Raises:
            KeyboardInterrupt: It was interrupted.
        """
        contents = self.contents
        unpickler: Any = pickle.Unpickler(io.BytesIO(contents.pickle), buffers=contents.buffers)
        found: dict[str, Any] = {}
        end = 0
        with process_arrays.made_by(self):
            for name, size in contents.names.items():
                self._name, end = name, end + size
                try:
                    _, value = unpickler.load()
                except (Exception, SystemExit) as error:  # code of the user's
                    value = self.lost("value", error, LostValue)
                    unpickler = _beyond(contents, len(found), end, unpickler.memo.copy(), value)
                found[name] = value
                met(name, value)
        return found

    def losses(self, variables: Mapping[str, Any]) -> list[Lost]:
        """Returns what could not be made in variables; has each stand-in tell where it is."""
        found = paths_to(variables, {id(each) for _, each in self._lost})
        paths = {
            id(each): found[id(each)].path if id(each) in found else name
            for name, each in self._lost
            if id(each) in found or name in variables
        }
        also = others_of(variables, paths)
        told = []
        for _, each in self._lost:
            if path := paths.get(id(each)):
                kind, reason = loss_of(each)
                part = Lost(path, kind, (), reason, also=also.get(id(each), ()))
                set_text(each, lost_text(part))
                told.append(part)
        return [*dict.fromkeys(told)]


def _beyond(contents: Contents, done: int, end: int, memo: Mapping[int, Any], stand_in: Any) -> Any:
    """Returns what reads the pickles after one that failed.

    They may refer to what is in it: that is itself what was whole before it failed, texts, and what
    is found by its name; for the rest there is the stand-in.

    Args:
        contents: The file.
        done: How many pickles there are before that which failed.
        end: Where that ends.
        memo: What those, and part of it, have made.
        stand_in: What takes its place.
    """
    file, number, taken = io.BytesIO(contents.pickle[:end]), 0, 0
    for _ in range(done):
        names = [opcode.name for opcode, _, _ in pickletools.genops(file)]
        number, taken = number + names.count("MEMOIZE"), taken + names.count("NEXT_BUFFER")
    start, known = file.tell(), {k: memo[k] for k in range(number)}
    failed = _unpickler(contents, start, taken, known)
    with contextlib.suppress(Exception, SystemExit):  # again: what is half made is on its stacks
        failed.load()
    stacks = (*failed.metastack, failed.stack)
    half_made = {id(each) for stack in stacks for each in stack if not is_array(each)}
    clean: set[int] = set()
    texts: list[Any] = []
    last: Any = stand_in
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name == "MEMOIZE":
            if number not in known or _reaches(known[number], half_made, clean):
                known[number] = last
            number += 1
        elif opcode.name in ("BINGET", "LONG_BINGET"):
            texts.append(known[int(argument or 0)])
        elif opcode.name.endswith(("UNICODE", "UNICODE8", "BYTES", "BYTES8")):
            last = argument
            texts.append(argument)
        elif opcode.name == "STACK_GLOBAL":
            module, name = texts[-2:]
            last = _found_by_name(module, name, stand_in)
        elif opcode.name not in ("FRAME", "PROTO"):
            last = stand_in
            taken += opcode.name == "NEXT_BUFFER"
    return _unpickler(contents, end, taken, known)


def _reaches(made: Any, half_made: set[int], clean: set[int]) -> bool:
    """Whether something is, or refers to, what is half made: a child to its parent, say.

    Args:
        made: It.
        half_made: The ids of what is half made.
        clean: The ids of what refers to nothing of that; more are added.
    """
    seen, todo = set[int](), [made]
    while todo:
        each = todo.pop()
        if id(each) in half_made:
            return True
        if (
            id(each) in seen
            or id(each) in clean
            or isinstance(each, type | ModuleType | FunctionType)
        ):
            continue
        seen.add(id(each))
        todo += gc.get_referents(each)
    clean |= seen
    return False


def _unpickler(contents: Contents, start: int, taken: int, memo: dict[int, Any]) -> Any:
    buffers = (contents.buffers[k] for k in range(taken, len(contents.buffers)))
    made = _Unpickler(io.BytesIO(contents.pickle[start:]), buffers=buffers)
    made.memo = memo
    return made


def _found_by_name(module: str, name: str, otherwise: Any) -> Any:
    try:
        return operator.attrgetter(name)(importlib.import_module(module))
    except (Exception, SystemExit):
        return otherwise


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


def _meshes_of(namespace: Mapping[str, Any]) -> list[Mesh]:
    """Returns the meshes over all devices that are bound to names, each once."""
    meshes = [each for each in namespace.values() if issubclass(type(each), Mesh)]
    found = [each for each in meshes if not each.empty]
    if (now := process_pushes.mesh()) is not None:
        found.append(now)
    return [*dict.fromkeys(each for each in found if process_arrays.has_all_devices(each))]
