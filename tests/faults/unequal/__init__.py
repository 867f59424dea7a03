"""The table of what is unequal × where × mode → what is said, each row with a healthy twin."""

from __future__ import annotations

from faults.unequal import inputs, nans, programs, replicas, results, settings
from faults.unequal.row import Row

ROWS: tuple[Row, ...] = (
    *inputs.ROWS,
    *programs.ROWS,
    *replicas.ROWS,
    *results.ROWS,
    *settings.ROWS,
    *nans.ROWS,
)
"""All rows. A group of rows is a module beside this one; add its ``ROWS`` here."""
