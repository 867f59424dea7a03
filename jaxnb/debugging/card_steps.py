"""The card of a stepped cell: a row for each line, with the values by device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import TYPE_CHECKING

from jaxnb.arrays.pictures import SHARED, mesh_grid, tint
from jaxnb.display.blocks import Beside, Block, Box, Facts, Grid, Note
from jaxnb.display.card import Card, card_of
from jaxnb.labels import plural
from jaxnb.model.steps import StepValue

if TYPE_CHECKING:
    from jaxnb.debugging.steps import Steps

MAX_SIDE, MAX_BOXES = 16, 64
"""Boxes across, and in all, of a value."""

MAX_CHARS = 100
"""With more characters the boxes of an axis stand one below the other."""

_AT = re.compile(r"(:| line )\d+$")

_NONE = (
    "No line within `shard_map` was run by the last statement. It has to call a function of yours "
    "under `jax.shard_map`, a cell's or one of a file beside the notebook."
)


def steps_card(steps: Steps) -> Card:
    """The lines in order, and below each the values that it has assigned, by device."""
    if not steps.steps:
        return card_of(Note(steps.apart or _NONE, "warn" if steps.apart else "dim"))
    found = (value.mesh for step in steps.steps for value in step.values)
    meshes = dict.fromkeys(mesh for mesh in found if mesh is not None)
    facts = [*(f"mesh {mesh.label}" for mesh in meshes), "without `jit`"]
    drawn: list[Block] = [Facts(facts, plural(len(steps.steps) + steps.more, "step"))]
    for mesh in meshes:
        drawn += mesh_grid(mesh, steps.owners)
    place = ""
    for step in steps.steps:
        before, place = place, f"{_AT.sub('', str(step.at))} · `{step.at.function}`"
        raised = [f"raised {step.raised}"] if step.raised else []
        drawn += [
            Note(place if place != before else "", "dim"),
            Facts(raised, f"line {step.at.line}: `{step.source}`", wrap=False),
            Beside([_drawn(value, steps.owners) for value in step.values]),
        ]
    rest = f"… {plural(steps.more, 'more step')}" if steps.more else ""
    return card_of(*drawn, Note(rest, "dim"), Note(steps.apart, "warn"))


def _drawn(value: StepValue, owners: Mapping[int, int]) -> list[Block]:
    blocks, mesh = value.blocks or {}, value.mesh
    same = len(blocks) > 1 and len(set(blocks.values())) == 1
    facts = [value.type, value.text, "same on all devices" if same else ""]
    name = Facts([*filter(None, facts)], f"`{value.name}`", "small", before="  ")
    if same:
        who = plural(len(blocks), "device")
        return [name, Grid([[_box(next(iter(blocks.values())), who, SHARED, stacked=True)]])]
    if not blocks or mesh is None:
        return [name]
    named = [
        [f"{name} {k}" for k in range(size)]
        for name, size in zip(mesh.axis_names, mesh.shape, strict=True)
    ]
    widest = max(len(line) for text in blocks.values() for line in text.split("\n"))
    if len(named) == 1 and widest * len(mesh.device_ids) > MAX_CHARS:
        named.append([""])  # one below the other
    across = min(len(named[-1]) if named else 1, MAX_SIDE)
    starts = range(0, len(mesh.device_ids), len(named[-1]) if named else 1)
    starts = starts[: max(1, MAX_BOXES // across)]
    boxes = [
        [
            _box(blocks[d], f"P{owners[d]} d{d}", tint(owners[d])) if d in blocks else None
            for d in mesh.device_ids[start : start + across]
        ]
        for start in starts
    ]
    rows = [", ".join(each) for each in product(*named[:-1])][: len(starts)]
    more = len(mesh.device_ids) - across * len(starts)
    rest = Note(f"… {plural(more, 'more device')}" if more else "", "dim")
    columns = named[-1][:across] if any(named[-1]) else ()
    return [name, Grid(boxes, columns, rows if len(named) > 1 else ()), rest]


def _box(text: str, who: str, color: str, *, stacked: bool = False) -> Box:
    flat = text.replace("\n", "")
    # Which brackets rows are in is seen from how they stand.
    lines = [line.strip(" []").replace("  ", "\N{NO-BREAK SPACE} ") for line in text.split("\n")]
    return Box(lines, color, f"{who}: {flat}", flat, stacked)
