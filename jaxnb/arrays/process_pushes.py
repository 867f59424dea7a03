"""A process's side of a push: room for the bytes, then arrays built of them, then names."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding

from jaxnb.arrays import blocks, process_describe
from jaxnb.arrays.blocks import Index
from jaxnb.arrays.gathered import fits, numpy_dtype
from jaxnb.arrays.lost import unpickle
from jaxnb.arrays.process_describe import require_tree
from jaxnb.arrays.process_packing import one_level
from jaxnb.arrays.refusals import SMALL_BYTES
from jaxnb.arrays.regions import view
from jaxnb.errors import UsageError
from jaxnb.launch.host import available_bytes
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.model.arrays import Exposure, LayoutReply, NotFound, Placed, PlaceRequest, Refused
from jaxnb.options import suggest
from jaxnb.wire.process_features import CellHere, Feature
from jaxnb.wire.process_sentinel import ThisProcess

_EXAMPLE = "`%spmd mesh = jax.make_mesh((jax.device_count(),), ('x',))`"


def find_mesh(namespace: Mapping[str, Any], name: str | None) -> Mesh:
    """Returns the mesh of a name; without one, the mesh that there is.

    That is the one set by ``jax.set_mesh``, else the only one that has a name.

    Raises:
        UsageError: There is none, or more than one.
    """
    # Of the type: `isinstance` also asks the object, and a dead weak proxy raises then.
    found: dict[str, Mesh] = {k: m for k, m in namespace.items() if issubclass(type(m), Mesh)}
    meshes = {key: m for key, m in found.items() if key[0] != "_"}
    if name is not None:
        if name in found:
            return found[name]
        raise UsageError(_no_such_mesh(namespace, name, meshes))
    active = jax.sharding.get_mesh()
    if not active.empty:
        return active
    if not meshes:
        raise UsageError(
            f"There is no mesh on the processes. Nothing was moved. Make one, e.g. {_EXAMPLE}."
        )
    if len(set(meshes.values())) > 1:
        raise UsageError(
            f"There is more than one mesh: {', '.join(sorted(meshes))}. Nothing was moved. "
            "Name one of them: `--mesh NAME`, in Python `mesh=`."
        )
    return next(iter(meshes.values()))


def _no_such_mesh(namespace: Mapping[str, Any], name: str, meshes: Mapping[str, Mesh]) -> str:
    if name in namespace:
        what = f"`{name}` is not a mesh but a {type(namespace[name]).__name__}"
    else:
        what = f"There is no `{name}` on the processes"
    known = f" Meshes: {', '.join(sorted(meshes))}." if meshes else f" Make one: {_EXAMPLE}."
    return f"{what}. Nothing was moved.{suggest(name, meshes)}{known}"


def sharding_of(mesh: Mesh, what: str, leaf: Any, spec: blocks.Spec) -> NamedSharding:
    """Returns the sharding of a leaf by its ``shape``; one without is a scalar.

    Raises:
        UsageError: The spec does not fit; the message says which would.
    """
    shape = tuple(getattr(leaf, "shape", ()))
    try:
        if len(spec) > len(shape):
            raise ValueError(f"it has {len(shape)} dimensions, the spec has {len(spec)} entries")
        sharding = NamedSharding(mesh, jax.P(*spec))
        sharding.shard_shape(shape)
    except Exception as error:  # for an axis named twice JAX has an exception of its own
        fits = blocks.fitting(spec, shape, dict(mesh.shape))
        raise UsageError(
            f"{what} of shape {shape} cannot be placed by {blocks.spec_text(spec)}: "
            f"{str(error).rstrip('.')}. Nothing was moved. {blocks.spec_text(fits)} fits."
        ) from None
    return sharding


def _pairs(path: str, value: Any, spec: Any) -> Iterator[tuple[str, Any, blocks.Spec]]:
    """Yields each leaf of a pytree in JAX's order, with its path and its spec.

    Args:
        path: What the user calls the value, for messages.
        value: The pytree.
        spec: One spec for all leaves, or dicts and lists of specs by the value's parts.

    Raises:
        UsageError: The containers of specs do not fit the value's.
    """
    if blocks.is_spec(spec):
        for key, leaf in jax.tree_util.tree_flatten_with_path(value)[0]:
            yield path + jax.tree_util.keystr(key), leaf, spec or ()
        return
    if (children := one_level(value)) is None:
        raise UsageError(
            f"`{path}` is a single value and has no parts, so it takes one spec, not specs for "
            "parts. Nothing was moved. Values with specs of their own must be pushed one at a "
            "time, or as one dict."
        )
    keys = [jax.tree_util.keystr(key, simple=True) for key, _ in children]
    given = spec if isinstance(spec, Mapping) else dict(enumerate(spec))
    by_name = {str(key): part for key, part in given.items()}
    if set(by_name) != set(keys):
        raise UsageError(
            f"The specs of `{path}` are for {_listed(by_name)}, the value has {_listed(keys)}. "
            "Nothing was moved. Give one spec for each part, or one for all."
        )
    for name, (key_path, part) in zip(keys, children, strict=True):
        yield from _pairs(path + jax.tree_util.keystr(key_path), part, by_name[name])


def _listed(names: Any) -> str:
    return ", ".join(map(str, names)) or "nothing"


# JAX keeps it for each thread by itself.

_noted: Any = None


class AmbientMesh(Feature):
    """Notes the mesh of the main thread when a cell has ended."""

    def over(self, _: CellHere) -> None:
        """Its code has ended."""
        global _noted
        _noted = _own()


def mesh() -> Any:
    """Returns the mesh that the cells have; None if there is none.

    In another thread than the main one, that is the one that the last cell has left.
    """
    return _own() if threading.current_thread() is threading.main_thread() else _noted


def _own() -> Any:
    found = jax.sharding.get_mesh()
    return None if found.empty else found


_NUMBERS = (bool, int, float, complex, np.generic)


@dataclass(eq=False)
class _Slot:
    """Stands in a pushed value for an array whose bytes are still to come."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: Any = None

    def blocks(self) -> dict[Any, Index]:
        """Returns which part each of this process's devices is to hold."""
        indices = self.sharding.addressable_devices_indices_map(self.shape)
        return {
            device: tuple(s.indices(n)[:2] for s, n in zip(index, self.shape, strict=True))
            for device, index in indices.items()
        }

    @property
    def layout(self) -> str:
        """How it lies over devices, the same on every process or wrong."""
        devices = [device.id for device in self.sharding.mesh.devices.flat]
        return f"{self.sharding} over devices {devices}"


_MISSING = object()


@dataclass
class Push:
    """A push that this process takes part in.

    Attributes:
        request: What is pushed.
        slots: Its arrays.
        shardings: Those of the leaves, by name.
        out_of_band: Room for what the pickle leaves out.
        blocks: Room for the arrays' parts.
        values: What was made of it, by name.
        before: What the names were bound to.
        hidden: Which of them were hidden from ``%who``.
    """

    request: PlaceRequest
    slots: list[_Slot]
    shardings: dict[str, list[Any]] = field(default_factory=dict)
    out_of_band: tuple[Exposure, ...] = ()
    blocks: dict[tuple[int, Index], Exposure] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    before: dict[str, Any] = field(default_factory=dict)
    hidden: dict[str, Any] = field(default_factory=dict)


def place(process: ThisProcess, request: PlaceRequest) -> Placed | Refused:
    """Checks that what is coming fits, and makes room for it; nothing has moved yet."""
    push = Push(request, [])
    for array in request.arrays:
        dtype = jax.dtypes.canonicalize_dtype(numpy_dtype(array.dtype))
        push.slots.append(_Slot(array.shape, np.dtype(dtype)))
    try:
        if request.place:
            _lay_out(push, process.shell.user_ns)
    except UsageError as error:
        return Refused(process.index, str(error))
    sizes = {
        (k, part): math.prod(stop - start for start, stop in part) * slot.dtype.itemsize
        for k, slot in enumerate(push.slots)
        for part in slot.blocks().values()
    }
    needed = sum(sizes.values()) + sum(request.buffers)
    if needed > SMALL_BYTES and needed > (available := available_bytes()):
        return Refused(process.index, "", needed, available)
    exposures = process.exposures
    push.out_of_band = exposures.allocate(request.transfer, request.buffers, off=True)
    rooms = exposures.allocate(request.transfer, sizes.values())
    push.blocks = dict(zip(sizes, rooms, strict=True))
    process.pushes[request.transfer] = push
    if request.data is not None:
        _fill(push, *request.data, partial(exposures.buffer, request.transfer))
        build(process, request.transfer)
    return Placed(
        process_index=process.index,
        dtypes=tuple(str(slot.dtype) for slot in push.slots),
        layouts=tuple(slot.layout for slot in push.slots),
        out_of_band=push.out_of_band,
        blocks=tuple((k, part, room) for (k, part), room in push.blocks.items()),
        access=exposures.access,
    )


def plan(
    process: ThisProcess, spec: blocks.Spec, shape: Sequence[int], dtype: str, mesh: str | None
) -> LayoutReply | NotFound:
    """Returns how an array would lie by a spec; none is made."""
    try:
        like = jax.ShapeDtypeStruct(tuple(shape), np.dtype(dtype))
        sharding = sharding_of(find_mesh(process.shell.user_ns, mesh), "An array", like, spec)
    except (UsageError, TypeError) as error:  # of NumPy, for what is no dtype
        return NotFound(process.index, str(error))
    info = process_describe.planned(like.shape, like.dtype, sharding)
    return LayoutReply(process.index, (("", replace(info, sharding="")),), 0)


def write(process: ThisProcess, transfer: str, buffer: int, start: int, data: Any) -> None:
    """Puts bytes into an allocated buffer, where the process's memory is out of reach."""
    come = np.frombuffer(data, dtype=np.uint8)
    process.exposures.buffer(transfer, buffer)[start : start + come.nbytes] = come


Room = Callable[[int], np.ndarray[Any, Any]]
"""Returns an allocated buffer, by its number."""


def _fill(push: Push, arrays: Sequence[Any], buffers: Sequence[Any], room: Room) -> None:
    for exposure, data in zip(push.out_of_band, buffers, strict=True):
        room(exposure.buffer)[:] = np.frombuffer(data, np.uint8)
    # Numbers that do not fit are refused by the notebook, and this is undone.
    with np.errstate(over="ignore", invalid="ignore", under="ignore"):
        for (k, part), exposure in push.blocks.items():
            box = view(arrays[k], (slice(*each) for each in part))
            room(exposure.buffer).view(push.slots[k].dtype).reshape(box.shape)[...] = box


def build(process: ThisProcess, transfer: str) -> None:
    """Makes the values out of the bytes that have come, and binds them, until it is undone."""
    with ORIGINS.within(transfer, "a push"):
        push, buffer = process.pushes[transfer], partial(process.exposures.buffer, transfer)
        arrays = [_array(k, push, buffer) for k in range(len(push.slots))]
        received = [buffer(room.buffer) for room in push.out_of_band]
        values = unpickle(push.request.skeleton, received, arrays.__getitem__)
        for name, placed in push.shardings.items():
            leaves, structure = jax.tree.flatten(values[name])
            filled = [_placed_number(*pair) for pair in zip(leaves, placed, strict=True)]
            values[name] = jax.tree.unflatten(structure, filled)
        jax.block_until_ready(arrays)
    shell = process.shell
    push.hidden = {n: shell.user_ns_hidden[n] for n in values if n in shell.user_ns_hidden}
    push.values, push.before = values, {n: shell.user_ns.get(n, _MISSING) for n in values}
    # Not hidden from %who: the shell would keep a reference to what it hides.
    shell.push(values)


def _array(k: int, push: Push, buffer: Room) -> jax.Array:
    slot, parts = push.slots[k], []
    for device, part in slot.blocks().items():
        data = buffer(push.blocks[k, part].buffer)
        block = data.view(slot.dtype).reshape([stop - start for start, stop in part])
        # On the CPU this memory becomes the array, uncopied: nobody may write to it again.
        data.flags.writeable = block.flags.writeable = False
        parts.append(jax.device_put(block, device))
    return jax.make_array_from_single_device_arrays(
        slot.shape, slot.sharding, parts, dtype=slot.dtype
    )


def undo(process: ThisProcess, transfer: str) -> None:
    """Ends a push, and gives its names what they were bound to, unless that has changed since."""
    if (push := process.pushes.get(transfer)) is not None:
        variables = process.shell.user_ns
        process.shell.user_ns_hidden.update(push.hidden)
        for name, before in push.before.items():
            if variables.get(name) is not push.values[name]:
                continue
            if before is _MISSING:
                del variables[name]
            else:
                variables[name] = before
    release(process, transfer)


def release(process: ThisProcess, transfer: str) -> None:
    """Ends a pull or push, finished or not, and drops its buffers."""
    process.pushes.pop(transfer, None)
    process.exposures.release(transfer)


def _lay_out(push: Push, namespace: Mapping[str, Any]) -> None:
    """Gives every array of a push its sharding.

    Raises:
        UsageError: A spec does not fit, or JAX does not see an array in its container.
    """
    request = push.request
    mesh = find_mesh(namespace, request.mesh)
    # Only the structure counts: the buffers have their sizes, and no pages yet.
    empty = [np.empty(size, dtype=np.uint8) for size in request.buffers]
    values = unpickle(request.skeleton, empty, push.slots.__getitem__)
    leaves = {name: _leaves(name, value) for name, value in values.items()}
    _require_leaves(push.slots, leaves.values())
    for name, value in values.items():
        found = [
            sharding_of(mesh, f"`{path}`", leaf, spec)
            for path, leaf, spec in _pairs(name, value, request.spec)
        ]
        push.shardings[name] = found
        for leaf, sharding in zip(leaves[name], found, strict=True):
            if isinstance(leaf, _Slot):
                _give(leaf, sharding, name)
            else:
                _number(leaf)


def _require_leaves(slots: list[_Slot], trees: Iterable[list[Any]]) -> None:
    seen = {id(leaf) for leaves in trees for leaf in leaves}
    hidden = [slot for slot in slots if id(slot) not in seen]
    if hidden:
        raise UsageError(
            f"An array of shape {hidden[0].shape} is inside an object that JAX does not take "
            "apart (its class is not a pytree), so it cannot be spread over devices. Nothing was "
            "moved. Push it without spec and mesh, or register the class with "
            "`jax.tree_util.register_dataclass`."
        )


def _leaves(name: str, value: Any) -> list[Any]:
    try:
        require_tree(value)
        return jax.tree.leaves(value)
    except Exception as error:  # keys of a dict that have no order; a class may raise anything
        raise UsageError(
            f"JAX cannot take `{name}` apart ({type(error).__name__}: {error}), so its arrays "
            "cannot be spread over devices. Nothing was moved. Push it without spec and mesh."
        ) from error


def _give(slot: _Slot, sharding: Any, name: str) -> None:
    if slot.sharding is not None and slot.sharding != sharding:
        raise UsageError(
            f"One array of `{name}` stands in two places with two specs, {slot.sharding.spec} "
            f"and {sharding.spec}. Nothing was moved. Push a copy in one of the two places."
        )
    slot.sharding = sharding


def _placed_number(leaf: Any, sharding: Any) -> Any:
    """Makes a number a replicated array, as ``jax.device_put`` would; others stay."""
    value = _number(leaf)
    if value is None:
        return leaf
    parts = [jax.device_put(value, device) for device in sharding.addressable_devices]
    return jax.make_array_from_single_device_arrays((), sharding, parts, dtype=value.dtype)


def _number(leaf: Any) -> np.ndarray[Any, Any] | None:
    """Returns a number in the dtype that JAX gives it; None for what is no number of JAX's.

    Raises:
        UsageError: It would not fit.
    """
    if not isinstance(leaf, _NUMBERS):
        return None
    value = np.asarray(leaf)
    is_of_ml_dtypes = value.dtype.isbuiltin == 2
    if value.dtype.char in "gG" or (value.dtype.kind not in "biufc" and not is_of_ml_dtypes):
        return None  # NumPy's text, dates and long doubles, and integers of more than 64 bits
    dtype = jax.dtypes.canonicalize_dtype(value.dtype)
    if not fits(value, dtype):
        raise UsageError(
            f"The number {leaf} does not fit in {dtype}, which JAX gives such numbers on the "
            "processes. Nothing was moved. Push it without spec and mesh: then it stays a Python "
            "or NumPy number."
        )
    return value.astype(dtype)
