"""Pure: what processes answer that were asked for one value: how it relates, what came along."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxnb.arrays.gathered import GatheredArray, Wanted, numpy_dtype
from jaxnb.arrays.moving import Move, request_for
from jaxnb.arrays.refusals import lost_text
from jaxnb.arrays.regions import Piece, assemble, pieces, view
from jaxnb.errors import JaxnbError
from jaxnb.lockstep.provenance import differing_names
from jaxnb.model.arrays import Exposed, ExposeRequest, Packed, PartRequest
from jaxnb.model.cells import CallRequest
from jaxnb.model.dispatches import Argument, Difference

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
    if not agree(packed.values()) or len({answer.origins for answer in packed.values()}) == 1:
        return ()
    bound = {
        i: {
            name if len(answer.origins) == 1 else f"{name}, array {k}": Argument(k, name, *origin)
            for k, origin in enumerate(answer.origins)
            if origin is not None
        }
        for i, answer in packed.items()
    }
    return differing_names(bound)


def is_one_array(answers: Iterable[Packed], index: int) -> bool:
    """Whether processes mean one global array; its devices may all be one process's."""
    return len({answer.array_digests[index][0] for answer in answers}) == 1


def are_equal(answers: Iterable[Packed], index: int) -> bool:
    """Whether each process has an array of its own, and their bytes are equal."""
    digests = {answer.array_digests[index][1] for answer in answers}
    return len(digests) == 1 and b"" not in digests


SmallData = Mapping[tuple[int, int, int], Any]
"""Process, index of an array and device to the bytes of a shard, or of a slice's part of it."""


def small_data(packed: Mapping[int, Packed]) -> SmallData | None:
    """Returns the data that came with descriptions; None if they came from some only."""
    if any(answer.data is None for answer in packed.values()):
        return None
    return {
        (process, k, device): data
        for process, answer in packed.items()
        for k, device, data in answer.data or ()
    }


def fill_small(array: GatheredArray, found: SmallData) -> None:
    """Gives an array the data that came with its description, if they did."""
    wanted = array.wanted()
    dtype, words = numpy_dtype(wanted.info.host_dtype), wanted.info.word_shape
    parts, lost = pieces(wanted.region, wanted.info.shards, wanted.key.processes)
    sources = [(p.shard.process_index, wanted.key.index, p.shard.device_id) for p in parts]
    if lost or not all(source in found for source in sources):
        return  # only later replicas are left, or nothing: asking for it says so

    def data(piece: Piece) -> np.ndarray[Any, Any]:
        shard = piece.shard
        raw = np.frombuffer(found[shard.process_index, wanted.key.index, shard.device_id], dtype)
        return raw.reshape((*piece.shape, *words))

    array.keep(assemble(wanted.region, parts, data, dtype, words))


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
        i: request_for("pulls.expose", request=each, is_interruptible=True)
        for i, each in asked.items()
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
