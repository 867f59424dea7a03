"""Which of several variants is best, column by column."""

from __future__ import annotations

from collections.abc import Sequence

from jaxnb.model.compiled import Column, Variant

COLUMNS: tuple[Column, ...] = ("bytes", "memory", "compile", "time")


def number(variant: Variant, column: Column) -> float | None:
    """Returns what a variant has in a column; None if nothing."""
    match column:
        case "bytes":
            return variant.bytes
        case "memory":
            return variant.memory_bytes
        case "compile":
            return variant.compile_seconds
        case "time":
            return variant.seconds


def best(variants: Sequence[Variant], column: Column) -> Variant | None:
    """Returns the first variant with the least of a column; None if none has a number."""
    known = [v for v in variants if number(v, column) is not None]
    return min(known, key=lambda v: number(v, column) or 0.0, default=None)


def marked(variants: Sequence[Variant], column: Column) -> list[bool]:
    """Returns for each variant whether it is marked as best in a column.

    All with the least number are. Of times all are whose median lies within the middle half
    of the fastest's calls: they cannot be told apart. Where fewer than two have a number, and
    where all would be marked, none is.
    """
    first = best(variants, column)
    numbers = [number(v, column) for v in variants]
    known = [each for each in numbers if each is not None]
    if first is None or len(known) < 2:
        return [False] * len(variants)
    limit = first.timing.high if column == "time" and first.timing else min(known)
    found = [each is not None and each <= limit for each in numbers]
    return [False] * len(variants) if sum(found) == len(known) else found
