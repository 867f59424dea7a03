"""Pure: bytes by device, as rows with a bar."""

from __future__ import annotations

from collections.abc import Mapping

from jaxnb.arrays.draw_text import bytes_lines
from jaxnb.display.blocks import Cell, Column, Either, Length, Row, Strip, Table
from jaxnb.display.html import ACCENT
from jaxnb.labels import format_bytes

_MAX_ROWS = 16


def sizes_block(
    sizes: Mapping[int, int], owners: Mapping[int, int], most: int = _MAX_ROWS
) -> Either:
    """Returns what each device holds, as a table with bars and as a line of text.

    Args:
        sizes: Device id to bytes.
        owners: Device id to the process that owns the device.
        most: How many devices to show at most.
    """
    largest = max(sizes.values(), default=0)
    shown = sorted(sizes.items())[:most]
    rows: list[Row] = [
        [
            f"device {device} · process {owners[device]}",
            Cell(strip=Strip([Length(0, 100 * size / largest if largest else 0.0, ACCENT)])),
            format_bytes(size),
        ]
        for device, size in shown
    ]
    more = max(0, len(sizes) - most)
    columns = [Column("device"), Column(), Column("bytes", ">")]
    table = Table(columns, rows, more=(more, "device"))
    labels = [(f"P{owners[device]} d{device}", format_bytes(size)) for device, size in shown]
    return Either([table], bytes_lines(labels, more))
