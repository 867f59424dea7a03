"""What a session finds out about unequal inputs after a cell, and what it marks for them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from jaxnb import unequal
from jaxnb.arrays import placing
from jaxnb.divergence import of_unsure_inputs
from jaxnb.labels import suspect_text
from jaxnb.model import ArrayInfo, CellReply, Divergence, Recording, ValueInfo
from jaxnb.model.origins import Argument
from jaxnb.model.replicas import DigestedArray, UnequalInput
from jaxnb.provenance import apart_text, differ_in_number_only
from jaxnb.result import CellResult
from jaxnb.transport.sidechannel import Sentinels

MOST_LOOKED_INTO = 1
"""Of so many unequal arrays it is found out where they differ; of the others, that they do."""


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What rests on unequal inputs after a cell.

    Attributes:
        result: The cell's result, with it.
        notice: What is to be said; empty for nothing.
        marks: All marks of the processes, if they were asked to mark something.
    """

    result: CellResult
    notice: str = ""
    marks: Mapping[int, str] = field(default_factory=dict)


def suspicion(
    result: CellResult,
    replies: Mapping[int, CellReply],
    sentinels: Sentinels,
    everyone: Iterable[int],
    *,
    is_diverged: bool,
) -> Suspicion:
    """Returns what of a cell's result rests on unequal inputs, and has the processes mark it.

    Args:
        result: The result.
        replies: What the processes have answered.
        sentinels: They.
        everyone: The processes of the group that live.
        is_diverged: Whether what they computed since they diverged is suspect.
    """
    found = _unequal(replies, sentinels)
    told = {cause for reply in replies.values() for cause in reply.suspect}
    divergence = result.divergence if is_diverged else None
    causes = {each.array.origin: unequal.cause_of(each, result.cell) for each in found}
    marks: dict[int, str] = {}
    if found or divergence is not None:
        since = {} if divergence is None else _since(divergence)
        told.update(causes.values(), (why for _, why in since.values()))
        for of_process in sentinels.mark(everyone, causes, since).values():
            marks.update(of_process)
    if not told and not any(_suspects(each) for each in _infos(result)):
        return Suspicion(result)
    result = _marked(result, marks, "; ".join(sorted(told)))
    if found:
        before = {cause.partition(" (")[0] for reply in replies.values() for cause in reply.suspect}
        is_known = all(unequal.cause_of(each, 0).partition(" (")[0] in before for each in found)
        has_run = not any(e.type_name == "DivergenceError" for e in result.errors.values())
        text = unequal.describe(found, result.cell, has_run)
        if is_known:
            text = unequal.again(found, has_run)
        return Suspicion(replace(result, unequal=tuple(found)), text, marks)
    if told and divergence is None and not result.suspect:
        return Suspicion(result, f"This cell {suspect_text('; '.join(sorted(told)))}.")
    return Suspicion(result, marks=marks)


def _unequal(replies: Mapping[int, CellReply], sentinels: Sentinels) -> list[UnequalInput]:
    if not unequal.differ({i: reply.replicas for i, reply in replies.items()}):
        return []
    digested = sentinels.digested(replies)
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
    first, second = order[:2]
    mine, its = sentinels.replica_chunks(*first), sentinels.replica_chunks(*second)
    where = unequal.first_difference((mine[0], its[0]), (mine[1], its[1]))
    if where is None:
        return found
    pieces = sentinels.replica_bytes(*first, *where), sentinels.replica_bytes(*second, *where)
    return unequal.with_difference(found, where[0], pieces, is_all=len(mine[1]) == 1)


def _group_of(found: UnequalInput, process: int, device: int) -> int:
    member = device if found.by_device else process
    return next((i for i, group in enumerate(found.groups) if member in group), len(found.groups))


def _since(divergence: Divergence) -> dict[tuple[int, ...], tuple[int, str]]:
    processes = {s.dispatch.processes for s in divergence.sides if s.dispatch is not None}
    why = f"the processes diverged in cell [{divergence.cell}]"
    lines = {s.dispatch.line for s in divergence.sides if s.dispatch is not None} - {None}
    if lines:
        why += f" at line {min(line for line in lines if line is not None)}"
    return {each: (max(1, divergence.number), why) for each in processes}


def of_same_inputs(
    recordings: Mapping[int, Recording], unknown: Collection[int], sentinels: Sentinels
) -> set[tuple[tuple[int, ...], int]]:
    """Returns the dispatches whose inputs are the same arrays, though numbered differently."""
    same = set()
    for processes, numbers in of_unsure_inputs(recordings, unknown).items():
        asked = [i for i in processes if i not in unknown]
        found = sentinels.arguments_of(processes, numbers, asked)
        for number, given in zip(numbers, found, strict=True):
            if differ_in_number_only(given, asked):
                same.add((processes, number))
    return same


def with_apart(result: CellResult) -> CellResult:
    """Returns a result that says where an array in its value is made of parts of several.

    Arrays of which each process has the whole are not meant: their bytes are compared. Nor are
    arrays over other devices on other processes: these are several arrays, and not one.
    """
    infos = {i: r.value_info for i, r in result.per_process.items() if r.value_info is not None}
    held = {i: _spread(info) for i, info in infos.items()}
    if len(held) < 2 or len({len(each) for each in held.values()}) > 1:
        return result
    one: dict[object, dict[int, Argument | None]] = {}
    for i, arrays in held.items():
        for k, (where, source) in enumerate(arrays):
            one.setdefault((k, where), {})[i] = source
    text = next(filter(None, map(apart_text, one.values())), "")
    if not text:
        return result
    per_process = dict(result.per_process)
    for i, info in infos.items():
        if info.array is not None:
            array = replace(info.array, suspect=info.array.suspect or text)
            per_process[i] = replace(per_process[i], value_info=replace(info, array=array))
    return replace(result, per_process=per_process, suspect=result.suspect or text)


def _spread(info: ValueInfo) -> list[tuple[object, Argument | None]]:
    """Returns where each array of a value lies, and where it came from."""
    arrays = info.arrays or (() if info.array is None else (info.array,))
    return [(placing(each), None if each.fully_replicated else each.source) for each in arrays]


def _infos(result: CellResult) -> list[ValueInfo]:
    return [r.value_info for r in result.per_process.values() if r.value_info is not None]


def _suspects(info: ValueInfo) -> str:
    arrays = (*info.arrays, *(() if info.array is None else (info.array,)))
    return next((each.suspect for each in arrays if each.suspect), "")


def _marked(result: CellResult, marks: Mapping[int, str], told: str) -> CellResult:
    """Returns a result with what its values rest on."""

    def marked(array: ArrayInfo) -> ArrayInfo:
        cause = marks.get(array.origin, array.suspect)
        return array if cause == array.suspect else replace(array, suspect=cause)

    per_process = {}
    for i, each in result.per_process.items():
        info = each.value_info
        if info is not None:
            array = None if info.array is None else marked(info.array)
            info = replace(info, array=array, arrays=tuple(map(marked, info.arrays)))
            each = replace(each, value_info=info)  # noqa: PLW2901
        per_process[i] = each
    infos = [each.value_info for each in per_process.values() if each.value_info is not None]
    # An array of several processes is known by what made it; what else there is has no origin.
    is_known = bool(infos) and all(i.array is not None and i.array.origin for i in infos)
    suspect = next(filter(None, map(_suspects, infos)), "" if is_known or not infos else told)
    return replace(result, per_process=per_process, suspect=suspect)
