"""What a process that is new in a group gets from the others: values that they hold equal.

Those that have outlived another first say what their names are bound to. What they hold equal is
pickled on one of them, and made on the new one; its shards of arrays that are spread over
processes come from whoever has a replica.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterable, Mapping, Sequence
from types import FunctionType, ModuleType
from typing import Any

import jax

from jaxnb.arrays.lost import LostValue, loss_of
from jaxnb.arrays.process_canonical import canonical_digest
from jaxnb.arrays.process_describe import Layout, layout_of
from jaxnb.arrays.process_names import paths_to
from jaxnb.arrays.process_packing import is_found_by_name
from jaxnb.lockstep.process_origins import ORIGINS
from jaxnb.recovery import process_arrays, process_variables
from jaxnb.recovery.messages import Box, Gift, Piece, Possession, Taken
from jaxnb.recovery.process_arrays import Part, plain_origin, wait
from jaxnb.recovery.process_classes import set_sources_of_cells, sources_of_cells
from jaxnb.recovery.process_pickling import pack
from jaxnb.recovery.process_spread import Spread, given, own_place
from jaxnb.recovery.process_unpacking import unpack
from jaxnb.recovery.process_variables import unwrapped
from jaxnb.wire.process_sentinel import ThisProcess


def survey(process: ThisProcess) -> dict[str, Possession]:
    """Describes what this process has, so that it can be compared with what others have."""
    values = process_variables.to_give(process.shell)
    return {name: _possession(name, value) for name, value in values.items()}


def give(
    process: ThisProcess, *, names: Sequence[str], died: Sequence[int], with_values: bool
) -> Gift:
    """Returns values, and the replicas that new processes need.

    Args:
        process: This process.
        names: What they are to have.
        died: The new processes.
        with_values: Return the values too; else a digest of them.
    """
    values = process_variables.to_give(process.shell)
    package = _Package({name: values[name] for name in names})
    packed = package.packed
    return Gift(
        package.digest(),
        packed.names,
        packed.pickle if with_values else b"",
        tuple(pickle.PickleBuffer(each.data) for each in packed.buffers) if with_values else (),
        tuple(package.pieces(process.index, died)),
        tuple(plain_origin(ORIGINS.of(array)) for array in package.arrays),
        tuple(package.spread.class_ids),
        sources_of_cells() if with_values else {},
    )


def take(process: ThisProcess, *, gift: Gift, pieces: Sequence[Piece]) -> Taken:
    """Binds what the others have given.

    Args:
        process: This process.
        gift: The values.
        pieces: The parts of arrays that are for this process, from all others.
    """
    parts = {(p.array, p.place): (p.dtype, p.shape, p.data) for p in pieces}
    # Copies: what is made of them may be written to, like what it was made from.
    buffers = [bytearray(buffer) for buffer in gift.buffers]
    met = process_variables.binder(process.shell)
    set_sources_of_cells(dict(gift.texts))
    with given(parts, gift.origins, gift.class_ids), jax.transfer_guard("allow"):
        unpacked = unpack(gift.pickle, buffers, gift.names, met)
    bound = process_variables.bind(process.shell, unpacked.variables)
    lost = unpacked.lost_of(bound)
    return Taken(tuple(bound), (*lost, *process_variables.bind_in_modules(unpacked.variables)))


def note_missing(process: ThisProcess, *, missing: Mapping[str, str]) -> None:
    """Has each use of variables that are missing here raise, with the reason."""
    process_variables.bind_lost(process, missing, " since it is new")


def _possession(name: str, value: Any) -> Possession:
    if type(value) is LostValue:
        return Possession(b"", loss_of(value)[1])
    package = _Package({name: value})
    if len(package.packed.lost) > len(package.spread.lost):  # others than what was before
        return Possession(b"", package.packed.lost[0].reason)
    paths = paths_to({name: value}, {id(array) for array in package.arrays})
    found = (paths.get(id(array)) for array in package.arrays)
    return Possession(
        package.digest(),
        is_common=package.spread.is_common
        or name in process_variables.COMMON_PARTS
        or _is_code(value),
        arrays=tuple(name if each is None else each.path for each in found),
        replicas=package.replica_digests(),
        origins=tuple(
            None if origin is None else origin[0] for origin in map(ORIGINS.of, package.arrays)
        ),
        lost=tuple(part.path for part in package.packed.lost),
        is_drawn=type(value).__module__.startswith("matplotlib."),
    )


def _is_code(value: Any) -> bool:
    """Whether a value is nothing but code, which all processes have run alike."""
    if isinstance(value, ModuleType | type):
        return True
    function = unwrapped(value)[-1]  # of what was jitted, say
    if not isinstance(function, FunctionType):
        return False
    has_values = function.__closure__ or function.__defaults__ or function.__kwdefaults__
    return is_found_by_name(function) or not has_values


class _Package:
    """Values, packed for another process of the group."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.spread = Spread()
        self.packed = pack(values, wait, spread=self.spread)
        self.arrays = self.spread.arrays
        known: dict[Any, Layout] = {}
        self._layouts = [layout_of(a.sharding, tuple(a.shape), known) for a in self.arrays]

    def digest(self) -> bytes:
        total = hashlib.blake2b(canonical_digest(self.packed.pickle), digest_size=16)
        for buffer in self.packed.buffers:
            total.update(buffer.data)
        return total.digest()

    def replica_digests(self) -> dict[tuple[int, Box], bytes]:
        """Digests the shards that others should hold equal; JAX never compares them."""
        found = {}
        own = jax.process_index()
        for k, layout in enumerate(self._layouts):
            replicated = {shard.index for shard in layout.shards if shard.replica_id}
            shards = [s for s in layout.shards if s.process_index == own and s.index in replicated]
            parts = self._parts(k) if shards else {}
            for shard in shards:
                data = parts[shard.device_id][-1]
                found[k, shard.index] = hashlib.blake2b(data, digest_size=16).digest()
        return found

    def pieces(self, process_index: int, died: Sequence[int]) -> Iterable[Piece]:
        """Yields the shards for new processes of which this process is to give its replica."""
        for k, layout in enumerate(self._layouts):
            givers: dict[Box, Any] = {}
            for shard in layout.shards:
                if shard.process_index not in died:
                    givers.setdefault(shard.index, shard)
            pairs = ((s, givers.get(s.index)) for s in layout.shards if s.process_index in died)
            mine = [(s, g) for s, g in pairs if g is not None and g.process_index == process_index]
            parts = self._parts(k) if mine else {}
            for shard, giver in mine:
                place = self._place(k, shard.device_id)
                yield Piece(k, shard.process_index, place, *parts[giver.device_id])

    def _parts(self, k: int) -> dict[int, Part]:
        parts = process_arrays.parts_of(self.arrays[k])
        return {device.id: tuple(part) for device, *part in parts}

    def _place(self, k: int, device_id: int) -> tuple[str, int]:
        devices: Any = self.arrays[k].sharding.device_set
        return own_place(next(device for device in devices if device.id == device_id))
