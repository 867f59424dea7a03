"""What a pull says of data that cannot be had."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations
from typing import Any

from jaxnb.arrays.blocks import Index, differing, index_label
from jaxnb.arrays.gathered import ArrayKey, Wanted
from jaxnb.arrays.regions import Path
from jaxnb.errors import ArrayGoneError, JaxnbError, NotEnoughMemoryError, UsageError
from jaxnb.labels import (
    capitalized,
    format_bytes,
    gone_label,
    plural,
    processes_label,
    ranks_label,
    type_label,
)
from jaxnb.launch.host import available_bytes
from jaxnb.model.arrays import ArrayInfo, Gone, NotFound, Packed
from jaxnb.model.cells import ProcessError

SMALL_BYTES = 1 << 20
"""So much fits anywhere: to find out what is free takes 0.6 ms."""


def require_memory_for_pull(nbytes: int, name: str) -> None:
    """Raises NotEnoughMemoryError if a pull would not fit into the notebook's memory."""
    if nbytes <= SMALL_BYTES:
        return
    available = available_bytes()
    if nbytes > available:
        raise NotEnoughMemoryError(
            f"Pulling {name} needs {format_bytes(nbytes)} in the notebook, where "
            f"{format_bytes(available)} of memory is free. Nothing was moved. Pull a slice, "
            "e.g. `x[:1000]`, or reduce it on the processes first."
        )


def require_memory_for_push(
    needed: int, name: str, where: str = "the processes", available: int | None = None
) -> None:
    """Raises NotEnoughMemoryError if a push would not fit into the processes' memory.

    Args:
        needed: The bytes that it needs.
        name: What is pushed.
        where: What needs them.
        available: Those that there are; by default those of this host.
    """
    if needed <= SMALL_BYTES and available is None:
        return
    available = available_bytes() if available is None else available
    if needed > available:
        raise NotEnoughMemoryError(
            f"{name} needs {format_bytes(needed)} on {where}, "
            f"where {format_bytes(available)} of memory is free. Nothing was "
            "moved. Shard it over more devices: name a mesh axis in its spec."
        )


def replicas_text(key: ArrayKey, array: ArrayInfo) -> str:
    """Returns what is to be said of an array whose replicas differ; empty if none do."""
    parts = differing(array)
    if not parts:
        return ""
    kind = type_label(array.dtype, array.shape)
    which = f"array {key.index} of `{key.name}` ({kind})" if key.is_part else f"`{key.name}`"
    return (
        f"The replicas of {which} differ in {plural(len(parts), 'part')}, the first "
        f"{index_label(parts[0].index)}: {parts[0].holders_label}. JAX takes them to be "
        "equal and never checks. The pull has the first replica of each; `.shards[i].data` is what "
        "one device has."
    )


def whose(key: ArrayKey) -> str:
    """Returns what to call an array in the middle of a sentence."""
    if not key.path:
        return key.name
    return f"an array in `{key.name}`" if key.is_part else f"`{key.name}`"


def lost_text(
    wanted: Wanted, lost: Sequence[Index], able: Collection[int], in_cells: Mapping[int, str]
) -> str:
    """Returns what is to be said of parts that nobody can give.

    Args:
        wanted: What was asked for.
        lost: The parts' indices in the array.
        able: The processes that can answer.
        in_cells: Process index to what it is doing, for those that live and cannot answer.
    """
    key = wanted.key
    shards = wanted.info.shards if wanted.shard is None else (wanted.shard,)
    holders = {shard.process_index for shard in shards if shard.index in lost}
    reasons: dict[str, list[int]] = {}
    for index in sorted(holders):
        reason = in_cells.get(index, "has died")
        if index in able:
            reason = "gave no part of it in this pull"
        reasons.setdefault(reason, []).append(index)
    first = "" if len(lost) == 1 else "the first "
    advice = "Slices of the other parts can still be pulled. "
    if holders & set(able):
        advice += (
            f"`{key.name}` differs by process, so its arrays were not put together: pull the array "
            f"by its own path, from all processes."
            if key.is_part
            else f"Pull `{key.name}` from all processes, or rebind it in one cell."
        )
    elif holders - set(able) - in_cells.keys():
        advice += "`%spmd_recover` replaces dead processes; what only they held is lost."
    else:
        advice += "`%spmd_status` shows the processes."
    return (
        f"{plural(len(lost), 'part')} of {whose(key)}, {first}"
        f"{index_label(lost[0])}, cannot be pulled: {_by_process(reasons)}. Nothing was moved. "
        f"{advice}"
    )


def _by_process(reasons: Mapping[str, Sequence[int]]) -> str:
    """Returns ``"process 1 has died; processes 2-3 are in a cell"``."""
    parts = [
        f"{processes_label(who)} {reason if len(who) == 1 else _of_several(reason)}"
        for reason, who in reasons.items()
    ]
    return "; ".join(parts)


def _of_several(reason: str) -> str:
    for one, several in (("has ", "have "), ("is ", "are "), ("was ", "were ")):
        if reason.startswith(one):
            return several + reason.removeprefix(one)
    return reason


def require_not_deleted(wanted: Sequence[Wanted]) -> None:
    """Refuses arrays that had no data when they were pulled.

    Raises:
        ArrayGoneError: One was deleted then. Pulling it once more would give the same.
    """
    for each in wanted:
        if each.info.deleted:
            raise ArrayGoneError(
                f"{capitalized(whose(each.key))} was already deleted, or donated to a "
                f"computation, on {processes_label(each.key.processes)} when it was pulled: only "
                "its shape is left. Nothing was moved; recreate it in a cell."
            )


def require_one_layout(name: str, packed: Mapping[int, Packed]) -> None:
    """Refuses an array that some of the processes it spans have otherwise.

    Arrays of processes that share none, such as those of several meshes, are several.

    Raises:
        UsageError: The text says which process has which.
    """
    if not all(each.is_array for each in packed.values()):
        return
    arrays = {index: each.arrays[0] for index, each in packed.items()}
    spanned: dict[str, set[int]] = {}
    for array in arrays.values():
        spanned.setdefault(_laid(array), set()).update(s.process_index for s in array.shards)
    if any(one & other for one, other in combinations(spanned.values(), 2)):
        raise UsageError(
            f"`{name}` {other_layouts(arrays)}. It is not one array, "
            "so nothing was moved. Make it again with one global shape and sharding on all. "
            f"`%spmd [s.data for s in {name}.addressable_shards]` shows what each process holds."
        )


def other_layouts(arrays: Mapping[int, ArrayInfo]) -> str:
    """Returns how one array is another on processes, as what follows its name."""
    who: dict[str, list[int]] = {}
    for index, array in arrays.items():
        who.setdefault(_laid(array), []).append(index)
    has = ", ".join(f"{label} on {processes_label(those)}" for label, those in who.items())
    return f"spans processes, and is not the same on them: {has}"


def _laid(array: ArrayInfo) -> str:
    return f"{type_label(array.dtype, array.shape)} {array.spec or ''}".rstrip()


def require_there(wanted: Sequence[Wanted], answers: Mapping[int, Any]) -> None:
    """Refuses arrays that a process has no more.

    Raises:
        ArrayGoneError: It was dropped, deleted or donated since.
    """
    those = [answer for answer in answers.values() if isinstance(answer, Gone)]
    if not those:
        return
    gone = those[0]
    who = processes_label([each.process_index for each in those if each.reason == gone.reason])
    key = next(each.key for each in wanted if each.key.index == gone.array)
    # Of one that was deleted, or is unreduced, nothing else is to be had.
    is_there = key.path and gone.reason in ("dropped", "ref")
    again = f"; `spmd.pull({key.path!r}, lazy=False)` has what is there now" if is_there else ""
    raise ArrayGoneError(
        f"{capitalized(whose(key))} {gone_label(gone.reason, gone.axes)} on {who}, and its data "
        f"had not been pulled. Nothing was moved{again}."
    )


def missing_error(
    path: Path, answers: Mapping[int, Any], *, is_layout: bool = False
) -> UsageError | ArrayGoneError:
    """Returns the error for a path that some processes do not have, or have lost.

    Args:
        path: The path.
        answers: What the processes say.
        is_layout: It was asked how it lies, not what it is.
    """
    missing = {i: a for i, a in answers.items() if isinstance(a, NotFound)}
    reasons: dict[str, list[int]] = {}
    for index, answer in missing.items():
        reasons.setdefault(answer.reason, []).append(index)
    text = f"P{_by_process(reasons)[1:]}.{'' if is_layout else ' Nothing was moved.'}"
    having = [i for i in answers if i not in missing]
    if having:
        who = processes_label(having)
        then = f"`spmd.pull({path.text!r}, ranks={having})`"
        if is_layout:
            then = f"`%spmd --ranks {ranks_label(having)} {path.text}`"
        text += f" For {who} only, type {then}."
    is_lost = any(answer.is_lost for answer in missing.values())
    return ArrayGoneError(text) if is_lost else UsageError(text)


def unpacked_error(path: Path, process_index: int, error: ProcessError) -> JaxnbError:
    """Returns the error for a value that a process could not pack."""
    if error.type_name in ("JaxRuntimeError", "XlaRuntimeError"):
        return JaxnbError(
            f"`{path.text}` has no value on process {process_index}, because its computation "
            f"failed: {error}. Nothing was moved. Rerun the cell that makes it."
        )
    return JaxnbError(
        f"`{path.text}` on process {process_index} cannot be pulled: {error}. Nothing was moved; "
        "it is unchanged on the process. Pull its parts by name, or a value computed from it: "
        f"`spmd.run({f'repr({path.text})'!r}).value`."
    )
