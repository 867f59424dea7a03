"""Pure: bytes by device, as rows with a bar."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_MAX_ROWS = 16


@dataclass(frozen=True, slots=True)
class SizeRow:
    """What one device holds.

    Attributes:
        label: ``"device 2 · process 1"``.
        short: ``"P1 d2"``.
        size_bytes: How much.
        percent: Of the most that a device holds.
    """

    label: str
    short: str
    size_bytes: int
    percent: float


def size_rows(
    sizes: Mapping[int, int], owners: Mapping[int, int], most: int = _MAX_ROWS
) -> tuple[list[SizeRow], int]:
    """Returns a row for each device, and how many devices have none as there are too many.

    Args:
        sizes: Device id to bytes.
        owners: Device id to the process that owns the device.
        most: How many rows to return at most.
    """
    largest = max(sizes.values(), default=0)
    rows = [
        SizeRow(
            f"device {device} · process {owners[device]}",
            f"P{owners[device]} d{device}",
            size,
            100 * size / largest if largest else 0.0,
        )
        for device, size in sorted(sizes.items())[:most]
    ]
    return rows, max(0, len(sizes) - most)
