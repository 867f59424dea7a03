"""The card of an array: what it is, who owns which part, and a preview of its values."""

from __future__ import annotations

from dataclasses import replace

from jaxnb.arrays import Block as Part
from jaxnb.arrays import blocks, bytes_per_device, differing, total_bytes
from jaxnb.arrays.card_sizes import sizes_block
from jaxnb.arrays.card_spec import replicas_label, replicating_axes
from jaxnb.arrays.draw_array import array_grids
from jaxnb.arrays.draw_mesh import mesh_grids
from jaxnb.arrays.draw_text import mesh_line, preview_text, text_picture
from jaxnb.display.blocks import Beside, Block, Column, Either, Facts, Note, Pre, Table
from jaxnb.display.card import Card, card_of
from jaxnb.labels import format_bytes, plural, processes_label, ranks_label
from jaxnb.lockstep.provenance import OF_PARTS, origin_text
from jaxnb.model.arrays import MAX_DIGEST_BYTES, ArrayInfo
from jaxnb.model.dispatches import Argument

__all__ = [
    "array_blocks",
    "array_card",
    "array_facts",
    "array_pictures",
    "array_type",
    "preview_text",
    "replicas_differ_card",
]

_DELETED = "deleted: its buffers were donated to a computation, or deleted"
_GONE = "deleted or donated there, or they are dead; the others hold their parts"


def array_card(array: ArrayInfo, note: str = "", name: str = "") -> Card:
    """How an array lies over processes and devices; its data stay where they are.

    Args:
        array: The array, as all processes describe it: ``CellResult.array``.
        note: A remark to stand under the picture.
        name: What to call it, before its type.
    """
    return card_of(*array_blocks(array, note, name))


def array_blocks(array: ArrayInfo, note: str = "", name: str = "") -> list[Block]:
    """Returns what :func:`array_card` shows."""
    heading, facts = array_type(array), array_facts(array)
    array = _held_by_others(array)
    values = "" if array.deleted else preview_text(array)
    notes = [_DELETED] if array.deleted else []
    notes += [f"gone on {processes_label(array.gone)}: {_GONE}"] if array.gone else []
    notes += [text for text in (array.suspect, _replicas_note(array), note) if text]
    return [
        Facts(facts, f"{name}: {heading}" if name else heading),
        *array_pictures(array),
        Pre(values, wide=True),
        *(Facts([text], look="dim") for text in notes),
    ]


def array_pictures(array: ArrayInfo) -> list[Block]:
    """Returns who owns which part, the mesh, and the bytes by device if they differ."""
    owners = {shard.device_id: shard.process_index for shard in array.shards}
    sizes = bytes_per_device(array)
    mesh = [mesh_grids(array.mesh, owners)] if array.mesh is not None else []
    # The heading says it all if they are equal.
    listed = sizes_block(sizes, owners) if len(set(sizes.values())) > 1 else Either()
    return [
        Either([Beside([array_grids(array), *mesh, listed.html])]),
        Either(text=text_picture(array)),
        Either(text=mesh_line(array.mesh)),
        Either(text=listed.text),
    ]


def _held_by_others(array: ArrayInfo) -> ArrayInfo:
    """Returns the array without replicas on processes where it is gone."""
    if not array.gone:
        return array
    held = {shard.index for shard in array.shards if shard.process_index not in array.gone}
    left = [s for s in array.shards if s.process_index not in array.gone or s.index not in held]
    return replace(array, shards=tuple(left))


def array_type(array: ArrayInfo) -> str:
    """Returns ``"float32[8, 4]"``."""
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def array_facts(array: ArrayInfo) -> list[str]:
    """Returns spec, mesh and sizes, each as a short text."""
    facts = []
    if array.spec is not None:
        facts.append(array.spec)
    elif array.mesh is None and array.sharding:
        facts.append(array.sharding)
    if array.mesh is not None:
        facts.append(f"mesh {array.mesh.label}")
    if array.memory_kind not in (None, "device", "unpinned_host"):
        facts.append(f"in {array.memory_kind}")
    if not array.deleted:
        facts.append(_sizes(array))
    return facts


def _sizes(array: ArrayInfo) -> str:
    total = total_bytes(array)
    per_device = set(bytes_per_device(array).values())
    if not per_device:
        return format_bytes(total)
    each = " to ".join(format_bytes(size) for size in sorted({min(per_device), max(per_device)}))
    if per_device == {total}:
        return f"{each} on each device"
    if copies_of(array) > 1:
        return f"{format_bytes(total)} on each process, {each} per device"
    return f"{format_bytes(total)}, {each} per device"


def copies_of(array: ArrayInfo) -> int:
    """Returns how many processes have the array each for itself; 1 of a global array."""
    if not array.fully_addressable:
        return 1
    return max(1, len({shard.process_index for shard in array.shards}))


def _replicas_note(array: ArrayInfo) -> str:
    """What is known of parts that several devices hold."""
    if array.deleted:
        return ""
    if (count := copies_of(array)) > 1:
        return f"process-local: each of {plural(count, 'process')} has its own"
    held = [part for part in blocks(array.shards) if len(part.shards) > 1]
    if not held:
        return ""
    copies = {len(part.shards) for part in held}
    each = str(copies.pop()) if len(copies) == 1 else "several"
    whole = held[0].shape == array.shape
    note = f"{each} {replicas_label(array)} of {'the whole array' if whole else 'each part'}"
    if axes := replicating_axes(array):
        note += f" over mesh {'axes' if len(axes) > 1 else 'axis'} {', '.join(axes)}"
    if differing(array):
        note += ", and their bytes differ: results depend on which is read"
    elif all(shard.digest for part in held for shard in part.shards):
        note += " (byte-compared)"
    elif max(bytes_per_device(array).values()) > MAX_DIGEST_BYTES:
        note += " (not compared, too large)"
    return note


def _devices_by_digest(part: Part) -> str:
    """Returns ``"devices 0-1 ≠ devices 2"``."""
    groups: dict[bytes, list[int]] = {}
    for shard in sorted(part.shards, key=lambda s: s.device_id):
        if shard.digest:
            groups.setdefault(shard.digest, []).append(shard.device_id)
    return " ≠ ".join(f"devices {ranks_label(group)}" for group in groups.values())


def _cause(source: Argument | None) -> str:
    """Returns why replicas differ: a computation that all have agreed on has no other host data."""
    host = (
        "processes built the array from different host data (an unseeded random number, another "
        "file)"
    )
    program = (
        "a `shard_map` with `check_vma=False`, or a `pmap` with `out_axes=None`, lacks a reduction "
        "(`jax.lax.psum`), there or in what went in"
    )
    if source is None or source.made.kind == "unknown":
        return f"The usual causes: {host}; or {program}."
    made = origin_text(source.made, source.number)
    if source.made.kind == "dispatch":
        return f"It is {made}. The usual cause: {program}."
    if OF_PARTS in source.made.name:
        return f"It was {made}: the shards differ, or are not in their places."
    return f"The usual cause: {host}."


def replicas_differ_card(array: ArrayInfo) -> Card:
    """Warns that replicas of an array, which JAX takes to be equal, are not.

    Names which processes' replicas differ from which, for each part of the array.
    """
    rows, where = [], "`spmd.last_result.per_process[i].value` holds each process's own."
    for part in blocks(array.shards):
        groups = part.by_digest()
        if len(groups) > 1:
            extent = ", ".join(f"{start}:{stop}" for start, stop in part.index)
            held = " ≠ ".join(f"[{ranks_label(group)}]" for group in groups)
            if len(set().union(*groups)) < sum(map(len, groups)):  # within a process
                held = _devices_by_digest(part)
                where = "Pull it by a name: the pull's `.shards[i].data` is what one device holds."
            rows.append([f"[{extent}]", held])
    title = f"Replicas differ in {plural(len(rows), 'part')} of {array_type(array)}."
    advice = (
        "JAX takes the devices' copies of each part to be equal and never checks. Here their "
        f"bytes differ, so results depend on which copy is read. {_cause(array.source)} {where}"
    )
    return card_of(
        Note(title, "bold", wrap=False),
        Either([Facts(array_facts(array), look="dim")]),
        Table([Column("part"), Column("held by")], rows[:16], more=(len(rows) - 16, "part")),
        Note(advice),
        tone="warn",
    )
