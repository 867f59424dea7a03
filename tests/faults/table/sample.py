"""Which rows the gate plays: each cause that ends by itself, and each message; a few that hang."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

from faults.table.axes import WAITS_IN_JAX, WAITS_IN_PYTHON
from faults.table.rows import ROWS, Row, has_meaning
from support.sampling import sampled


def depends_on_patience(row: Row) -> bool:
    """Whether the row's process never answers, and how long it is waited for decides."""
    return row.when in ("starting", "re-forming") and row.how in ("SIGSTOP", "loop")


def hangs(row: Row) -> bool:
    """Whether the row's process has to be interrupted, or ended by force."""
    return row.how == "SIGSTOP" or row.how.startswith("deadlock")


def keys(row: Row) -> Iterator[Hashable]:
    """Yields what the row shows; for one that hangs only in what kind of wait."""
    if depends_on_patience(row):
        return
    if hangs(row):
        groups = {"in JAX": WAITS_IN_JAX, "in Python": WAITS_IN_PYTHON[:2]}
        yield "hangs", next((g for g, kinds in groups.items() if row.kind in kinds), row.kind)
        return
    yield "when", row.when
    yield "how", row.how
    yield "which", row.which
    for name in row.names:
        yield "names", name


def in_the_gate(seed: int, rows: Iterable[Row] = ROWS) -> set[Row]:
    """Returns the rows that ``make test`` plays, with this seed."""
    return sampled([row for row in rows if has_meaning(row)], keys, seed)
