"""Pure: what processes answer that were asked for one value: how it relates, what came along."""

from __future__ import annotations

import math
import pickle
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from jaxnb.arrays.blocks import Index
from jaxnb.arrays.gathered import GatheredArray, Wanted, numpy_dtype
from jaxnb.arrays.moving import Move, request_for
from jaxnb.arrays.regions import Piece, pieces, view
from jaxnb.lockstep.provenance import differing_names
from jaxnb.model.arrays import Exposed, ExposeRequest, Packed, PartRequest
from jaxnb.model.cells import CallRequest
from jaxnb.model.dispatches import Argument, Difference, Made

MOST_LEFT = 4
"""So many parts that were left on the processes are named."""


def agree(answers: Iterable[Packed]) -> bool:
    """Whether processes have one value: the same but for arrays, and these one, or equal."""
    known = list(answers)
    return len({answer.digest for answer in known}) == 1 and all(
        is_one_array(known, k) or are_equal(known, k) for k in range(len(known[0].arrays))
    )


def left_text(name: str, packed: Mapping[int, Packed]) -> str:
    """Returns which parts of a value were left on the processes; empty if none were."""
    left = list(dict.fromkeys(what for answer in packed.values() for what in answer.left))
    if not left:
        return ""
    more = [f"{len(left) - MOST_LEFT} more"] if len(left) > MOST_LEFT else []
    return (
        f"Parts of `{name}` refer to code on the processes and stayed there: "
        f"{', '.join([*left[:MOST_LEFT], *more])}. The rest was pulled."
    )


def alike(packed: Mapping[int, Packed]) -> list[list[int]]:
    """Returns which processes have one value: those of one mesh, say, where there are several."""
    groups: dict[object, list[int]] = {}
    for i, answer in packed.items():
        layouts = tuple(layout for layout, _ in answer.array_digests)
        groups.setdefault((answer.digest, layouts), []).append(i)
    return list(groups.values())


def of_different_arrays(name: str, packed: Mapping[int, Packed]) -> tuple[Difference, ...]:
    """Returns which arrays of one value are parts of different arrays on the processes.

    Of values that differ none are: each process's is given by itself, and nothing put together.
    """
    if len({answer.sources for answer in packed.values()}) == 1 or not agree(packed.values()):
        return ()
    sources = {i: pickle.loads(answer.sources) for i, answer in packed.items()}
    bound = {
        i: {
            name if len(those) == 1 else f"{name}, array {k}": Argument(
                k, name, number, Made(*made)
            )
            for k, (number, made) in enumerate(those)
            if made
        }
        for i, those in sources.items()
    }
    return differing_names(bound)


def is_one_array(answers: Iterable[Packed], index: int) -> bool:
    """Whether processes mean one global array; its devices may all be one process's."""
    return len({answer.array_digests[index][0] for answer in answers}) == 1


def are_equal(answers: Iterable[Packed], index: int) -> bool:
    """Whether each process has an array of its own, and their bytes are equal."""
    digests = {answer.array_digests[index][1] for answer in answers}
    return len(digests) == 1 and b"" not in digests


class Plan(NamedTuple):
    """Who gives what of one wanted region.

    Attributes:
        wanted: The region.
        pieces: Who gives which part.
        lost: The parts that nobody gives.
        shape: Of the array that the pieces fill.
    """

    wanted: Wanted
    pieces: Sequence[Piece]
    lost: Sequence[Index]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the result."""
        dtype = numpy_dtype(self.wanted.info.host_dtype)
        return math.prod(self.shape) * dtype.itemsize

    def allocate(self) -> np.ndarray[Any, Any]:
        """Makes the array that the pieces fill."""
        return np.empty(self.shape, numpy_dtype(self.wanted.info.host_dtype))

    def finish(self, taken: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Returns the result as it was asked for."""
        return self.wanted.region.finish(taken, len(self.wanted.info.word_shape))


def plans_of(wanted: Iterable[Wanted], able: Collection[int]) -> list[Plan]:
    """Chooses who gives which part: the first replica of those that can be reached.

    Args:
        wanted: The regions.
        able: The processes that can give data.
    """
    alike: dict[Any, Plan] = {}  # arrays that lie alike share their shards' descriptions
    plans = []
    for each in wanted:
        shards = each.info.shards if each.shard is None else (each.shard,)
        lying = id(each.info.shards), each.info.word_shape
        key = *lying, each.shard, each.region, each.key.processes
        if key not in alike:
            givers = set(each.key.processes).intersection(able)
            shape = each.region.taken_shape + each.info.word_shape
            alike[key] = Plan(each, *pieces(each.region, shards, givers), shape)
        known = alike[key]
        plans.append(Plan(each, known.pieces, known.lost, known.shape))
    return plans


def come(
    packed: Mapping[int, Packed], arrays: Sequence[GatheredArray]
) -> list[tuple[GatheredArray, Plan]]:
    """Returns the arrays whose data came with the answers, and who has given what.

    Not those of which only later replicas are left, or nothing: asking for it says so.
    """
    if any(answer.data is None for answer in packed.values()):
        return []
    found = {(i, k, device) for i, a in packed.items() for k, device, _ in a.data or ()}
    plans = plans_of((array.wanted() for array in arrays), packed)
    return [
        (array, plan)
        for array, plan in zip(arrays, plans, strict=True)
        if not plan.lost and found.issuperset(map(partial(_source, plan), plan.pieces))
    ]


def _source(plan: Plan, piece: Piece) -> tuple[int, int, int]:
    return piece.shard.process_index, plan.wanted.key.index, piece.shard.device_id


def moves_of(
    plans: Sequence[Plan],
    targets: Sequence[np.ndarray[Any, Any]],
    answers: Mapping[int, Packed | Exposed],
) -> list[Move]:
    """Returns what is to be copied where, of what processes have given."""
    data = {(i, k, device): part for i, a in answers.items() for k, device, part in a.data or ()}
    moves = []
    for plan, target in zip(plans, targets, strict=True):
        for piece in plan.pieces:
            i = piece.shard.process_index
            part, box = data[_source(plan, piece)], view(target, piece.target)
            moves.append(Move(i, answers[i].access, answers[i].transfer, part, box))
    return moves


def expose_requests(
    transfer: str, plans: Sequence[Plan], inline_bytes: int
) -> dict[int, CallRequest]:
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
    return {
        i: request_for(
            "pulls.expose",
            request=ExposeRequest(transfer, holder, tuple(those), inline_bytes),
            is_interruptible=True,
        )
        for (i, holder), those in parts.items()
    }
