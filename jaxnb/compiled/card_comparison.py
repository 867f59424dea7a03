"""The card of a function under several shardings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxnb.compiled import ranking
from jaxnb.display.card import Card, render
from jaxnb.display.text import WIDTH, fitted_table, indented, joined, middle, wrapped
from jaxnb.labels import (
    format_bytes,
    format_count,
    format_seconds,
    one_line,
    plural,
    plural_word,
    processes_label,
)
from jaxnb.model.comparisons import (
    Column,
    ComparisonReport,
    ComparisonStage,
    OutputWarning,
    Variant,
    VariantFailure,
)
from jaxnb.model.layout import MeshInfo

MAX_WARNINGS = 8
_LONGEST = 400
"""Characters of an error's message."""

_NAME = 40
_LEAST = 12
"""Characters of a name that a row of text has at least."""

_TITLES: dict[Column, str] = {
    "bytes": "sends",
    "memory": "memory",
    "compile": "compile",
    "time": "call",
}

STAGES: dict[ComparisonStage, str] = {
    "placed": "its arguments cannot be laid out like that",
    "traced": "JAX could not trace it",
    "lowered": "JAX could not lower it",
    "compiled": "XLA could not compile it",
    "read": "what XLA compiled could not be read",
    "agreed": "the processes do not agree",
    "run": "it did not run",
}

_BEST = "{mark} best of its column; of times, all that cannot be told apart."
_SENDS = "Sends: what one call makes each device send, by ring and pairwise algorithms."
_MEMORY = "Memory: what the program needs of each device. Compile: measured once."
_CALL = (
    "Call: the median, and the middle half of the calls; of each call the slowest process counts."
)
_CPU = "Compiled and timed on CPUs: a GPU has other collectives and other times."
_CPU_PLAN = "From XLA's CPU compiler; a GPU's combines and moves collectives."


@dataclass(frozen=True, slots=True)
class _Cell:
    """A number in the table."""

    text: str
    spread: str = ""
    is_best: bool = False


def comparison_card(report: ComparisonReport) -> Card:
    """What each sharding of a function sends, needs and takes, the best of each marked."""
    variants = report.variants
    cells = _cells(report)
    meshes = {mesh_label(v.mesh) for v in variants if v.mesh is not None}
    heading, facts = report.function, _facts(report, meshes)
    details = [(_name(v), _details(v)) for v in variants if v.report is not None]
    failures = [(_name(v), failure_text(v.failure)) for v in variants if v.failure]
    warnings = [(v.name, w) for v in variants for w in v.warnings]
    shown = [_warning(name, each) for name, each in warnings[:MAX_WARNINGS]]
    if (more := len(warnings) - MAX_WARNINGS) > 0:
        shown.append(f"… {plural(more, 'more output')}; `.warnings` has all.")
    notes = _notes(report)
    columns = list(_TITLES)
    html = render(
        "comparison",
        heading=heading,
        facts=facts,
        titles=list(_TITLES.values()),
        rows=[
            {
                "name": _name(v),
                "mesh": mesh_label(v.mesh) if v.mesh and len(meshes) > 1 else "",
                "cells": [cells[column][place] for column in columns],
                "details": _details(v) if v.report else [],
                "failure": failure_text(v.failure) if v.failure else "",
            }
            for place, v in enumerate(variants)
        ],
        with_meshes=len(meshes) > 1,
        warnings=shown,
        notes=[_best_note(report, cells, "★"), *notes],
    )
    lines = [joined([heading, *facts]), _text_table(report, cells), _meshes_text(report)]
    if any(found for _, found in details):
        lines.append("collectives of one call:")
        lines += [_labelled(name, found) for name, found in details if found]
    lines += [wrapped(f"{name}: {why}") for name, why in failures]
    lines += [indented(wrapped(text, WIDTH - 2), "! ") for text in shown]
    notes = [_best_note(report, cells, "*"), *notes]
    lines.append(wrapped(" ".join(note for note in notes if note)))
    return Card(html, "\n".join(line for line in lines if line))


def mesh_label(mesh: MeshInfo) -> str:
    """Returns a mesh's axes and sizes: ``"data 4 × model 2"``."""
    sizes = zip(mesh.axis_names, mesh.shape, strict=True)
    return " × ".join(f"{name} {size}" for name, size in sizes)


def _name(variant: Variant) -> str:
    return one_line(variant.name, _NAME)


def _facts(report: ComparisonReport, meshes: set[str]) -> list[str]:
    counts = sorted({len(v.mesh.device_ids) for v in report.variants if v.mesh is not None})
    facts = [plural(len(report.variants), "sharding")]
    if len(counts) == 1:
        facts.append(("planned for " if report.planned else "") + plural(counts[0], "device"))
    if len(meshes) == 1:
        facts += [f"mesh {mesh}" for mesh in meshes]
    if report.num_processes > 1:
        facts.append(plural(report.num_processes, "process"))
    timed = [v.timing for v in report.variants if v.timing is not None]
    if timed:
        low, high = min(t.repeats for t in timed), max(t.repeats for t in timed)
        facts.append(f"{low if low == high else f'{low}–{high}'} {plural_word(high, 'call')} each")
    elif report.not_run or report.planned:
        facts.append("compiled, not run")
    return facts


def _cells(report: ComparisonReport) -> dict[Column, list[_Cell]]:
    cells: dict[Column, list[_Cell]] = {}
    for column in _TITLES:
        best = ranking.marked(report.variants, column)
        cells[column] = [
            _cell(v, column, is_best) for v, is_best in zip(report.variants, best, strict=True)
        ]
    return cells


def _cell(variant: Variant, column: Column, is_best: bool) -> _Cell:
    number = ranking.number(variant, column)
    if number is None:
        return _Cell("–")
    if column in ("bytes", "memory"):
        at_least = column == "bytes" and any(
            each.count is None for each in (variant.report.collectives if variant.report else ())
        )
        return _Cell(f"{'≥ ' if at_least else ''}{format_bytes(number)}", "", is_best)
    if column == "time" and variant.timing is not None:
        return _Cell(format_time(number), _spread(variant), is_best)
    return _Cell(format_time(number), "", is_best)


def _spread(variant: Variant) -> str:
    assert variant.timing is not None
    low, high = format_time(variant.timing.low), format_time(variant.timing.high)
    if low.split()[1:] == high.split()[1:] and len(low.split()) == 2:
        low = low.split()[0]
    return f"{low}–{high}"


def format_time(seconds: float) -> str:
    """Returns a time with three digits below a second, as calls are compared by them."""
    if seconds >= 0.9995:
        return format_seconds(seconds)
    number, unit = (seconds * 1e6, "µs") if seconds < 0.9995e-3 else (seconds * 1e3, "ms")
    return f"{number:.{0 if number >= 99.5 else 1 if number >= 9.95 else 2}f} {unit}"


def _text_table(report: ComparisonReport, cells: dict[Column, list[_Cell]]) -> str:
    rows = [["sharding", *_TITLES.values(), ""]]
    for place, variant in enumerate(report.variants):
        row = [cells[column][place] for column in _TITLES]
        numbers = [f"{'*' if cell.is_best else ''}{cell.text}" for cell in row]
        rows.append([_name(variant), *numbers, row[-1].spread])
    return fitted_table(rows, "<>>>><", {0: _LEAST})


def _meshes_text(report: ComparisonReport) -> str:
    """Returns which variant is on which mesh, where they differ."""
    names: dict[str, list[str]] = {}
    for variant in report.variants:
        if variant.mesh is not None:
            names.setdefault(mesh_label(variant.mesh), []).append(_name(variant))
    if len(names) < 2:
        return ""
    return wrapped("; ".join(f"mesh {mesh}: {', '.join(who)}" for mesh, who in names.items()) + ".")


def _details(variant: Variant) -> list[str]:
    """Returns a variant's collectives by kind and axes, the ones that send most first."""
    assert variant.report is not None
    sums: dict[tuple[str, str], tuple[int, int, bool]] = {}
    for each in variant.report.collectives:
        over = ", ".join(each.axes) or ("itself" if each.whole_axes else "no axis")
        count, nbytes, unknown = sums.get((each.kind, over), (0, 0, False))
        times = 1 if each.count is None else each.count
        sums[each.kind, over] = (
            count + times,
            nbytes + times * each.bytes,
            unknown or each.count is None,
        )
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    return [
        f"{'≥ ' if unknown else ''}{format_count(count)} {kind} over {over} {format_bytes(nbytes)}"
        for (kind, over), (count, nbytes, unknown) in ordered
    ]


def _labelled(name: str, found: Sequence[str]) -> str:
    text = joined([f"  {name}: {found[0]}", *found[1:]])
    return text.replace("\n  ", "\n    ")


def failure_text(failure: VariantFailure) -> str:
    """Returns why a variant has no numbers, or no time."""
    parts = [failure.message]
    if failure.error is not None and failure.error.type_name != "UsageError":
        lines = [line for line in str(failure.error).splitlines() if line.strip()]
        # What a callback raises has its own traceback, whose last line says what.
        ends = lines[:1] if len(lines) < 2 or lines[0][-1] != ":" else [lines[0], lines[-1]]
        parts.append(middle(" … ".join(ends), _LONGEST))
    return f"{STAGES[failure.stage]}: {' '.join(part for part in parts if part)}"


def _warning(variant: str, warning: OutputWarning) -> str:
    what = f"{one_line(variant, _NAME)}: {warning.output}, {warning.type}, "
    holds = f"{format_bytes(warning.device_bytes)} on each device"
    less = f"{warning.expected}: {format_bytes(warning.expected_bytes)}"
    if warning.kind == "resharded":
        said = (
            f"was resharded: it came out as {warning.spec}, {holds}, and the argument "
            f"{warning.argument} is {less}."
        )
    else:
        said = f"was replicated: {holds}. It could be {less}."
    return (
        f"{what}{said} Type `out_shardings=` for `jax.jit`, or "
        f"`jax.lax.with_sharding_constraint(…, {warning.expected})` in the function; to compare, "
        f"`out_specs={{{variant!r}: …}}`."
    )


def _best_note(report: ComparisonReport, cells: dict[Column, list[_Cell]], mark: str) -> str:
    is_marked = any(cell.is_best for column in cells.values() for cell in column)
    return _BEST.format(mark=mark) if is_marked else ""


def _notes(report: ComparisonReport) -> list[str]:
    compiled = [v.report for v in report.variants if v.report is not None]
    notes: list[str] = []
    if report.not_run and not report.planned:
        notes.append(f"Nothing was run: {report.not_run}.")
    if any(each.collectives for each in compiled):
        notes.append(_SENDS)
    if compiled:
        notes.append(_MEMORY)
    timed = [v for v in report.variants if v.timing is not None]
    if timed:
        notes.append(_CALL)
        slow = {v.timing.slowest for v in timed if v.timing and v.timing.slowest is not None}
        if len(slow) == 1 and len(timed) > 1:
            notes.append(f"In all of them {processes_label(slow)} was the slowest.")
    notes += report.notes
    if compiled and compiled[0].platform == "cpu":
        notes.append(_CPU if timed else _CPU_PLAN)
    return notes
