"""The card of an array: what it is, who owns which part, and a preview of its values."""

from __future__ import annotations

from dataclasses import replace

from jaxnb.arrays import Block, blocks, bytes_per_device, differing, total_bytes
from jaxnb.arrays.card_sizes import SizeRow, size_rows
from jaxnb.arrays.card_spec import replicating_axes
from jaxnb.arrays.draw_array import array_drawing
from jaxnb.arrays.draw_mesh import axis_types_label, mesh_drawing
from jaxnb.arrays.draw_text import bytes_lines, mesh_line, preview_text, text_picture
from jaxnb.display.card import Card, render
from jaxnb.display.text import joined, text_table, wrapped
from jaxnb.labels import format_bytes, plural, processes_label, ranks_label
from jaxnb.model.layout import MAX_DIGEST_BYTES, ArrayInfo, MeshInfo

__all__ = ["array_card", "array_facts", "array_type", "preview_text", "replicas_differ_card"]

_DELETED = "deleted: its buffers were donated to a computation, or deleted"
_GONE = "deleted or donated there, or they are dead; the others hold their parts"


def array_card(array: ArrayInfo, note: str = "", name: str = "") -> Card:
    """How an array lies over processes and devices; its data stay where they are.

    Args:
        array: The array, as all processes describe it: ``CellResult.array``.
        note: A remark to stand under the picture.
        name: What to call it, before its type.
    """
    heading, facts = array_type(array), array_facts(array)
    array = _held_by_others(array)
    if name:
        heading = f"{name}: {heading}"
    values = "" if array.deleted else preview_text(array)
    notes = [_DELETED] if array.deleted else []
    notes += [f"gone on {processes_label(array.gone)}: {_GONE}"] if array.gone else []
    notes += [array.suspect]
    notes += [_replicas_note(array), note]
    notes = [text for text in notes if text]
    sizes, more_sizes = _differing_sizes(array)
    html = _html(array, heading, facts, values, notes, (sizes, more_sizes))
    listed = bytes_lines([(row.short, format_bytes(row.size_bytes)) for row in sizes], more_sizes)
    parts = [
        joined([heading, *facts]),
        text_picture(array),
        mesh_line(array.mesh),
        listed,
        values,
        *(joined([text]) for text in notes),
    ]
    return Card(html, "\n".join(part for part in parts if part))


def _held_by_others(array: ArrayInfo) -> ArrayInfo:
    """Returns the array without replicas on processes where it is gone."""
    if not array.gone:
        return array
    held = {shard.index for shard in array.shards if shard.process_index not in array.gone}
    left = [s for s in array.shards if s.process_index not in array.gone or s.index not in held]
    return replace(array, shards=tuple(left))


def _html(
    array: ArrayInfo,
    heading: str,
    facts: list[str],
    values: str,
    notes: list[str],
    sizes: tuple[list[SizeRow], int],
) -> str:
    drawing, cut = array_drawing(array, _summary(array, heading))
    owners = {shard.device_id: shard.process_index for shard in array.shards}
    return render(
        "array",
        heading=heading,
        facts=facts,
        drawing=drawing,
        left_out=cut.left_out,
        mesh=None if array.mesh is None else mesh_drawing(array.mesh, owners),
        # Of axes of several types each says its own.
        axis_types=axis_types_label(array.mesh) if array.mesh and _alike(array.mesh) else "",
        sizes=sizes[0],
        more_sizes=sizes[1],
        values=values,
        notes=notes,
    )


def _alike(mesh: MeshInfo) -> bool:
    return len(set(mesh.axis_types)) == 1


def _summary(array: ArrayInfo, heading: str) -> str:
    """The picture in words."""
    parts = blocks(array.shards)
    processes = {shard.process_index for shard in array.shards}
    devices = {shard.device_id for shard in array.shards}
    facts = [heading, *([array.spec] if array.spec is not None else [])]
    facts.append(f"{plural(len(parts), 'part')} on {plural(len(devices), 'device')}")
    facts[-1] += f" of {plural(len(processes), 'process')}"
    return ", ".join([*facts, *filter(None, [_replicas_note(array)])])


def _differing_sizes(array: ArrayInfo) -> tuple[list[SizeRow], int]:
    """Bytes by device if they differ; the heading says it all if they are equal."""
    sizes = bytes_per_device(array)
    if len(set(sizes.values())) < 2:
        return [], 0
    return size_rows(sizes, {shard.device_id: shard.process_index for shard in array.shards})


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
        sizes = zip(array.mesh.axis_names, array.mesh.shape, strict=True)
        facts.append("mesh " + " × ".join(f"{name} {size}" for name, size in sizes))
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
    note = f"{each} replicas of {'the whole array' if whole else 'each part'}"
    if axes := replicating_axes(array):
        note += f" over mesh {'axes' if len(axes) > 1 else 'axis'} {', '.join(axes)}"
    if differing(array):
        note += ", and their bytes differ: results depend on which is read"
    elif all(shard.digest for part in held for shard in part.shards):
        note += ", bytes compared"
    elif max(bytes_per_device(array).values()) > MAX_DIGEST_BYTES:
        note += ", bytes not compared (too large)"
    return note


def _devices_by_digest(part: Block) -> str:
    """Returns ``"devices 0-1 ≠ devices 2"``."""
    groups: dict[bytes, list[int]] = {}
    for shard in sorted(part.shards, key=lambda s: s.device_id):
        if shard.digest:
            groups.setdefault(shard.digest, []).append(shard.device_id)
    return " ≠ ".join(f"devices {ranks_label(group)}" for group in groups.values())


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
            rows.append((f"[{extent}]", held))
    title = f"Replicas differ in {plural(len(rows), 'part')} of {array_type(array)}."
    advice = (
        "JAX takes the devices' copies of each part to be equal and never checks. Here their "
        "bytes differ, so results depend on which copy is read. The usual cause: processes "
        "built the array from different host data (an unseeded random number, another file). "
        + where
    )
    shown, more = rows[:16], max(0, len(rows) - 16)
    html = render(
        "replicas", title=title, advice=advice, facts=array_facts(array), rows=shown, more=more
    )
    table = text_table([["part", "held by"], *shown], "<<") if shown else ""
    rest = f"  … {plural(more, 'more part')}" if more else ""
    return Card(html, "\n".join(part for part in (title, table, rest, wrapped(advice)) if part))
