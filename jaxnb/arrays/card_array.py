"""The card of an array: what it is, who owns which part, and a preview of its values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from jaxnb.arrays.blocks import (
    blocks,
    bytes_per_device,
    differing,
    index_label,
    replicas_label,
    replicating_axes,
    total_bytes,
)
from jaxnb.arrays.pictures import (
    array_grid,
    has_values_drawn,
    mesh_grid,
    preview_text,
    sizes_block,
)
from jaxnb.display.blocks import Beside, Block, Column, Either, Facts, Note, Pre, Row, Table
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import middle
from jaxnb.labels import (
    APART,
    format_bytes,
    format_count,
    one_line,
    paths_label,
    plural,
    processes_label,
)
from jaxnb.lockstep.provenance import OF_PARTS, origin_text
from jaxnb.model.arrays import MAX_DIGEST_BYTES, ArrayInfo, MeshInfo
from jaxnb.model.dispatches import Argument

_DELETED = "deleted: its buffers were donated to a computation, or deleted"
_GONE = "deleted or donated there, or they are dead; the others hold their parts"


def array_card(array: ArrayInfo, note: str = "", name: str = "") -> Card:
    """How an array lies over processes and devices; its data stay where they are.

    Args:
        array: The array, as all processes describe it: ``CellResult.array``.
        note: A remark to stand under the picture.
        name: What to call it, before its type.
    """
    heading = array_type(array)
    values = "" if array.deleted else preview_text(array)
    return card_of(
        Facts(array_facts(array), f"{name}: {heading}" if name else heading),
        *array_pictures(array),
        Either(text=values) if has_values_drawn(array) else Pre(values, wide=True),
        *array_notes(array, note),
    )


def array_notes(array: ArrayInfo, *more: str) -> list[Block]:
    """Returns what is to be known of an array's data, and further remarks."""
    array = _held_by_others(array)
    notes = [_DELETED] if array.deleted else []
    notes += [f"gone on {processes_label(array.gone)}: {_GONE}"] if array.gone else []
    notes += [array.suspect, _replicas_note(array), *more]
    return [Facts([text], look="dim") for text in notes if text]


def array_pictures(array: ArrayInfo) -> list[Block]:
    """Returns who owns which part, the mesh, and the bytes by device if they differ."""
    array = _held_by_others(array)
    owners = {shard.device_id: shard.process_index for shard in array.shards}
    sizes, mesh = bytes_per_device(array), list[Block]()
    if array.mesh is not None:
        devices = [*array.mesh.device_ids]
        # A mesh of one axis in the devices' order is what everyone expects.
        if len(array.mesh.shape) > 1 or devices != sorted(devices):
            mesh = mesh_grid(array.mesh, owners)
    # The heading says it all if they are equal.
    listed = [sizes_block(sizes, owners)] if len(set(sizes.values())) > 1 else []
    times = f", × {replicas_label(array)}" if len(blocks(array.shards)) < len(array.shards) else ""
    legend = f"(P process, d device{times})" if array.shards else ""
    return [Beside([array_grid(array), mesh, listed]), Note(legend, "dim", before="  ")]


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
        return f"{each} on {'each' if len(array.shards) > 1 else 'one'} device"
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
    elif array.sharding and max(bytes_per_device(array).values()) > MAX_DIGEST_BYTES:
        note += " (not compared, too large)"
    return note


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
    for part in differing(array):
        rows.append([index_label(part.index), part.holders_label])
        if part.is_uneven:
            where = "Pull it by a name: the pull's `.shards[i].data` is what one device holds."
    title = f"Replicas differ in {plural(len(rows), 'part')} of {array_type(array)}."
    advice = (
        "JAX takes the devices' copies of each part to be equal and never checks. Here their "
        f"bytes differ, so results depend on which copy is read. {_cause(array.source)} {where}"
    )
    return card_of(
        Note(title, "bold", wrap=False),
        Facts(array_facts(array), look="dim"),
        Table([Column("part"), Column("held by")], rows[:16], more=(len(rows) - 16, "part")),
        Note(advice),
        tone="warn",
    )


_MAKE_ANEW = "run the cell again that made what is lost, or load a checkpoint"
_MAX_ROWS = 100
_MOST_APART = 24
"""With more arrays, those are in one row that differ in the numbers in their paths only."""

_MAX_MESHES = 8
_LONGEST = 200
"""Characters of a cell of the HTML table; its tooltip has no more."""


_COLUMNS = (
    Column("path", least=18),
    Column("n", ">", optional=True),
    Column("type", least=10),
    Column("spec", least=8),
    Column("mesh", least=2, optional=True),
    Column("total", ">", least=7),
    Column("per device", ">", least=8),
    Column("note", least=8, optional=True),
)


def layout_card(
    entries: Sequence[tuple[str, ArrayInfo]],
    others: int = 0,
    lost: Sequence[str] = (),
    again: Collection[int] = (),
) -> Card:
    """How the arrays of a pytree lie over processes and devices; the data stay where they are.

    A single array is shown as its own card, with the picture.

    Args:
        entries: Pairs of an array's path in the pytree (``"params.w"``) and the array.
        others: How many leaves are no arrays.
        lost: The paths of those that were arrays, and are lost.
        again: Which of the entries are an array that an earlier one is too: it counts once.
    """
    rest = _rest(others, lost)
    if not entries:
        heading = "no arrays left" if lost else "no arrays"
        return card_of(Facts(rest, heading))
    if len(entries) == 1:
        own = copies_of(entries[0][1]) > 1
        notes = ["their values are not compared"] if own and not entries[0][1].deleted else []
        notes += [f"and {' · '.join(rest)}"] if rest else []
        note = "; ".join(notes)
        return array_card(entries[0][1], note=note, name=entries[0][0])
    return _table_card(entries, rest, again)


def _rest(others: int, lost: Sequence[str]) -> list[str]:
    """Returns the notes on parts of a value that are not arrays, or were lost."""
    rest = [f"lost: {paths_label(lost)}; {_MAKE_ANEW}"] if lost else []
    if others:
        leaves = "1 leaf that is" if others == 1 else f"{format_count(others)} leaves that are"
        rest.insert(0, f"{leaves} no jax.Array")
    return rest


def _table_card(
    entries: Sequence[tuple[str, ArrayInfo]], rest: Sequence[str], again: Collection[int]
) -> Card:
    meshes = _meshes(entries)
    groups = _grouped(entries, meshes, again)
    rows = [_row(*group, meshes) for group in groups[:_MAX_ROWS]]
    more = sum(len(paths) for paths, *_ in groups[_MAX_ROWS:])
    heading = plural(len(entries) - len(again), "array")
    if again:
        heading += f" at {plural(len(entries), 'place')}"
    each_once = [array for k, (_, array) in enumerate(entries) if k not in again]
    alive = [array for array in each_once if not array.deleted]
    whole = sum(total_bytes(array) * copies_of(array) for array in alive)
    facts = [f"{format_bytes(whole)} in all"]
    if len(meshes) == 1:
        facts.append(f"mesh {next(iter(meshes)).label}")
    facts += rest
    named = [(name, mesh.label) for mesh, name in meshes.items()][:_MAX_MESHES]
    legend = named if len(meshes) > 1 else []
    return card_of(
        Facts(facts, heading),
        Table(_COLUMNS, rows, more=(more, "array")),
        *(Note(middle(f"mesh {name}: {label}", 78), "dim", before="  ") for name, label in legend),
        *_totals(alive),
    )


def _meshes(entries: Sequence[tuple[str, ArrayInfo]]) -> dict[MeshInfo, str]:
    """Names each mesh by a letter, in the order in which they come."""
    found = dict.fromkeys(array.mesh for _, array in entries if array.mesh is not None)
    return {mesh: chr(ord("A") + i) if i < 26 else f"{i + 1}" for i, mesh in enumerate(found)}


_Group = tuple[list[str], ArrayInfo, bool]
"""The paths of arrays that look the same in the table, one of these, and whether it is above."""


def _grouped(
    entries: Sequence[tuple[str, ArrayInfo]],
    meshes: Mapping[MeshInfo, str],
    again: Collection[int],
) -> list[_Group]:
    """Returns what has a row of its own: of many arrays, those that are alike have one."""
    groups: dict[object, _Group] = {}
    for k, (path, array) in enumerate(entries):
        group: _Group = ([path], array, k in again)
        key: object = k
        if len(entries) > _MOST_APART:
            key = (_NUMBERS.sub("*", path), *_row(*group, meshes)[2:])
        groups.setdefault(key, ([], *group[1:]))[0].append(path)
    return [*groups.values()]


_NUMBERS = re.compile(r"\d+")
_KEYS = re.compile(r"\['([^']*)'\]|\[(\*|\d+)\]")


def _pattern(paths: Sequence[str]) -> str:
    """Returns what paths have in common: `layers.*.w`, with a star for each number that differs."""
    if len(paths) == 1:
        return paths[0]
    numbers = zip(*map(_NUMBERS.findall, paths), strict=True)
    stars = iter([found[0] if len(set(found)) == 1 else "*" for found in numbers])
    text = _NUMBERS.sub(lambda _: next(stars), paths[0])
    return _KEYS.sub(lambda found: f".{found[1] or found[2]}", text).lstrip(".")


def _row(
    paths: Sequence[str], array: ArrayInfo, is_again: bool, meshes: Mapping[MeshInfo, str]
) -> Row:
    count = len(paths)
    sizes = sorted({size * count for size in bytes_per_device(array).values()})
    each = " to ".join(format_bytes(size) for size in (sizes[:1] + sizes[1:][-1:]))
    spec = array.spec if array.spec is not None else array.sharding.partition("(")[0]
    several = len(meshes) > 1 and array.mesh is not None
    return [
        middle(_pattern(paths), _LONGEST) or "(itself)",
        str(count) if count > 1 else "",
        middle(array_type(array), _LONGEST),
        middle(spec, _LONGEST),
        meshes[array.mesh] if several and array.mesh is not None else "",
        "–" if array.deleted else format_bytes(total_bytes(array) * copies_of(array) * count),
        "–" if array.deleted else each or "–",
        ", ".join(filter(None, [_note(array), "as above" if is_again else ""])),
    ]


def _note(array: ArrayInfo) -> str:
    notes = [] if array.shape else [f"= {one_line(text, 24)}" for _, text in array.corner]
    if array.deleted:
        notes.append("deleted")
    if array.fully_addressable:
        notes.append("process-local")
    elif array.fully_replicated and len(array.shards) > 1:
        notes.append("replicas differ" if differing(array) else "replicated")
    if array.gone:
        notes.append(f"gone on {processes_label(array.gone)}")
    if array.memory_kind not in (None, "device", "unpinned_host"):
        notes.append(f"in {array.memory_kind}")
    if array.suspect:
        notes.append(APART)
    return ", ".join(notes)


def _totals(arrays: Sequence[ArrayInfo]) -> list[Block]:
    """What each device holds of all arrays: in words, and by device if they differ."""
    sizes: dict[int, int] = {}
    owners: dict[int, int] = {}
    for array in arrays:
        owners |= {shard.device_id: shard.process_index for shard in array.shards}
        for device, size in bytes_per_device(array).items():
            sizes[device] = sizes.get(device, 0) + size
    if not sizes:
        return []
    least, most = format_bytes(min(sizes.values())), format_bytes(max(sizes.values()))
    alike = len(set(sizes.values())) == 1
    each = f"{least} on each of" if alike else f"{least} to {most} on"
    words = f"all arrays together: {each} {plural(len(sizes), 'device')}"
    return [Note(words, before="  "), *([] if alike else [sizes_block(sizes, owners)])]
