"""What a session finds out after a cell about inputs, and values, that are not equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxnb.arrays import placing, unequal
from jaxnb.lockstep.provenance import apart_text
from jaxnb.model.cells import CellReply, ValueInfo
from jaxnb.model.dispatches import Argument, DigestedArray, UnequalInput
from jaxnb.wire.sentinels import TOLD, Sentinels

DIGEST_SECONDS = 30.0
"""A process that is asked for digests of arrays' bytes, or for their names, reads much memory."""

MOST_LOOKED_INTO = 1
"""Of so many unequal arrays it is found out where they differ; of the others, that they do."""


def unequal_inputs(replies: Mapping[int, CellReply], sentinels: Sentinels) -> list[UnequalInput]:
    """Returns the replicated arrays that a cell was to compute with, and that are not equal.

    Args:
        replies: What the processes have answered.
        sentinels: They.
    """
    if not unequal.differ({i: reply.replicas for i, reply in replies.items()}):
        return []
    digested = sentinels.ask(replies, f"{TOLD}.digested", seconds=DIGEST_SECONDS)
    found = unequal.unequal_inputs(digested)
    for i, each in enumerate(found[:MOST_LOOKED_INTO]):
        found[i] = _looked_into(each, digested, sentinels)
    return found


def _looked_into(
    found: UnequalInput, digested: Mapping[int, list[DigestedArray]], sentinels: Sentinels
) -> UnequalInput:
    """Finds out where an array's replicas differ, if they are still there."""
    holders: dict[str, tuple[int, int, int]] = {}
    for process, arrays in digested.items():
        for place, array in enumerate(arrays):
            if array.key == found.array.key:
                for part in array.parts:
                    if part.index == found.index:
                        for device, digest in part.digests:
                            holders.setdefault(digest, (process, place, device))
    order = sorted(holders.values(), key=lambda held: _group_of(found, held[0], held[2]))
    if len(order) < 2:
        return found

    def ask(function: str, held: tuple[int, int, int], default: Any, **data: int) -> Any:
        process, place, device = held
        told = {"place": place, "device": device, **data}
        name = f"{TOLD}.{function}"
        return sentinels.ask([process], name, seconds=DIGEST_SECONDS, **told).get(process, default)

    chunks = [ask("chunks", each, (0, [])) for each in order]
    where = unequal.first_difference(chunks)
    if where is None:
        return found
    start, stop = where
    pieces = [ask("piece", each, b"", start=start, stop=stop) for each in order]
    return unequal.with_difference(found, where[0], pieces, is_all=len(chunks[0][1]) == 1)


def _group_of(found: UnequalInput, process: int, device: int) -> int:
    member = device if found.by_device else process
    return next((i for i, group in enumerate(found.groups) if member in group), len(found.groups))


def value_apart(replies: Mapping[int, CellReply]) -> str:
    """Returns of what parts a cell's value is made, if these are of several arrays; else nothing.

    Arrays of which each process has the whole are not meant: their bytes are compared. Nor are
    arrays over other devices on other processes: these are several arrays, and not one.
    """
    held = [_spread(reply.value) for reply in replies.values() if reply.value is not None]
    who = [i for i, reply in replies.items() if reply.value is not None]
    if len(held) < 2 or len(set(map(len, held))) > 1:
        return ""
    one: dict[object, dict[int, Argument | None]] = {}
    for i, arrays in zip(who, held, strict=True):
        for k, (where, source) in enumerate(arrays):
            one.setdefault((k, where), {})[i] = source
    return next(filter(None, map(apart_text, one.values())), "")


def _spread(info: ValueInfo) -> list[tuple[object, Argument | None]]:
    """Returns where each array of a value lies, and where it came from."""
    arrays = info.arrays or (() if info.array is None else (info.array,))
    return [(placing(each), None if each.fully_replicated else each.source) for each in arrays]
