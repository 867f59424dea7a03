"""Pickling for another process of the group: devices as numbers, code of cells by value.

Both processes run the same Python and the same JAX, so code objects can travel.
"""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Callable, Sequence
from types import CellType, CodeType, FunctionType, ModuleType
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding

from jaxnb.arrays.dtypes import numpy_dtype
from jaxnb.engine import _jax_internals, shards
from jaxnb.engine.definitions import reduced_class
from jaxnb.engine.exposures import as_bytes
from jaxnb.engine.keeping import assembled, is_known, key_impl, uncommitted
from jaxnb.engine.layouts import dtype_facts
from jaxnb.engine.lost import LostArray
from jaxnb.engine.packing import is_found_by_name
from jaxnb.pickling import adjacent

MakeArray = Callable[[int, list[int], str, Any, list[Any], bool], jax.Array]

_CODE_FIELDS = (
    "argcount", "posonlyargcount", "kwonlyargcount", "nlocals", "stacksize", "flags", "code",
    "consts", "names", "varnames", "filename", "name", "qualname", "firstlineno", "linetable",
    "exceptiontable", "freevars", "cellvars",
)  # fmt: skip
"""What ``CodeType`` is made of, in its order."""


class Packer(pickle.Pickler):
    """Pickles values for another process of the group.

    Equal values have equal pickles on all processes: devices of this process stand as "the
    first of the process's own" where nothing else is with them.

    Args:
        file: Where to write.
        buffer_callback: Takes buffers out of band if it returns something false.

    Attributes:
        arrays: The arrays that are spread over processes, which were left out.
        is_common: Something that concerns several processes was met: such an array, or a mesh.
    """

    def __init__(
        self, file: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None
    ) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)
        self.arrays: list[jax.Array] = []
        self.is_common = False

    def reducer_override(self, value: Any) -> Any:
        """Tells how to pickle what needs care; pickle asks for each object that is not plain."""
        match value:
            case jax.core.Tracer():
                raise pickle.PicklingError("a tracer that left its transformation (jit, grad …)")
            case jax.Array():
                return self._array(value)
            case Mesh() | NamedSharding() | SingleDeviceSharding() | jax.Device():
                return self._of_devices(value)
            case jax.stages.Compiled():
                raise pickle.PicklingError("what lower(...).compile() gave: compile it again")
            case jax.stages.Lowered():
                raise pickle.PicklingError("what lower(...) gave: lower it again")
            case ModuleType():
                return importlib.import_module, (value.__name__,)
            case FunctionType():
                return _function(value)
            case CodeType():
                return _make_code, tuple(getattr(value, f"co_{field}") for field in _CODE_FIELDS)
            case LostArray():
                self.is_common = True
            case type() if value.__module__ == "__main__":
                return reduced_class(value)
        settings = _jax_internals.jit_settings(value)
        if settings is not None:
            return _jitted, (value.__wrapped__, settings)
        return adjacent(value)

    def _array(self, array: jax.Array) -> Any:
        if array.is_deleted():
            raise pickle.PicklingError("an array that was deleted, or donated to a computation")
        if not is_known(array.sharding):
            raise pickle.PicklingError(f"an array with a {type(array.sharding).__name__}")
        # Lists, that are made here: whether two arrays share a tuple is no part of their value.
        facts = [*array.shape], dtype_facts(array.dtype).name, key_impl(array)
        sharding, weak = self._sharding(array.sharding), getattr(array, "weak_type", False)
        if _is_own(array.sharding.device_set):
            data = {
                _own_place(shard.device): _Elements.of(shard.data)
                for shard in array.addressable_shards
            }
            return _own_array, (data, sharding, *facts, array.committed, weak)
        self.is_common = True
        self.arrays.append(array)
        return _SPREAD, (len(self.arrays) - 1, *facts, sharding, weak)

    def _of_devices(self, value: Any) -> Any:
        if isinstance(value, Mesh):
            devices = list(value.devices.flat)
            own = _is_own(devices)
            self.is_common |= len({device.process_index for device in devices}) > 1
            places = [_own_place(device) if own else device.id for device in devices]
            axes = [*value.axis_names], [*value.axis_types]
            return _mesh, (own, places, [*value.devices.shape], *axes)
        if isinstance(value, jax.Device):
            # Whether "the first device" or "my first device" was meant is not known.
            device: Any = value
            return _device, (False, device.id)
        maker, *arguments = self._sharding(value)
        return maker, tuple(arguments)

    def _sharding(self, sharding: Any) -> list[Any]:
        """Returns what makes a sharding, and of what."""
        if isinstance(sharding, NamedSharding):
            spec = sharding.spec
            axes = [list(part) if isinstance(part, tuple) else part for part in spec.partitions]
            sums = sorted(spec.unreduced), sorted(spec.reduced)
            return [_named, sharding.mesh, axes, *sums, sharding.memory_kind]
        device = next(iter(sharding.device_set))
        own = _is_own([device])
        place = _own_place(device) if own else device.id
        return [_single, own, place, sharding.memory_kind]


class _Spread:
    """Stands in the pickle for :class:`Unpacker`'s maker of arrays that are spread."""

    def __call__(self, *_: Any) -> Any:
        raise NotImplementedError

    def __reduce__(self) -> str:
        return "_SPREAD"


_SPREAD = _Spread()


class Unpacker(pickle.Unpickler):
    """Reads what :class:`Packer` has written on another process.

    Args:
        file: Where to read.
        buffers: What was left out of band.
        array: Makes an array that is spread over processes: its place among those, its shape,
            dtype, kind of PRNG key, what :func:`made` makes its sharding of, and whether its type
            is weak.
    """

    def __init__(self, file: Any, buffers: Sequence[Any], array: MakeArray) -> None:
        super().__init__(file, buffers=buffers)
        self._array = array

    def find_class(self, module: str, name: str) -> Any:
        """Puts the maker of arrays in the place of what stands for it."""
        if (module, name) == (__name__, "_SPREAD"):
            return self._array
        return super().find_class(module, name)


# ---------------------------------------------------------------------- devices


def _is_own(devices: Any) -> bool:
    return all(device.process_index == jax.process_index() for device in devices)


def _own_place(device: Any) -> int:
    place: int = jax.local_devices().index(device)
    return place


def _device(own: bool, place: int) -> Any:
    if own:
        return jax.local_devices()[place]
    return next(device for device in jax.devices() if device.id == place)


def _mesh(own: bool, places: Sequence[int], shape: Any, axis_names: Any, axis_types: Any) -> Mesh:
    grid = np.empty(len(places), dtype=object)
    grid[:] = [_device(own, place) for place in places]
    return Mesh(grid.reshape(shape), tuple(axis_names), axis_types=tuple(axis_types))


def _named(
    mesh: Any, axes: list[Any], unreduced: list[str], reduced: list[str], kind: str | None
) -> NamedSharding:
    parts = [tuple(part) if isinstance(part, list) else part for part in axes]
    spec = jax.P(*parts, unreduced=set(unreduced), reduced=set(reduced))
    return NamedSharding(mesh, spec, memory_kind=kind)


def _single(own: bool, place: int, memory_kind: str | None) -> SingleDeviceSharding:
    return SingleDeviceSharding(_device(own, place), memory_kind=memory_kind)


def made(made_of: list[Any]) -> Any:
    """Returns a sharding of what makes it and of what."""
    maker, *arguments = made_of
    return maker(*arguments)


class _Elements:
    """A shard on the host, as bytes: pickle knows no bfloat16."""

    def __init__(self, shape: tuple[int, ...], dtype: str, data: Any) -> None:
        self._shape, self._dtype, self._data = shape, dtype, data

    @classmethod
    def of(cls, data: jax.Array) -> _Elements:
        host = shards.host_view(data)
        return cls(host.shape, host.dtype.name, pickle.PickleBuffer(as_bytes(host).data))

    def array(self) -> Any:
        raw = np.frombuffer(self._data, dtype=np.uint8)
        return raw.view(numpy_dtype(self._dtype)).reshape(self._shape)


def _own_array(
    data: dict[int, _Elements],
    made_of: list[Any],
    shape: list[int],
    dtype: str,
    impl: Any,
    committed: bool,
    weak: bool,
) -> jax.Array:
    """Makes an array on this process's own devices, as another has it on its own."""
    sharding = made(made_of)
    if not committed:
        (part,) = data.values()
        return uncommitted(part.array(), sharding, impl, weak=weak)
    parts = {jax.local_devices()[i].id: part.array() for i, part in data.items()}
    kind = None if impl else jax.numpy.dtype(dtype)
    return assembled(tuple(shape), kind, sharding, parts, impl, weak=weak)


# ---------------------------------------------------------------------- code


def _jitted(function: Any, settings: Any) -> Any:
    return _jax_internals.jit_again(jax.jit(function), settings)


def _function(function: FunctionType) -> Any:
    """Pickles a function by its code where it cannot be imported by its name."""
    home: str = function.__globals__.get("__name__", "")
    if is_found_by_name(function):
        return NotImplemented
    if home != "__main__" and getattr(sys.modules.get(home), "__dict__", 0) is not (
        function.__globals__
    ):
        raise pickle.PicklingError(f"the function {function.__qualname__}, of no module")
    state = {
        "cells": [_contents(cell) for cell in function.__closure__ or ()],
        "attributes": dict(function.__dict__),
        **{name: getattr(function, name) for name in _FUNCTION_ATTRIBUTES},
    }
    arguments = function.__code__, home, function.__name__, len(function.__closure__ or ())
    return _make_function, arguments, state, None, None, _fill_function


_FUNCTION_ATTRIBUTES = (
    "__defaults__", "__kwdefaults__", "__doc__", "__module__", "__qualname__", "__annotations__",
)  # fmt: skip


def _contents(cell: CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # it is still empty
        return ()


def _make_code(*fields: Any) -> CodeType:
    return CodeType(*fields)  # which pickle does not find by its name


def _make_function(code: CodeType, home: str, name: str, cells: int) -> FunctionType:
    namespace = vars(
        sys.modules["__main__"] if home == "__main__" else importlib.import_module(home)
    )
    return FunctionType(code, namespace, name, None, tuple(CellType() for _ in range(cells)))


def _fill_function(function: FunctionType, state: dict[str, Any]) -> None:
    for cell, contents in zip(function.__closure__ or (), state["cells"], strict=True):
        if contents:
            (cell.cell_contents,) = contents
    function.__dict__.update(state["attributes"])
    for name in _FUNCTION_ATTRIBUTES:
        setattr(function, name, state[name])
