"""A region of an array put together from what the shards hold of it."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from math import prod
from operator import neg

import numpy as np

from jaxnb.arrays.blocks import Index, Interval, blocks
from jaxnb.arrays.regions import Region, as_slice
from jaxnb.model.arrays import ShardInfo


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of elements that one shard gives to a region.

    Attributes:
        shard: Whose elements they are.
        source: Where they lie within the shard's own data; steps may be negative.
        target: Where they go within an array of :attr:`Region.taken_shape`; steps are 1.
    """

    shard: ShardInfo
    source: tuple[slice, ...]
    target: tuple[slice, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each dimension."""
        return tuple(part.stop - part.start for part in self.target)


def pieces(
    region: Region, shards: Iterable[ShardInfo], processes: Collection[int] | None = None
) -> tuple[list[Piece], list[Index]]:
    """Finds who gives which elements of a region, each element once.

    Args:
        region: What is wanted.
        shards: All shards of the array, of every process.
        processes: The processes that can give; None for all. Of those that hold a part, the
            one with the lowest ``replica_id`` gives it.

    Returns:
        The pieces, and the parts of the array that the region needs and none of
        ``processes`` holds: their indices in the array, as in :attr:`ShardInfo.index`.
    """
    found: list[Piece] = []
    lost: list[Index] = []
    if 0 in region.result_shape:
        return found, lost
    for block in blocks(shards):
        targets = [
            _places(positions, interval)
            for positions, interval in zip(region.ranges, block.index, strict=True)
        ]
        if not all(targets):
            continue
        holders = (s for s in block.shards if processes is None or s.process_index in processes)
        shard = next(holders, None)
        if shard is None:
            lost.append(block.index)
        else:
            found.append(_piece(shard, region, targets))
    return found, lost


def assemble(
    region: Region,
    pieces: Iterable[Piece],
    data: Callable[[Piece], np.ndarray],
    dtype: np.dtype,
    word_shape: Sequence[int] = (),
) -> np.ndarray:
    """Puts a region together in new memory.

    Args:
        region: What is wanted.
        pieces: What :func:`pieces` found for it, with nothing lost.
        data: Called once for each piece; returns the elements at its ``source``: an array of
            the piece's shape and ``word_shape``.
        dtype: Of the elements, in NumPy.
        word_shape: The trailing dimensions that each element has in NumPy.

    Returns:
        An array of the region's result shape and ``word_shape``.

    Raises:
        ValueError: The pieces do not fill the region, or data have another shape or dtype.
    """
    words = tuple(word_shape)
    if 0 in region.result_shape:
        return np.empty(region.result_shape + words, dtype)
    taken = np.empty(region.taken_shape + words, dtype)
    missing = prod(region.taken_shape)
    for piece in pieces:
        part = data(piece)
        # NumPy would broadcast or cast in silence.
        if part.shape != piece.shape + words or part.dtype != taken.dtype:
            raise ValueError(
                f"device {piece.shard.device_id} gave {part.dtype}{part.shape} "
                f"for a piece of {taken.dtype}{piece.shape + words}"
            )
        taken[piece.target] = part
        missing -= prod(piece.shape)
    if missing:
        raise ValueError(f"the pieces leave {missing} elements of {region.taken_shape} open")
    return region.finish(taken, len(words))


def _places(positions: range, interval: Interval) -> range:
    """Which of the positions, counted from 0, are in an interval: adjacent ones."""
    start, stop = interval
    if positions.step > 0:
        return range(bisect_left(positions, start), bisect_left(positions, stop))
    return range(bisect_right(positions, -stop, key=neg), bisect_right(positions, -start, key=neg))


def _piece(shard: ShardInfo, region: Region, targets: Sequence[range]) -> Piece:
    """What a shard gives, from the places that each dimension of it fills."""
    source: list[slice] = []
    for positions, places, (start, _) in zip(region.ranges, targets, shard.index, strict=True):
        part = positions[places.start : places.stop]
        source.append(as_slice(range(part.start - start, part.stop - start, part.step)))
    target = tuple(slice(places.start, places.stop) for places in targets)
    return Piece(shard, tuple(source), target)
