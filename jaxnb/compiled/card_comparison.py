"""The card of a function under several shardings."""

from __future__ import annotations

from jaxnb.compiled import ranking
from jaxnb.display.blocks import Cell, Column, Either, Facts, Note, Row, Table
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import middle, wrapped
from jaxnb.labels import (
    format_bytes,
    format_count,
    format_seconds,
    one_line,
    plural,
    plural_word,
    processes_label,
)
from jaxnb.model import compiled as model

MAX_WARNINGS = 8
_LONGEST = 400
"""Characters of an error's message."""

_NAME = 40
_LEAST = 12
"""Characters of a name that a row of text has at least."""

TITLES: dict[model.Column, tuple[str, str]] = {
    "bytes": ("sends", "each device sends in one call"),
    "memory": ("memory", "memory of each device"),
    "compile": ("compile", "compile time"),
    "time": ("call", "time of one call"),
}
"""The title of each column in a table, and in a chart."""

STAGES: dict[model.ComparisonStage, str] = {
    "placed": "its arguments cannot be laid out like that",
    "traced": "JAX could not trace it",
    "lowered": "JAX could not lower it",
    "compiled": "XLA could not compile it",
    "read": "what XLA compiled could not be read",
    "agreed": "the processes do not agree",
    "run": "it did not run",
}

_BEST = "{mark} best in column (ties within noise are all marked; none is if all tie)."
_SENDS = "Sends: what one call makes each device send, by ring and pairwise algorithms."
_MEMORY = (
    "Memory: what the program needs of each device. Compile: measured once; a program that was "
    "compiled before is loaded."
)
_CALL = (
    "Call: the median and the middle half of the calls; each call's time is that of its slowest "
    "process."
)
_SCATTERED = (
    "Scattered: the same, with each sum of which a device uses only its own part sent as a "
    "reduce-scatter, as GPUs and TPUs do."
)
_CPU = "Compiled and timed on CPUs: a GPU has other collectives and other times."
_CPU_PLAN = "From XLA's CPU compiler; a GPU's combines and moves collectives."


def comparison_card(report: model.ComparisonReport) -> Card:
    """What each sharding of a function sends, needs and takes, the best of each marked."""
    variants = report.variants
    meshes = {v.mesh.label for v in variants if v.mesh is not None}
    warnings = [_warning(v.name, each) for v in variants for each in v.warnings]
    shown = warnings[:MAX_WARNINGS]
    if (more := len(warnings) - MAX_WARNINGS) > 0:
        shown.append(f"… {plural(more, 'more output')}; `.warnings` has all.")
    table = _table(report, with_meshes=len(meshes) > 1)
    return card_of(
        Facts(_facts(report, meshes), report.function),
        table,
        Either(text=_meshes_text(report)),
        _collectives(report),
        *(Note(f"{_name(v)}: {failure_text(v.failure)}") for v in variants if v.failure),
        *(Note(text, "warn", before="! ") for text in shown),
        _closing(report, table),
    )


def _name(variant: model.Variant) -> str:
    return one_line(variant.name, _NAME)


def _facts(report: model.ComparisonReport, meshes: set[str]) -> list[str]:
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


def _table(report: model.ComparisonReport, *, with_meshes: bool) -> Table:
    columns = [
        Column("sharding", least=_LEAST),
        Column("mesh", only="html", optional=True),
        *(Column(title, ">", wrap=True) for title, _ in TITLES.values()),
        Column(wrap=True),
        Column("scattered", ">", optional=True, wrap=True),
    ]
    scatters = any(map(_scatters, report.variants))
    best = {column: ranking.marked(report.variants, column) for column in TITLES}
    rows: list[Row] = []
    for place, variant in enumerate(report.variants):
        rows.append([
            Cell(_name(variant), "bold"),
            variant.mesh.label if variant.mesh and with_meshes else "",
            *(_cell(variant, column, best[column][place]) for column in TITLES),
            Cell(_spread(variant), "dim"),
            format_bytes(variant.scatter_bytes) if scatters and variant.report else "",
        ])  # fmt: skip
    return Table(columns, rows)


def _cell(variant: model.Variant, column: model.Column, is_best: bool) -> Cell:
    number = ranking.number(variant, column)
    if number is None:
        return Cell("–")
    if column not in ("bytes", "memory"):
        text = format_time(number)
    else:
        collectives = variant.report.collectives if variant.report and column == "bytes" else ()
        at_least = any(each.count is None for each in collectives)
        text = f"{'≥ ' if at_least else ''}{format_bytes(number)}"
    if not is_best:
        return Cell(text)
    return Cell(f"{text} ★", "bold", short=f"*{text}", title="best of this column")


def _scatters(variant: model.Variant) -> bool:
    return variant.scatter_bytes not in (None, variant.bytes)


def _spread(variant: model.Variant) -> str:
    if variant.timing is None:
        return ""
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


def _meshes_text(report: model.ComparisonReport) -> str:
    """Returns which variant is on which mesh, where they differ."""
    names: dict[str, list[str]] = {}
    for variant in report.variants:
        if variant.mesh is not None:
            names.setdefault(variant.mesh.label, []).append(_name(variant))
    if len(names) < 2:
        return ""
    return wrapped("; ".join(f"mesh {mesh}: {', '.join(who)}" for mesh, who in names.items()) + ".")


def _details(variant: model.Variant) -> list[str]:
    """Returns a variant's collectives by kind and axes, the ones that send most first."""
    if variant.report is None:
        return []
    sums: dict[tuple[str, str], tuple[int, int, bool]] = {}
    for each in variant.report.collectives:
        over = ", ".join(each.axes) or ("itself" if each.whole_axes else "no axis")
        count, nbytes, unknown = sums.get((each.kind, over), (0, 0, False))
        sums[each.kind, over] = (
            count + each.times,
            nbytes + each.times * each.bytes,
            unknown or each.count is None,
        )
    ordered = sorted(sums.items(), key=lambda item: -item[1][1])
    return [
        f"{'≥ ' if unknown else ''}{format_count(count)} {kind} over {over} {format_bytes(nbytes)}"
        for (kind, over), (count, nbytes, unknown) in ordered
    ]


def _collectives(report: model.ComparisonReport) -> Table:
    title = "collectives of one call"
    columns = [Column("sharding", least=_LEAST), Column(title, least=_LEAST, wrap=True)]
    return Table(
        columns,
        [(_name(v), " · ".join(found)) for v in report.variants if (found := _details(v))],
    )


def failure_text(failure: model.VariantFailure) -> str:
    """Returns why a variant has no numbers, or no time."""
    parts = [failure.message]
    if failure.error is not None and failure.error.type_name != "UsageError":
        lines = [line for line in str(failure.error).splitlines() if line.strip()]
        # What a callback raises has its own traceback, whose last line says what.
        ends = lines[:1] if len(lines) < 2 or lines[0][-1] != ":" else [lines[0], lines[-1]]
        parts.append(middle(" … ".join(ends), _LONGEST))
    return f"{STAGES[failure.stage]}: {' '.join(part for part in parts if part)}"


def _warning(variant: str, warning: model.OutputWarning) -> str:
    what = f"{one_line(variant, _NAME)}: {warning.output}, {warning.type}, "
    holds = f"{format_bytes(warning.device_bytes)} on each device"
    less = f"{warning.expected}: {format_bytes(warning.expected_bytes)}"
    if warning.kind == "resharded":
        said = (
            f"came out as {warning.spec}, {holds}; the argument {warning.argument}, of the same "
            f"shape, is {less}."
        )
    else:
        said = f"was replicated: {holds}. It could be {less}."
    return (
        f"{what}{said} Type `out_shardings=` for `jax.jit`, or "
        f"`jax.lax.with_sharding_constraint(…, {warning.expected})` in the function; to compare, "
        f"`out_specs={{{variant!r}: …}}`."
    )


def _closing(report: model.ComparisonReport, table: Table) -> Either:
    """Returns what is said below; the best are marked in another way as text."""
    is_marked = any(isinstance(c, Cell) and c.short is not None for row in table.rows for c in row)
    star, asterisk = (
        " ".join([*([_BEST.format(mark=mark)] if is_marked else []), *_notes(report)])
        for mark in "★*"
    )
    return Either([Note(star, "dim")], wrapped(asterisk))


def _notes(report: model.ComparisonReport) -> list[str]:
    compiled = [v.report for v in report.variants if v.report is not None]
    notes: list[str] = []
    if report.not_run and not report.planned:
        notes.append(f"Nothing was run: {report.not_run}.")
    if any(each.collectives for each in compiled):
        notes.append(_SENDS)
    if any(map(_scatters, report.variants)):
        notes.append(_SCATTERED)
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
