"""The table of faults: when × how × which process, to what the user is told and has to type."""

from __future__ import annotations

from faults.table.axes import (
    DEVICES,
    HOW,
    NO_ROW,
    PROCESSES,
    WHEN,
    WHICH,
    all_places,
    index_of,
)
from faults.table.rows import ROWS, Row, has_meaning

__all__ = [
    "DEVICES",
    "HOW",
    "NO_ROW",
    "PROCESSES",
    "ROWS",
    "WHEN",
    "WHICH",
    "Row",
    "all_places",
    "has_meaning",
    "index_of",
]
