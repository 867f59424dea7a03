"""The card of what a call compiles to: its collectives, and what it costs each device."""

from __future__ import annotations

import re
from collections.abc import Sequence

from jaxnb.display.blocks import Block, Cell, Column, Either, Facts, Fold, Note, Table
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import middle, wrapped
from jaxnb.labels import format_bytes, format_count, plural, plural_word, type_label
from jaxnb.model.compiled import AxisTotal, Collective, CompiledReport, Part

MAX_ROWS = 60
_MAX_MESHES = 4
_LONGEST = 120
"""Characters of a cell."""

_COLUMNS = (
    Column("collective"),
    Column("over", least=8),
    Column("group", ">"),
    Column("result", least=12),
    Column("sends", ">"),
    Column(align=">", short="scattered", optional=True, wrap=True),
    Column("times", ">"),
    Column("line", least=12),
)

_KINDS = {"bfloat": "bf", "float": "f", "complex": "c", "uint": "u", "int": "i"}

_SENDS = (
    "Sends: what one execution makes each device send, by ring and pairwise algorithms. "
    "`%spmd_help collective` explains the word."
)
_LOOPS = "XLA counts the body of a loop once, so FLOPs and memory traffic are too low."
_UNKNOWN = "?: in a loop whose trip count is not known before it runs; totals count it once."
_AT_MOST = "≤: in a branch that may not be taken."
_SCATTERED = (
    "As reduce-scatter: each device uses only its own part of the sum, and a GPU or TPU sends that "
    "part."
)
_ARGUMENT = "A name in the place of a line: the argument that XLA moves to use it."
_PART = "(part): groups of only some of the devices along the axis."
_WIDENED = "On the CPU, XLA moves bfloat16 as float32: a GPU sends half as much of these."
_CPU = (
    "From XLA's CPU compiler: that of a GPU combines collectives, starts them early, and uses "
    "reduce-scatters."
)


def collectives_card(report: CompiledReport, *, planned: bool = False) -> Card:
    """The collectives of a compiled call, their totals by axis, and its cost per device.

    Args:
        report: What the call compiles to.
        planned: It was compiled for devices that there need not be.
    """
    groups = _alike(report.collectives)
    rows = [_cells(group) for group in groups[:MAX_ROWS]]
    tooltips = [group[0].operation for group in groups[:MAX_ROWS]]
    totals = [_total(total) for total in report.totals]
    return card_of(
        Facts(_facts(report, planned), report.name),
        Table(_COLUMNS, rows, tooltips, (len(groups) - MAX_ROWS, "row")),
        Note("each device sends in one call:" if totals else ""),
        Table([Column(), Column(align=">"), Column(optional=True), Column()], totals),
        *(Note(f"{label}: {' · '.join(each)}", wrap=False) for label, each in _costs(report)),
        Note(" ".join(_notes(report)), "dim"),
        *_general(report),
    )


def _facts(report: CompiledReport, planned: bool) -> list[str]:
    meshes = [f"mesh {mesh.label}" for mesh in report.meshes[:_MAX_MESHES]]
    if (more := len(report.meshes) - _MAX_MESHES) > 0:
        meshes.append(f"… {plural(more, 'more mesh')}")
    count = len(report.collectives)
    return [
        f"{'planned for ' if planned else ''}{plural(report.num_devices, 'device')}",
        *meshes,
        plural(count, "collective") if count else "no collectives",
        "compiled, not run",
    ]


def _alike(found: Sequence[Collective]) -> list[list[Collective]]:
    """Returns collectives by row: those that are alike in all that is shown are one."""
    alike: dict[tuple[object, ...], list[Collective]] = {}
    for each in found:
        key = (each.kind, each.asynchronous, each.axes, each.whole_axes, each.group_size,
               each.parts, each.count is None, each.at_most, str(each.source), each.argument,
               each.scatter_bytes)  # fmt: skip
        alike.setdefault(key, []).append(each)
    return list(alike.values())


def _cells(group: list[Collective]) -> list[str | Cell]:
    first = group[0]
    cells = (
        first.kind + (" async" if first.asynchronous else ""),
        _axes(first),
        str(first.group_size),
        _type(first.parts),
        format_bytes(first.bytes),
        _scattered(first),
        _times(group),
        str(first.source or first.argument or "–"),
    )
    return [cell if isinstance(cell, Cell) else middle(cell, _LONGEST) for cell in cells]


def _scattered(each: Collective | AxisTotal) -> Cell:
    if each.scatter_bytes == each.bytes:
        return Cell()
    less = format_bytes(each.scatter_bytes)
    return Cell(f"as reduce-scatter {less}", short=less)


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


def _total(total: AxisTotal) -> tuple[Cell, str, str, str]:
    over = ", ".join(total.axes) if total.axes else "no axis"
    low = "≥ " if total.at_least else ""
    high = "≤ " if total.at_most and not total.at_least else ""
    count = f"{format_count(total.count)} {plural_word(total.count, 'execution')}"
    less = _scattered(total).text
    return Cell(over, "bold"), f"{low}{high}{format_bytes(total.bytes)}", less, count


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
    notes = []
    if any(each.count is None for each in found):
        notes.append(_UNKNOWN)
    if any(each.at_most for each in found):
        notes.append(_AT_MOST)
    if any(each.scatter_bytes < each.bytes for each in found):
        notes.append(_SCATTERED)
    if any(each.argument and not each.source for each in found):
        notes.append(_ARGUMENT)
    if any(each.axes and not each.whole_axes for each in found):
        notes.append(_PART)
    if report.has_loops and report.flops is not None:
        notes.append(_LOOPS)
    if report.widened and any("float32" in str(part) for each in found for part in each.parts):
        notes.append(_WIDENED)
    return notes


def _general(report: CompiledReport) -> list[Block]:
    """Returns what holds of all reports, or of all for the CPU: folded, and short as text."""
    cpu = _CPU if report.platform == "cpu" and report.num_devices > 1 else ""
    notes = " ".join(filter(None, [_SENDS if report.collectives else "", cpu]))
    folded = Fold(Facts(["how this is counted"], look="dim"), [Note(notes, "dim")])
    return [Either([folded], wrapped(cpu))] if notes else []
