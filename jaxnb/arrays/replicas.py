"""What the processes' descriptions of one array say together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxnb.arrays.blocks import Block, blocks
from jaxnb.model.arrays import ArrayInfo


def merged(arrays: Sequence[ArrayInfo]) -> ArrayInfo:
    """Returns all processes' descriptions of one global array as one.

    Each process knows the bytes of its own shards only: their digests, and the elements at the
    corners that it holds.
    """
    digests = {s.device_id: s.digest for a in arrays for s in a.shards if s.digest}
    shards = arrays[0].shards
    if digests:
        shards = tuple(replace(s, digest=digests.get(s.device_id, b"")) for s in shards)
    corner = dict(pair for a in arrays for pair in a.corner)
    if not (digests or corner):
        return arrays[0]
    return replace(arrays[0], shards=shards, corner=tuple(sorted(corner.items())))


def each_its_own(arrays: Sequence[ArrayInfo]) -> ArrayInfo:
    """Returns arrays that processes have each for itself, all of one shape, as one description.

    It has the shards of all, and is deleted if they are: give those that are, or those that are
    not. Without a mesh, as each has one of its own, and without a corner
    where that is not the same for all.
    """
    first = arrays[0]
    if len(arrays) == 1:
        return first
    return replace(
        first,
        sharding=first.sharding.partition("(")[0],
        mesh=None,
        shards=tuple(shard for array in arrays for shard in array.shards),
        corner=first.corner if len({array.corner for array in arrays}) == 1 else (),
    )


def lying(array: ArrayInfo) -> tuple[object, ...]:
    """Returns where an array's parts lie, however its sharding is written: `P()`, `P(None)`."""
    # Of one that is unreduced no device has the elements, but summands of them.
    summed = array.sharding if "unreduced" in array.sharding else ""
    return array.memory_kind, summed, placing(array)


def placing(array: ArrayInfo) -> tuple[object, ...]:
    """Returns the array's shape, and which device has which part."""
    return array.shape, tuple((shard.device_id, shard.index) for shard in array.shards)


def differing(array: ArrayInfo) -> list[Block]:
    """Returns the parts of an array whose replicas are known to differ."""
    digests: dict[object, bytes] = {}
    if all(
        digests.setdefault(shard.index, shard.digest) == shard.digest
        for shard in array.shards
        if shard.digest
    ):
        return []  # the common case, without sorting
    return [
        part for part in blocks(array.shards) if len({s.digest for s in part.shards} - {b""}) > 1
    ]
