"""Pure: digests of replicas, to which inputs were unequal, and what is to be said of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jaxnb.arrays.blocks import by_digest, holders_text, index_label
from jaxnb.labels import format_count, plural
from jaxnb.lockstep.provenance import OF_PARTS
from jaxnb.model.dispatches import DigestedArray, Index, ReplicaTrail, UnequalInput
from jaxnb.model.scripts import cell_label, in_notebook

MOST_NAMED = 6

MOST_GROUPS = 8
"""Of many devices each may have something else."""


def differ(trails: Mapping[int, Sequence[ReplicaTrail]]) -> bool:
    """Whether processes' digests of replicas differ: mostly not, and nothing more is asked then.

    Args:
        trails: Process index to what it digested in a cell, in short.
    """
    seen: dict[tuple[int, ...], ReplicaTrail] = {}
    return any(
        len(trail.processes) == 1 or seen.setdefault(trail.processes, trail) != trail
        for those in trails.values()
        for trail in those
    )


def unequal_inputs(
    digested: Mapping[int, Sequence[DigestedArray]],
) -> list[UnequalInput]:
    """Returns the arrays whose replicas differ, in the order in which they were used.

    What one process has digested and another has not, as it had compared it before or left the
    cell, is not compared.

    Args:
        digested: Process index to the arrays that it has digested.
    """
    by_key: dict[Any, dict[int, DigestedArray]] = {}
    for process, arrays in sorted(digested.items()):
        for array in arrays:
            by_key.setdefault(array.key, {})[process] = array
    found = []
    for held in by_key.values():
        parts: dict[Index, list[tuple[str, int, int]]] = {}
        for process, array in held.items():
            for part in array.parts:
                digests = [(digest, process, device) for device, digest in part.digests]
                parts.setdefault(part.index, []).extend(digests)
        for index, each in parts.items():
            if len({digest for digest, _, _ in each}) > 1:
                groups, by_device = by_digest(each)
                first = next(iter(held.values()))
                found.append(UnequalInput(first, index, tuple(groups), by_device))
                break
    # What was also given to a dispatch is told of there.
    used = {each.array.origin for each in found if each.array.role == "argument"}
    return [each for each in found if each.array.role != "put" or each.array.origin not in used]


def describe(found: Sequence[UnequalInput], cell: int) -> str:
    """Returns what is to be said of unequal arrays: who has what, what follows, what to type.

    Args:
        found: They, at least one, all of one role.
        cell: The cell's number.
    """
    first = found[0]
    array = first.array
    line = f" at line {array.line}" if array.line is not None else ""
    groups = [
        holders_text(group, by_device=first.by_device) for group in first.groups[:MOST_GROUPS]
    ]
    others = len(first.groups) - len(groups)
    who = " ≠ ".join([*groups, *([f"{format_count(others)} more"] if others else [])])
    where = f" in {index_label(first.index)}" if first.index else ""
    is_result = array.role == "result"
    given = {
        "argument": f", which {array.computation} was given{line}, is replicated, and its bytes",
        "result": " is declared replicated, and its bytes",
        "put": " was made of host data whose bytes",
    }[array.role]
    text = [
        f"Unequal {'result' if is_result else 'input'} in {cell_label(cell)}: {first.name} "
        f"({array.type} · {array.layout}, {array.made}){given} differ: {who}{where}."
    ]
    if len(found) > 1:
        names = [each.name for each in found[1:MOST_NAMED]]
        more = len(found) - 1 - len(names)
        rest = f" and {plural(more, 'more array')}" if more else ""
        text.append(f"So do {', '.join(names)}{rest}.")
    text.append(
        "JAX compares such data only where all processes of the group have a part of the array."
        if array.role == "put"
        else "JAX takes replicas to be equal and never checks."
    )
    text.append(_of_result(first) if is_result else _of_input(first))
    return " ".join(text)


def _of_result(first: UnequalInput) -> str:
    """Returns why the replicas of a result may differ, and what to do about it."""
    array = first.array
    if "{maximal device=" in array.layout:
        return (
            "JAX called Python back (`jax.pure_callback`, say) for one device only, and only that "
            f"has what it returned, though {first.name} looks replicated. Call it within a "
            "`jax.shard_map`: then it is called for each device. What is computed from it differs "
            "too."
        )
    if not array.axes:
        return (
            f"{array.computation} calls Python back (`jax.pure_callback`, say), which returned "
            "something else on each process. Have it return the same everywhere, or name the mesh "
            "axes over which it differs in `out_specs`. What is computed from it differs too."
        )
    axes = ", ".join(f"`{axis}`" for axis in array.axes)
    over = (
        axes
        if len(array.axes) == 1
        else f"that one of {axes} over which its copies differ (a sum over another "
        "would count equal ones several times)"
    )
    called = f", called at line {array.line}," if array.line is not None else ""
    return (
        f"A `shard_map` with `check_vma=False` or a `pmap` with `out_axes=None`{called} declares "
        f"what it returns equal over {axes}, and nothing checks that. A reduction is probably "
        f"missing: `jax.lax.psum` or `pmean` over {over}. If each device is to have its own, name "
        "the axis in `out_specs`. `check_vma=True` has JAX check it. What is computed from it "
        "differs too."
    )


def _of_input(first: UnequalInput) -> str:
    """Returns how the replicas of an input become equal."""
    if OF_PARTS in first.array.made:
        return (
            "The shards that it was made of differ, or are not in their places: make it of others."
        )
    if first.by_device:
        return (
            "Devices of one process differ: what made it "
            "(`jax.make_array_from_single_device_arrays`, say) gave them other data. Give all the "
            "same, or shard it if each is to have its own."
        )
    return (
        "Make it of the same data on every process (one seed, one file), or in one computation "
        "over all (`jax.jit(make, out_shardings=...)()`): several may round differently."
        + in_notebook(" `%spmd_push` sends the notebook's.")
        + " If each process is to have its own, make one sharded array of them: "
        "`jax.make_array_from_process_local_data`."
    )
