"""A comparison as bars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jaxnb.compiled import ranking
from jaxnb.compiled.card_comparison import TITLES, format_time
from jaxnb.display.bars import byte_ticks, keys_of, stacked_bars, time_ticks
from jaxnb.display.blocks import Block, Facts, Note
from jaxnb.display.card import Card, card_of
from jaxnb.labels import format_bytes, one_line, plural
from jaxnb.model.compiled import Column, ComparisonReport, Variant


def chart_card(report: ComparisonReport) -> Card:
    """What shardings of a function send, need and take, as bars; the best of each has a star."""
    shardings = plural(len(report.variants), "sharding")
    return card_of(Facts([shardings], report.function), *_panels(report.variants))


def _panels(variants: Sequence[Variant]) -> Iterator[Block]:
    for column, (_, title) in TITLES.items():
        numbers = [ranking.number(each, column) for each in variants]
        if not any(numbers):
            continue
        is_size = column in ("bytes", "memory")
        show = (lambda x: format_bytes(round(x))) if is_size else format_time
        best = ranking.marked(variants, column)
        labels = [
            f"{one_line(v.name, 24)} · {'★ ' if is_best else ''}{'–' if x is None else show(x)}"
            for v, x, is_best in zip(variants, numbers, best, strict=True)
        ]
        stacks = _stacks(variants, column)
        scattered = [
            f"{one_line(v.name, 24)} {format_bytes(v.scatter_bytes)}"
            for v in variants
            if column == "bytes" and v.scatter_bytes not in (None, v.bytes)
        ]
        less = f"; as reduce-scatters {', '.join(scattered)}" if scattered else ""
        yield Note(f"{title}{less}", "bold")
        yield stacked_bars(
            labels, keys_of(stacks), [*stacks.values()], byte_ticks if is_size else time_ticks, show
        )


def _stacks(variants: Sequence[Variant], column: Column) -> dict[str, list[float]]:
    """Returns the parts of the bars: label to a size for each variant."""
    parts = [_parts(each, column) for each in variants]
    labels = {label: None for each in parts for label, size in each.items() if size}
    return {label: [each.get(label, 0.0) for each in parts] for label in labels}


def _parts(variant: Variant, column: Column) -> dict[str, float]:
    report = variant.report
    if column == "bytes" and report is not None:
        return {f"over {', '.join(t.axes) or 'no axis'}": t.bytes for t in report.totals}
    if column == "memory" and report is not None and (memory := report.memory) is not None:
        return {
            "arguments": memory.argument_bytes,
            "outputs": memory.output_bytes - memory.alias_bytes,
            "temporary": memory.temporary_bytes,
        }
    name = "measured once" if column == "compile" else "median"
    return {name: ranking.number(variant, column) or 0.0}
