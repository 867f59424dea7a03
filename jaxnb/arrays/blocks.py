"""Parts of an array, who holds each, and how many bytes they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from jaxnb.model.arrays import ArrayInfo, ShardInfo

Interval = tuple[int, int]
Index = tuple[Interval, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """One part of an array, with everyone who holds it.

    Attributes:
        index: For each dimension the half-open ``(start, stop)`` it covers.
        shards: Its holders: the one with ``replica_id`` 0 first.
    """

    index: Index
    shards: tuple[ShardInfo, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each dimension."""
        return tuple(stop - start for start, stop in self.index)

    @property
    def processes(self) -> tuple[int, ...]:
        """Processes that hold it, each once, in order."""
        return tuple(sorted({shard.process_index for shard in self.shards}))

    @property
    def device_ids(self) -> tuple[int, ...]:
        """Devices that hold it, in order."""
        return tuple(sorted(shard.device_id for shard in self.shards))

    def by_digest(self) -> list[tuple[int, ...]]:
        """Groups the processes whose replicas are equal, byte for byte.

        Shards without a digest are left out. More than one group means that replicas, which
        JAX takes to be equal, differ. A process whose own devices differ is in several.
        """
        groups: dict[bytes, set[int]] = {}
        for shard in self.shards:
            if shard.digest:
                groups.setdefault(shard.digest, set()).add(shard.process_index)
        return sorted(tuple(sorted(group)) for group in groups.values())


def blocks(shards: Iterable[ShardInfo]) -> tuple[Block, ...]:
    """Groups shards that cover the same part of the array, in row-major order of the parts."""
    holders: dict[Index, list[ShardInfo]] = {}
    for shard in shards:
        holders.setdefault(shard.index, []).append(shard)
    return tuple(
        Block(index, tuple(sorted(held, key=lambda s: (s.replica_id, s.device_id))))
        for index, held in sorted(holders.items())
    )


def boundaries(parts: Iterable[Block], ndim: int) -> tuple[tuple[Interval, ...], ...]:
    """Returns for each dimension the intervals that the array is cut into, in order."""
    known = list(parts)
    return tuple(tuple(sorted({part.index[d] for part in known})) for d in range(ndim))


def elements_bytes(count: int, itemsize_bits: int) -> int:
    """Returns the size of ``count`` elements; those under a byte are taken as packed."""
    return -(-count * itemsize_bits // 8)


def total_bytes(array: ArrayInfo) -> int:
    """Returns the size of the whole array, each element counted once."""
    return elements_bytes(prod(array.shape), array.itemsize_bits)


def bytes_per_device(array: ArrayInfo) -> dict[int, int]:
    """Returns device id to the size of what it holds of the array."""
    sizes: dict[int, int] = {}
    for shard in array.shards:
        if shard.process_index in array.gone:
            continue
        count = prod(stop - start for start, stop in shard.index)
        size = elements_bytes(count, array.itemsize_bits)
        sizes[shard.device_id] = sizes.get(shard.device_id, 0) + size
    return sizes
