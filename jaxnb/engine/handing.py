"""What a process that is new in a group gets from the others: names, values, replicas of shards.

The processes that have outlived another first say what their names are bound to. What they
hold equal is pickled on one of them, and read by the new one. In that pickle devices stand as
numbers, functions that cells defined as their code, and arrays that are spread over processes
as their shardings; the new process's shards of those come from whoever has a replica.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxnb import reform_hooks
from jaxnb.arrays.dtypes import numpy_dtype
from jaxnb.engine import shards
from jaxnb.engine._jax_internals.counters import COUNTS
from jaxnb.engine.canonical import canonical_digest
from jaxnb.engine.exposures import as_bytes
from jaxnb.engine.keeping import assembled, loses_shards, lost_text
from jaxnb.engine.layouts import Layout, dtype_facts, layout_of
from jaxnb.engine.lost import LostArray
from jaxnb.engine.origins import ORIGINS
from jaxnb.engine.packing import is_found_by_name
from jaxnb.engine.parcels import Packer, Unpacker, made
from jaxnb.engine.rebinding import INSIDE, paths_of
from jaxnb.model.origins import Origin
from jaxnb.model.recovery import Box, Gift, Give, Piece, Possession, Take, Taken
from jaxnb.pickling import OutOfBand


def survey(names: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Possession]:
    """Describes what names are bound to here, so that it can be compared with other processes'.

    Args:
        names: The namespace.
        hidden: What IPython and jaxnb have put there; left out where it still is what it was.
    """
    values = {**{name: read() for name, (read, _) in STATE.items()}, **of_user(names, hidden)}
    return {name: _possession(name, value) for name, value in values.items()}


def of_user(names: Mapping[str, Any], hidden: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the names that are the user's own, with what they are bound to."""
    nothing = object()
    found = {
        name: value
        for name, value in names.items()
        if not name.startswith("_") and hidden.get(name, nothing) is not value
    }
    # First what the texts of classes use, which are run when the first object needs them. Of the
    # type: `isinstance` also asks the object, which raises if it is a dead weak proxy.
    return dict(sorted(found.items(), key=lambda item: not issubclass(type(item[1]), ModuleType)))


MAX_WRAPPED = 100
"""A function that was wrapped more often, or by itself, is taken for no function."""


def _possession(name: str, value: Any) -> Possession:
    try:
        parcel = _Parcel({name: value})
        paths = paths_of({name: value}, parcel.arrays)
        return Possession(
            digest=parcel.digest(),
            is_common=name in COMMON_STATE or parcel.is_common or _is_code(value),
            arrays=tuple(paths.get(id(array), name + INSIDE) for array in parcel.arrays),
            replicas=parcel.replica_digests(),
            origins=tuple(origin and origin[0] for origin in parcel.origins()),
            was_lost=type(value) is LostArray,
            holders=parcel.holders(),
        )
    except (Exception, SystemExit) as error:  # a user's __reduce__, or a property of theirs
        return Possession(b"", _reason(error))


def _reason(error: BaseException) -> str:
    """Returns why something cannot be pickled; what pickle itself says needs no type before it."""
    is_of_pickle = isinstance(error, TypeError | pickle.PicklingError) and str(error)
    return str(error) if is_of_pickle else f"{type(error).__name__}: {error}"


def _is_code(value: Any) -> bool:
    """Whether a value is nothing but code, which all processes have run alike."""
    if isinstance(value, ModuleType | type):
        return True
    for _ in range(MAX_WRAPPED):
        if value is None or isinstance(value, FunctionType):
            break
        value = getattr(value, "__dict__", {}).get("__wrapped__")  # what was jitted
    if not isinstance(value, FunctionType):
        return False
    has_values = value.__closure__ or value.__defaults__ or value.__kwdefaults__
    return is_found_by_name(value) or not has_values


class _Parcel:
    """Values, pickled for another process of the group."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        file, out_of_band = io.BytesIO(), OutOfBand()
        packer = Packer(file, out_of_band)
        for name, value in values.items():  # with one memory: what they share stays shared
            packer.dump((name, value, size_of_tree(value)))
        self.pickle = file.getvalue()
        self.buffers = out_of_band.buffers
        self.arrays = packer.arrays
        self.is_common = packer.is_common
        known: dict[Any, Layout] = {}
        self._layouts = [layout_of(a.sharding, tuple(a.shape), known) for a in self.arrays]

    def digest(self) -> bytes:
        total = hashlib.blake2b(canonical_digest(self.pickle), digest_size=16)
        for buffer in self.buffers:
            total.update(buffer.data)
        return total.digest()

    def origins(self) -> tuple[Origin | None, ...]:
        """Returns where the arrays come from."""
        return tuple(map(ORIGINS.of, self.arrays))

    def holders(self) -> tuple[frozenset[int], ...]:
        """Returns the processes that have a part of each array."""
        return tuple(frozenset(s.process_index for s in each.shards) for each in self._layouts)

    def replica_digests(self) -> dict[tuple[int, Box], bytes]:
        """Digests the shards that others should hold equal; JAX never compares them."""
        found = {}
        own = jax.process_index()
        for k, layout in enumerate(self._layouts):
            replicated = {shard.index for shard in layout.shards if shard.replica_id}
            for shard in layout.shards:
                if shard.process_index == own and shard.index in replicated:
                    data = _host_bytes(self.arrays[k], shard.device_id)
                    found[k, shard.index] = hashlib.blake2b(data, digest_size=16).digest()
        return found

    def pieces(self, process_index: int, replaced: Sequence[int]) -> list[Piece]:
        """Returns the shards for new processes of which this process is to give its replica."""
        found = []
        for k, layout in enumerate(self._layouts):
            givers: dict[Box, Any] = {}
            for shard in layout.shards:
                if shard.process_index not in replaced:
                    givers.setdefault(shard.index, shard)
            for shard in layout.shards:
                giver = givers.get(shard.index)
                if shard.process_index not in replaced:
                    continue
                if giver is not None and giver.process_index == process_index:
                    data = _host_bytes(self.arrays[k], giver.device_id)
                    found.append(
                        Piece(k, shard.device_id, shard.process_index, pickle.PickleBuffer(data))
                    )
        return found


def _host_bytes(array: jax.Array, device_id: int) -> Any:
    return as_bytes(shards.host_view(shards.shard_of(array, device_id))).data


def give(request: Give, process_index: int, names: Mapping[str, Any]) -> Gift:
    """Pickles the values of names, and the replicas that new processes need."""
    values = {name: STATE[name][0]() if name in STATE else names[name] for name in request.names}
    parcel = _Parcel(values)
    return Gift(
        digest=parcel.digest(),
        pickle=parcel.pickle if request.with_values else b"",
        buffers=tuple(pickle.PickleBuffer(each.data) for each in parcel.buffers)
        if request.with_values
        else (),
        pieces=tuple(parcel.pieces(process_index, request.replaced)),
        origins=parcel.origins() if request.with_values else (),
    )


def size_of_tree(value: Any) -> tuple[int, int]:
    """Returns numbers that are other ones where JAX does not know a class for a pytree."""
    try:
        structure: Any = jax.tree.structure(value)
    except Exception:  # raised by the flattening of the user's own class
        return 0, 0
    return structure.num_leaves, structure.num_nodes


def take(request: Take, names: dict[str, Any]) -> Taken:
    """Binds names to what the others have given; to none of it if one of them fails."""
    data = {(piece.array, piece.device_id): piece.data for piece in request.pieces}

    def array(
        k: int, shape: list[int], dtype: str, impl: Any, made_of: list[Any], weak: bool
    ) -> Any:
        sharding = made(made_of)
        if loses_shards(sharding, tuple(shape), frozenset(request.dead)):
            return LostArray(lost_text(sharding, tuple(shape), dtype, request.dead))
        found = _filled(tuple(shape), dtype, impl, sharding, lambda i: piece_of(k, i), weak)
        ORIGINS.carry(request.origins[k], found)
        return found

    def piece_of(k: int, device_id: int) -> Any:
        if (k, device_id) not in data:
            raise pickle.PicklingError("its shards here were not rescued, and nobody has replicas")
        return data[k, device_id]

    # Copies: what is made of them may be written to, like what it was made from.
    buffers = [bytearray(buffer) for buffer in request.buffers]
    unpacker = Unpacker(io.BytesIO(request.pickle), buffers, array)
    before = dict(names)
    for name in request.names:
        try:
            _, value, size = unpacker.load()
            if size_of_tree(value) != size:
                raise TypeError("a class in it is registered as a pytree: run that cell again")
            if name in STATE:
                STATE[name][1](value)
            else:
                names[name] = value  # at once: the text of a class may use it
        except (Exception, SystemExit) as error:  # a module that is not found, a __setstate__
            names.clear()
            names.update(before)
            return Taken({name: _reason(error)})
    return Taken({}, sum(len(piece.data) for piece in request.pieces))


def _filled(
    shape: tuple[int, ...],
    dtype: str,
    impl: Any,
    sharding: Any,
    data: Callable[[int], Any],
    weak: bool,
) -> jax.Array:
    """Makes this process's part of an array from its shards' bytes."""
    kind = None if impl else jnp.dtype(dtype)
    words = tuple(jax.random.key_data(jax.random.key(0, impl=impl)).shape) if impl else ()
    host = numpy_dtype(dtype_facts(kind).host_name if kind is not None else "uint32")
    parts = {}
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        part = [len(range(*s.indices(n))) for s, n in zip(index, shape, strict=True)]
        # Of shards without elements nobody sends any.
        raw = np.frombuffer(data(device.id) if 0 not in part else b"", dtype=np.uint8)
        parts[device.id] = raw.view(host).reshape((*part, *words))
    return assembled(shape, kind, sharding, parts, impl, weak=weak)


def _settings() -> dict[str, Any]:
    values = jax.config.values
    plain = {k: v for k, v in values.items() if isinstance(v, bool | int | float | str | None)}
    return {k: v for k, v in sorted(plain.items()) if k not in _SETTINGS_OF_JOINING}


def _set_settings(settings: dict[str, Any]) -> None:
    now = jax.config.values
    for name, value in settings.items():
        if now.get(name) != value:
            with contextlib.suppress(Exception):  # it cannot be changed any more
                jax.config.update(name, value)


_SETTINGS_OF_JOINING = (
    "jax_platforms", "jax_num_cpu_devices", "jax_cpu_collectives_implementation",
)  # fmt: skip


def _mesh() -> Any:
    mesh = jax.sharding.get_mesh()
    return None if mesh.empty else mesh


def _set_mesh(mesh: Any) -> None:
    if mesh is not None:
        jax.set_mesh(mesh)


def _set_path(path: list[str]) -> None:
    sys.path[:] = path


STATE: dict[str, tuple[Callable[[], Any], Callable[[Any], object]]] = {
    "jax.config": (_settings, _set_settings),
    "sys.path": (lambda: list(sys.path), _set_path),
    "os.getcwd()": (os.getcwd, os.chdir),
    "np.random.get_state()": (np.random.get_state, np.random.set_state),
    "random.getstate()": (random.getstate, random.setstate),
    "jax.set_mesh(…)": (_mesh, _set_mesh),
    "jaxnb.on_reform(…)": (reform_hooks.functions, reform_hooks.set_functions),
    **COUNTS,
}
"""What belongs to no name, in the order in which it is to be taken: how to read and to set it."""

COMMON_STATE = (
    "jax.config", "sys.path", "os.getcwd()", "jax.set_mesh(…)", "jaxnb.on_reform(…)", *COUNTS,
)  # fmt: skip
"""What is the same on every process by its nature."""
