"""The card of what a call's collectives are: each as a picture, and who sends how much to whom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from jaxnb.display.blocks import Block, Box, Either, Facts, Fold, Grid, Note
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import WIDTH, text_table
from jaxnb.labels import BYTE_UNITS, format_bytes, one_line, plural
from jaxnb.model.compiled import Collective, CompiledReport
from jaxnb.pictures.card_exchange import NAMES, device_label, exchange_blocks
from jaxnb.pictures.exchange import cuts, line_of, matrix

WHOLE = 32
"""From so many devices on, the matrix is drawn by axis."""

_WIDE = 8
"""So many devices have numbers in their boxes; of more only the colour shows."""

_MAX_PICTURES = 6
_MAX_LINE = 32


def moves_card(report: CompiledReport) -> Card:
    """What moves in a call: each collective step by step, and the bytes from device to device."""
    owners = dict(zip(report.devices, report.processes, strict=False))
    # Those that do the same on the same devices look the same.
    distinct: dict[object, list[Collective]] = {}
    for each in report.collectives:
        if each.bytes:
            distinct.setdefault((each.kind, each.groups, each.pairs), []).append(each)
    moving = [*distinct.values()]
    if not moving:
        return card_of(Facts(["nothing moves between devices"], report.name))
    pictures = [_picture(each, report, owners, i == 0) for i, each in enumerate(moving)]
    more = len(pictures) - _MAX_PICTURES
    return card_of(
        *pictures[:_MAX_PICTURES],
        Note(f"… {plural(more, 'more collective')}" if more > 0 else "", "dim"),
        *matrix_blocks(report, owners),
    )


def _picture(
    alike: Sequence[Collective], report: CompiledReport, owners: Mapping[int, int], opened: bool
) -> Block:
    each, count = alike[0], sum(c.times for c in alike)
    group = max(each.groups, key=len)
    meshes = [m for m in report.meshes if set(group) <= set(m.device_ids)]
    meshes.sort(key=lambda m: not set(each.axes) <= set(m.axis_names))
    mesh = meshes[0] if meshes else None
    over = one_line(", ".join(each.axes) or "no axis", 40)
    sent = format_bytes(sum(c.bytes * c.times for c in alike))
    times = f" in {count} executions" if count > 1 else ""
    facts = [f"each device sends {sent}{times}"]
    elements = min(prod(part.shape) for part in each.parts)
    if len(alike) == 1 and cuts(each.kind, len(group), elements):
        part = sum(p.nbytes for p in each.parts)
        part = part if each.kind == "reduce-scatter" else -(-part // len(group))
        along = "" if each.dimension is None else f" along dimension {each.dimension}"
        facts.append(f"gives {each.parts[0]}, in parts of {format_bytes(part)}{along}")
    if len(each.groups) > 1:
        are_alike = len({len(g) for g in each.groups}) == 1
        which = "one of {} groups of {}" if are_alike else "the largest of {} groups: {}"
        facts.insert(0, which.format(len(each.groups), plural(len(group), "device")))
    if each.scatter_bytes < each.bytes:
        less = format_bytes(sum(c.scatter_bytes * c.times for c in alike))
        facts.append(f"as reduce-scatter {less}")
    if each.source and len(alike) == 1:
        facts.append(str(each.source))
    blocks = exchange_blocks(
        each.kind, group, pairs=each.pairs, owners=owners, mesh=mesh, elements=elements
    )
    title = f"{each.kind} ({NAMES[each.kind]})" if each.kind in NAMES else each.kind
    return Fold(Facts(facts, f"{title} over {over}"), blocks, opened)


def matrix_blocks(report: CompiledReport, owners: Mapping[int, int]) -> list[Block]:
    """Returns who sends how much to whom in one call.

    From 32 devices on by axis: between the devices in a line along it, as all lines do the same.
    """
    title = "from each device (row) to each other, in one call"
    if len(report.devices) < WHOLE:
        return [Note(title, "dim"), _matrix(matrix(report), report.devices, owners)]
    lines = {(axis, line): sent for axis, line, sent in _lines(report)}  # meshes may share one
    blocks: list[Block] = []
    for (axis, line), sent in lines.items():
        over = f"{title}, along {axis} (size {len(line)})"
        blocks += [Note(over, "dim"), *_line(sent, line, owners)]
    if any(each.bytes and len(each.axes) != 1 for each in report.collectives):
        blocks.append(Note("Not by axis, so only in `.matrix()`: several axes, or none.", "dim"))
    return blocks


def _lines(report: CompiledReport) -> Iterator[tuple[str, tuple[int, ...], np.ndarray[Any, Any]]]:
    along = {each.axes[0] for each in report.collectives if len(each.axes) == 1}
    for mesh in report.meshes:
        for axis in filter(along.__contains__, mesh.axis_names):
            line, sent = line_of(report, mesh, axis)
            if sent.any():
                yield axis, line, sent


def _line(
    sent: np.ndarray[Any, Any], line: Sequence[int], owners: Mapping[int, int]
) -> list[Block]:
    if len(line) < _MAX_LINE:
        return [_matrix(sent, line, owners)]
    place = int(np.argmax(sent.sum(axis=1)))  # the first, where all send as much
    further = np.roll(sent[place], -place)
    targets = np.flatnonzero(further)
    some = [f"{format_bytes(int(further[t]))} to the one {t} further" for t in targets[:_WIDE]]
    more = [f"… {plural(len(targets) - _WIDE, 'more device')}"] if len(targets) > _WIDE else []
    return [Facts([*some, *more], f"d{line[place]} sends")]


def _matrix(
    sent: np.ndarray[Any, Any], devices: Sequence[int], owners: Mapping[int, int]
) -> Either:
    most = int(sent.max()) or 1
    is_wide = len(devices) <= _WIDE
    names = [device_label(device, owners) for device in devices]
    places = range(len(devices))

    def box(source: int, target: int) -> Box:
        nbytes = int(sent[source, target])
        if not nbytes:
            return Box(["·"], "transparent", "", "·")
        text = format_bytes(nbytes)
        title = f"{names[source]} sends {text} to {names[target]}"
        return Box([text if is_wide else ""], f"rgba(0,114,178,{0.08 + nbytes / most / 2:.2f})",
                   title, text)  # fmt: skip

    boxes = [[box(s, t) for t in places] for s in places]
    columns = [f"d{d}" if is_wide else "" for d in devices]
    if is_wide:
        text = _table(sent, [name.replace(" ", "") for name in names])
    else:
        text = "\n".join(f"  {_line_text(n, sent[i], columns=names)}" for i, n in enumerate(names))
    return Either([Grid(boxes, columns, names)], text)


def _table(sent: np.ndarray[Any, Any], names: Sequence[str]) -> str:
    """Returns numbers of one unit, as eight sizes with theirs are wider than a terminal."""
    last = len(BYTE_UNITS) - 1
    power = next(k for k in range(last + 1) if sent.max() < 999.5 * 1024**k or k == last)
    cells = [[f"{x / 1024**power:.3g}" if x else "·" for x in row] for row in sent.tolist()]
    rows = [[BYTE_UNITS[power], *(name.partition("d")[2] for name in names)]]
    rows += [[name, *row] for name, row in zip(names, cells, strict=True)]
    return text_table(rows, ">" * len(rows[0]))


def _line_text(name: str, sent: np.ndarray[Any, Any], columns: Sequence[str]) -> str:
    to = [f"{format_bytes(int(sent[t]))} to {columns[t]}" for t in map(int, np.flatnonzero(sent))]
    more = [f"… {plural(len(to) - 3, 'more device')}"] if len(to) > 3 else []
    return one_line(f"{name}: {', '.join([*to[:3], *more]) or 'nothing'}", WIDTH - 2)
