"""The card of a pytree of arrays: how each lies over processes and devices."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from jaxnb.arrays import bytes_per_device, differing, total_bytes
from jaxnb.arrays.card_array import array_card, array_type, copies_of
from jaxnb.arrays.card_sizes import sizes_block
from jaxnb.display.blocks import Block, Column, Either, Facts, Note, Row, Table
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import WIDTH, fitted_rows, joined, middle
from jaxnb.labels import (
    APART,
    format_bytes,
    format_count,
    paths_label,
    plural,
    processes_label,
)
from jaxnb.model.arrays import ArrayInfo, MeshInfo

_MAKE_ANEW = "run the cell again that made what is lost, or load a checkpoint"
_MAX_ROWS = 100
_MAX_MESHES = 8
_LONGEST = 200
"""Characters of a cell of the HTML table; its tooltip has no more."""


_COLUMNS = (
    Column("path", least=16),
    Column("type", least=16),
    Column("spec", least=18),
    Column("mesh", least=2, optional=True),
    Column("total", ">"),
    Column("per device", ">", least=20),
    Column("note", least=13, optional=True),
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
        facts.append(f"mesh {next(iter(meshes)).label}")
    facts += rest
    named = [(name, mesh.label) for mesh, name in meshes.items()][:_MAX_MESHES]
    legend = named if len(meshes) > 1 else []
    return card_of(
        Facts(facts, heading),
        _table(Table(_COLUMNS, rows, more=(more, "array"))),
        *(Either([Note(f"mesh {name}: {label}", "dim")],
                 middle(f"mesh {name}: {label}", 78).join(["  ", ""])) for name, label in legend),
        *_totals(alive),
    )  # fmt: skip


def _table(table: Table) -> Block:
    """A line for each array; as text two where one would leave too little of what it is."""
    places = table.places("text")
    columns = [table.columns[i] for i in places]
    rows = [[str(row[i]) for i in places] for row in table.rows]
    titled = [[column.title for column in columns], *rows]
    least = [column.least for column in columns]
    natural = [max(map(len, column)) for column in zip(*titled, strict=True)]
    wanted = [n if low is None else min(n, low) for n, low in zip(natural, least, strict=True)]
    if 2 + sum(wanted) + 2 * (len(wanted) - 1) <= WIDTH:
        return table
    align = "".join(column.align for column in columns[1:])
    shrink = {i: 8 for i, low in enumerate(least[1:]) if low is not None}
    under = fitted_rows([line[1:] for line in titled], align, shrink, WIDTH - 2)
    found = []
    for row, lines in zip(titled, under, strict=True):
        found += [f"  {middle(row[0], WIDTH - 2)}", *(f"  {line}" for line in lines.split("\n"))]
    return Either([table], "\n".join([*found, *([f"  {table.rest}"] if table.rest else [])]))


def _meshes(entries: Sequence[tuple[str, ArrayInfo]]) -> dict[MeshInfo, str]:
    """Names each mesh by a letter, in the order in which they come."""
    found = dict.fromkeys(array.mesh for _, array in entries if array.mesh is not None)
    return {mesh: _letter(i) for i, mesh in enumerate(found)}


def _letter(place: int) -> str:
    return chr(ord("A") + place) if place < 26 else f"{place + 1}"


def _row(path: str, array: ArrayInfo, meshes: Mapping[MeshInfo, str], *, is_again: bool) -> Row:
    sizes = sorted(set(bytes_per_device(array).values()))
    each = " to ".join(format_bytes(size) for size in (sizes[:1] + sizes[1:][-1:]))
    spec = array.spec if array.spec is not None else array.sharding.partition("(")[0]
    several = len(meshes) > 1 and array.mesh is not None
    return [
        middle(path, _LONGEST) or "(itself)",
        middle(array_type(array), _LONGEST),
        middle(spec, _LONGEST),
        meshes[array.mesh] if several and array.mesh is not None else "",
        "–" if array.deleted else format_bytes(total_bytes(array) * copies_of(array)),
        "–" if array.deleted else each or "–",
        ", ".join(filter(None, [_note(array), "as above" if is_again else ""])),
    ]


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
