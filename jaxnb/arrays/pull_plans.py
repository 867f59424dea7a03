"""Who gives what of the regions of arrays that are pulled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxnb.arrays.assembly import Piece, pieces
from jaxnb.arrays.dtypes import numpy_dtype
from jaxnb.arrays.gathered import Wanted
from jaxnb.arrays.moving import Move, request_for
from jaxnb.arrays.refusals import lost_text
from jaxnb.arrays.regions import view
from jaxnb.errors import JaxnbError
from jaxnb.model.arrays import Exposed, ExposeRequest, PartRequest
from jaxnb.model.cells import CallRequest


@dataclass(frozen=True, slots=True)
class Plan:
    """Who gives what of one wanted region."""

    wanted: Wanted
    pieces: tuple[Piece, ...]

    @property
    def _taken(self) -> tuple[int, ...]:
        return self.wanted.region.taken_shape + self.wanted.info.word_shape

    @property
    def nbytes(self) -> int:
        """Size of the result."""
        dtype = numpy_dtype(self.wanted.info.host_dtype)
        return math.prod(self._taken) * dtype.itemsize

    def allocate(self) -> np.ndarray[Any, Any]:
        """Makes the array that the pieces fill."""
        return np.empty(self._taken, numpy_dtype(self.wanted.info.host_dtype))

    def finish(self, taken: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the result as it was asked for."""
        return self.wanted.region.finish(taken, len(self.wanted.info.word_shape))


Alike = dict[Any, tuple[tuple[Piece, ...], Any]]
"""What was found for a region of arrays that lie alike: they share their shards' descriptions."""


def plan_of(wanted: Wanted, able: set[int], in_cells: Mapping[int, str], alike: Alike) -> Plan:
    """Chooses who gives which part: the first replica of those that can be reached.

    Args:
        wanted: The region.
        able: The processes that can give data.
        in_cells: Process index to what it is doing, for those that cannot.
        alike: What was found for others; what is found now is added.

    Raises:
        JaxnbError: Parts are on processes that cannot give them.
    """
    shards = wanted.info.shards if wanted.shard is None else (wanted.shard,)
    key = id(shards), wanted.region, wanted.key.processes
    if key not in alike:
        givers = able & set(wanted.key.processes)
        found, lost = pieces(wanted.region, shards, givers)
        if lost:
            raise JaxnbError(lost_text(wanted, lost, able, in_cells))
        alike[key] = tuple(found), shards  # held, so that their id stays their own
    return Plan(wanted, alike[key][0])


def expose_requests(transfer: str, plans: Sequence[Plan]) -> dict[int, CallRequest]:
    """Returns what processes are asked, so that their parts can be read."""
    parts: dict[tuple[int, str], list[PartRequest]] = {}
    slices: dict[int, Any] = {}  # by the id of a piece, which several plans may have
    for plan in plans:
        for piece in plan.pieces:
            key, number = plan.wanted.key, id(piece)
            if number not in slices:
                slices[number] = tuple((s.start, s.stop, s.step) for s in piece.source)
            part = PartRequest(key.index, piece.shard.device_id, slices[number])
            parts.setdefault((piece.shard.process_index, key.holder), []).append(part)
    holders = {holder for _, holder in parts}
    assert len(holders) <= 1  # a read is of the arrays of one pull or cell
    asked = {i: ExposeRequest(transfer, holder, tuple(p)) for (i, holder), p in parts.items()}
    return {
        i: request_for("expose", request=each, is_interruptible=True) for i, each in asked.items()
    }


def moves_of(
    transfer: str,
    plans: Sequence[Plan],
    targets: Sequence[np.ndarray[Any, Any]],
    answers: Mapping[int, Exposed],
) -> list[Move]:
    """Returns what is to be copied where, once they have answered."""
    exposures = {i: iter(answer.buffers) for i, answer in answers.items()}
    return [
        Move(
            piece.shard.process_index,
            answers[piece.shard.process_index].access,
            transfer,
            next(exposures[piece.shard.process_index]),
            view(target, piece.target),
        )
        for plan, target in zip(plans, targets, strict=True)
        for piece in plan.pieces
    ]
