"""The card of what a call compiles to: its collectives, and what it costs each device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jaxnb.compiled import table
from jaxnb.display.card import Card, render
from jaxnb.display.text import fitted_table, joined, middle, text_table, wrapped
from jaxnb.labels import format_bytes, format_count, plural, plural_word, type_label
from jaxnb.model.collectives import AxisTotal, Collective, CompiledReport, Part
from jaxnb.model.layout import MeshInfo

MAX_ROWS = 60
_MAX_MESHES = 4
_LONGEST = 120
"""Characters of a cell of the HTML table."""

_TITLES = ("collective", "over", "group", "result", "sends", "times", "line")
_ALIGN = "<<><>><"
_NUMBERS = (2, 4, 5)
_SHRINK = {1: 8, 3: 12, 6: 12}

_KINDS = {"bfloat": "bf", "float": "f", "complex": "c", "uint": "u", "int": "i"}

_SENDS = "Sends: what one execution makes each device send, by ring and pairwise algorithms."
_LOOPS = "XLA counts the body of a loop once, so FLOPs and memory traffic are too low."
_UNKNOWN = "?: in a loop whose trip count is not known before it runs; totals count it once."
_AT_MOST = "≤: in a branch that may not be taken."
_PART = "(part): groups of only some of the devices along the axis."
_WIDENED = "On the CPU, XLA moves bfloat16 as float32: a GPU sends half as much of these."
_CPU = (
    "From XLA's CPU compiler. That of a GPU combines collectives, starts them early, and turns "
    "an all-reduce of which each device needs a part into a reduce-scatter."
)


@dataclass(frozen=True, slots=True)
class _Row:
    """Collectives that are alike, as text by column."""

    cells: tuple[str, ...]
    operation: str


def collectives_card(report: CompiledReport, *, planned: bool = False) -> Card:
    """The collectives of a compiled call, their totals by axis, and its cost per device.

    Args:
        report: What the call compiles to.
        planned: It was compiled for devices that there need not be.
    """
    rows = _rows(report.collectives)
    shown, more = rows[:MAX_ROWS], max(0, len(rows) - MAX_ROWS)
    heading = report.name
    facts = _facts(report, planned)
    totals = [_total(total) for total in table.totals(report.collectives)]
    costs = _costs(report)
    notes = _notes(report)
    html = render(
        "collectives",
        heading=heading,
        facts=facts,
        titles=[(title, place in _NUMBERS) for place, title in enumerate(_TITLES)],
        rows=[([middle(cell, _LONGEST) for cell in row.cells], row.operation) for row in shown],
        more=more,
        totals=totals,
        costs=costs,
        notes=notes,
    )
    parts = [joined([heading, *facts])]
    if shown:
        lines = [_TITLES, *(row.cells for row in shown)]
        parts.append(fitted_table(lines, _ALIGN, _SHRINK))
    if more:
        parts.append(f"  … {plural(more, 'more row')}")
    if totals:
        parts.append("each device sends in one call:")
        parts.append(text_table([list(total) for total in totals], "<><"))
    parts += [f"{label}: {' · '.join(values)}" for label, values in costs]
    parts.append(wrapped(" ".join(notes)) if notes else "")
    return Card(html, "\n".join(part for part in parts if part))


def _facts(report: CompiledReport, planned: bool) -> list[str]:
    meshes = [f"mesh {_mesh_label(mesh)}" for mesh in report.meshes[:_MAX_MESHES]]
    if (more := len(report.meshes) - _MAX_MESHES) > 0:
        meshes.append(f"… {plural(more, 'more mesh')}")
    count = len(report.collectives)
    return [
        f"{'planned for ' if planned else ''}{plural(report.num_devices, 'device')}",
        *meshes,
        plural(count, "collective") if count else "no collectives",
        "compiled, not run",
    ]


def _mesh_label(mesh: MeshInfo) -> str:
    sizes = zip(mesh.axis_names, mesh.shape, strict=True)
    return " × ".join(f"{name} {size}" for name, size in sizes)


def _rows(found: Sequence[Collective]) -> list[_Row]:
    """Returns a row for each collective, one for those that are alike in all that is shown."""
    alike: dict[tuple[object, ...], list[Collective]] = {}
    for each in found:
        key = (each.kind, each.asynchronous, each.axes, each.whole_axes, each.group_size,
               each.parts, each.count is None, each.at_most, str(each.source))  # fmt: skip
        alike.setdefault(key, []).append(each)
    return [_row(group) for group in alike.values()]


def _row(group: list[Collective]) -> _Row:
    first = group[0]
    return _Row(
        (
            first.kind + (" async" if first.asynchronous else ""),
            _axes(first),
            str(first.group_size),
            _type(first.parts),
            format_bytes(first.bytes),
            _times(group),
            str(first.source) if first.source else "–",
        ),
        first.operation,
    )


def _axes(each: Collective) -> str:
    if each.axes:
        return ", ".join(each.axes) + ("" if each.whole_axes else " (part)")
    return "itself" if each.whole_axes else "no axis"


def _type(parts: tuple[Part, ...]) -> str:
    if not parts:
        return "–"
    first = _short(parts[0])
    if len(parts) == 1:
        return first
    if len(set(parts)) == 1:
        return f"{len(parts)} × {first}"
    return f"{first} + {len(parts) - 1} more"


def _short(part: Part) -> str:
    """Returns an array's type as jaxprs have it: ``f32[4,8]``."""
    found = re.match(r"(bfloat|float|complex|uint|int)(\d.*)", part.dtype)
    dtype = f"{_KINDS[found[1]]}{found[2]}" if found else part.dtype
    return type_label(dtype, part.shape)


def _times(group: Sequence[Collective]) -> str:
    if group[0].count is None:
        return "?" if len(group) == 1 else f"{len(group)} × ?"
    total = format_count(sum(each.count or 0 for each in group))
    return f"≤ {total}" if group[0].at_most else total


def _total(total: AxisTotal) -> tuple[str, str, str]:
    over = ", ".join(total.axes) if total.axes else "no axis"
    low = "≥ " if total.at_least else ""
    high = "≤ " if total.at_most and not total.at_least else ""
    count = f"{format_count(total.count)} {plural_word(total.count, 'execution')}"
    return over, f"{low}{high}{format_bytes(total.bytes)}", count


def _costs(report: CompiledReport) -> list[tuple[str, list[str]]]:
    """Returns what each device needs and does, as labels and values."""
    costs: list[tuple[str, list[str]]] = []
    if report.memory is not None:
        memory = report.memory
        sizes = [
            f"arguments {format_bytes(memory.argument_bytes)}",
            f"outputs {format_bytes(memory.output_bytes)}",
            f"temporary {format_bytes(memory.temporary_bytes)}",
        ]
        if memory.alias_bytes:
            sizes[1] += f" ({format_bytes(memory.alias_bytes)} donated)"
        costs.append(("each device's memory", sizes))
    work = []
    if report.flops is not None:
        work.append(f"{format_count(round(report.flops))} FLOPs")
    if report.accessed_bytes is not None:
        work.append(f"{format_bytes(report.accessed_bytes)} read and written")
    if work:
        costs.append(("each device's work", work))
    return costs


def _notes(report: CompiledReport) -> list[str]:
    found = report.collectives
    notes = [_SENDS] if found else []
    if any(each.count is None for each in found):
        notes.append(_UNKNOWN)
    if any(each.at_most for each in found):
        notes.append(_AT_MOST)
    if any(each.axes and not each.whole_axes for each in found):
        notes.append(_PART)
    if report.has_loops and report.flops is not None:
        notes.append(_LOOPS)
    if report.widened and any("float32" in str(part) for each in found for part in each.parts):
        notes.append(_WIDENED)
    if report.platform == "cpu" and report.num_devices > 1:
        notes.append(_CPU)
    return notes
