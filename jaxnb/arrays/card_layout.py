"""The card of a pytree of arrays: how each lies over processes and devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from jaxnb.arrays import bytes_per_device, differing, total_bytes
from jaxnb.arrays.card_array import array_card, array_type, copies_of
from jaxnb.arrays.card_sizes import sizes_block
from jaxnb.display.blocks import Block, Column, Either, Facts, Note, Table
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import WIDTH, fitted_table, joined, middle
from jaxnb.labels import (
    APART,
    format_bytes,
    format_count,
    paths_label,
    plural,
    processes_label,
)
from jaxnb.model.layout import ArrayInfo, MeshInfo

_MAKE_ANEW = "run the cell again that made what is lost, or load a checkpoint"
_MAX_ROWS = 100
_MAX_MESHES = 8
_LONGEST = 200
"""Characters of a cell of the HTML table; its tooltip has no more."""


@dataclass(frozen=True, slots=True)
class _Row:
    """One array of the table.

    Attributes:
        path: Its place in the pytree.
        type: ``"float32[8, 4]"``.
        spec: Its partition spec, or the name of its sharding.
        mesh: ``"A"`` where there are several meshes.
        total: Bytes of the whole array.
        each: Bytes per device.
        note: ``"replicated"`` and the like.
    """

    path: str
    type: str
    spec: str
    mesh: str
    total: str
    each: str
    note: str


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
    """Returns what is said of what is no array, or no longer."""
    rest = [f"lost: {paths_label(lost)}; {_MAKE_ANEW}"] if lost else []
    if others:
        leaves = "1 leaf that is" if others == 1 else f"{format_count(others)} leaves that are"
        rest.insert(0, f"{leaves} no jax.Array")
    return rest


def _table_card(
    entries: Sequence[tuple[str, ArrayInfo]], rest: Sequence[str], again: Collection[int]
) -> Card:
    meshes = _meshes(entries)
    rows = [
        _row(path, array, meshes, is_again=k in again)
        for k, (path, array) in enumerate(entries[:_MAX_ROWS])
    ]
    more = len(entries) - len(rows)
    heading = plural(len(entries) - len(again), "array")
    if again:
        heading += f" at {plural(len(entries), 'place')}"
    each_once = [array for k, (_, array) in enumerate(entries) if k not in again]
    alive = [array for array in each_once if not array.deleted]
    whole = sum(total_bytes(array) * copies_of(array) for array in alive)
    facts = [f"{format_bytes(whole)} in all"]
    if len(meshes) == 1:
        facts.append(f"mesh {_mesh_label(next(iter(meshes)))}")
    facts += rest
    named = [(name, _mesh_label(mesh)) for mesh, name in meshes.items()][:_MAX_MESHES]
    legend = named if len(meshes) > 1 else []
    return card_of(
        Facts(facts, heading),
        _table(rows, plural(more, "more array") if more else ""),
        *(Either([Note(f"mesh {name}: {label}", "dim")],
                 middle(f"mesh {name}: {label}", 78).join(["  ", ""])) for name, label in legend),
        *_totals(alive),
    )  # fmt: skip


_TITLES = {
    "path": "path",
    "type": "type",
    "spec": "spec",
    "mesh": "mesh",
    "total": "total",
    "each": "per device",
    "note": "note",
}
_NUMBERS = ("total", "each")
_LEAST = {"path": 16, "type": 16, "spec": 18, "mesh": 2, "each": 20, "note": 13}
"""Characters to which columns of the text table may be shortened."""


def _table(rows: Sequence[_Row], more: str) -> Block:
    """A line for each array; as text two where one would leave too little of what it is."""
    keys = [key for key in _TITLES if any(getattr(row, key) for row in rows)]
    columns = [
        Column(_TITLES[key], ">" if key in _NUMBERS else "<", _LEAST.get(key)) for key in keys
    ]
    cells = [[getattr(row, key) for key in keys] for row in rows]
    table = Table(columns, cells, more=more)
    titled = [[column.title for column in columns], *cells]
    natural = [max(map(len, column)) for column in zip(*titled, strict=True)]
    wanted = [min(n, _LEAST.get(key, n)) for n, key in zip(natural, keys, strict=True)]
    if 2 + sum(wanted) + 2 * (len(wanted) - 1) <= WIDTH:
        return table
    align = "".join(column.align for column in columns[1:])
    low = {i - 1: 8 for i, key in enumerate(keys) if key in _LEAST and i > 0}
    lines = fitted_table([line[1:] for line in titled], align, low, WIDTH - 2).splitlines()
    found = [f"  {titled[0][0]}", f"  {lines[0]}"]
    for row, line in zip(rows, lines[1:], strict=True):
        found += [f"  {middle(row.path, WIDTH - 2)}", f"  {line}"]
    return Either([table], "\n".join([*found, *([f"  … {more}"] if more else [])]))


def _meshes(entries: Sequence[tuple[str, ArrayInfo]]) -> dict[MeshInfo, str]:
    """Names each mesh by a letter, in the order in which they come."""
    found = dict.fromkeys(array.mesh for _, array in entries if array.mesh is not None)
    return {mesh: _letter(i) for i, mesh in enumerate(found)}


def _letter(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else f"{place + 1}"


def _mesh_label(mesh: MeshInfo) -> str:
    sizes = zip(mesh.axis_names, mesh.shape, strict=True)
    return " × ".join(f"{name} {size}" for name, size in sizes)


def _row(path: str, array: ArrayInfo, meshes: Mapping[MeshInfo, str], *, is_again: bool) -> _Row:
    sizes = sorted(set(bytes_per_device(array).values()))
    each = " to ".join(format_bytes(size) for size in (sizes[:1] + sizes[1:][-1:]))
    spec = array.spec if array.spec is not None else array.sharding.partition("(")[0]
    several = len(meshes) > 1 and array.mesh is not None
    return _Row(
        path=middle(path, _LONGEST) or "(itself)",
        type=middle(array_type(array), _LONGEST),
        spec=middle(spec, _LONGEST),
        mesh=meshes[array.mesh] if several and array.mesh is not None else "",
        total="–" if array.deleted else format_bytes(total_bytes(array) * copies_of(array)),
        each="–" if array.deleted else each or "–",
        note=", ".join(filter(None, [_note(array), "as above" if is_again else ""])),
    )


def _note(array: ArrayInfo) -> str:
    notes = []
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
    text = "\n".join(f"  {line}" for line in joined([words]).splitlines())
    return [Either([Note(words)], text), *([] if alike else [sizes_block(sizes, owners)])]
