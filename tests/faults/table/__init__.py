"""The table of faults: when × how × which process, to what the user is told and has to type."""

from __future__ import annotations

from faults.table.axes import (
    DEVICES,
    HOW,
    IS_REPORT,
    NO_ROW,
    PROCESSES,
    WHEN,
    WHICH,
    all_places,
    index_of,
)
from faults.table.rows import ROWS, Row, has_meaning
from faults.table.sample import in_the_gate

__all__ = [
    "DEVICES",
    "HOW",
    "IS_REPORT",
    "NO_ROW",
    "PROCESSES",
    "ROWS",
    "WHEN",
    "WHICH",
    "Row",
    "all_places",
    "has_meaning",
    "in_the_gate",
    "index_of",
]
