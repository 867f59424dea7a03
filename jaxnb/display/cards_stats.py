"""The card of device and process memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxnb.display._text import text_table, wrapped
from jaxnb.display.card import Card, render
from jaxnb.labels import format_bytes, format_count, plural
from jaxnb.model import DeviceStats

_SOURCES = {
    "memory_stats": "In use, peak and limit are what the backend's memory_stats() says.",
    "live_arrays": "In use is the sum of the live arrays' shards; this backend has no "
    "memory_stats(), so temporaries and compiled code are not in it.",
}
_BAR_WIDTH = 8


@dataclass(frozen=True, slots=True)
class _Row:
    process: str
    device: str
    in_use: str
    peak: str
    limit: str
    percent: float | None
    live: str
    host_memory: str
    note: str


def stats_card(stats: Sequence[DeviceStats]) -> Card:
    """Memory in use per device, and resident memory per process; says where it is from."""
    ordered = sorted(stats, key=lambda s: (s.device.process_index, s.device.id))
    rows: list[_Row] = []
    shown: set[int] = set()
    for entry in ordered:
        rows.append(_row(entry, entry.device.process_index not in shown))
        shown.add(entry.device.process_index)
    pss = any(entry.process_pss_bytes is not None for entry in ordered)
    heading = f"{plural(len(ordered), 'device')} of {plural(len(shown), 'process')}"
    if kinds := sorted({entry.device.kind for entry in ordered}):
        heading += f" ({', '.join(kinds)})"
    used = [entry.bytes_in_use for entry in ordered if entry.bytes_in_use is not None]
    if used:
        heading += f" · {format_bytes(sum(used))} in use"
    host_column = "PSS / RSS" if pss else "RSS"
    source = _source(ordered, pss)
    html = render(
        "stats",
        heading=heading,
        rows=rows,
        host_column=host_column,
        source=source,
        with_bar=any(row.percent is not None for row in rows),
    )
    return Card(html, f"{heading}\n{_text(rows, host_column)}\n{wrapped(source)}")


def _row(entry: DeviceStats, first_of_process: bool) -> _Row:
    percent = None
    if entry.bytes_in_use is not None and entry.limit_bytes:
        percent = min(100.0, 100.0 * entry.bytes_in_use / entry.limit_bytes)
    device = entry.device
    return _Row(
        process=str(device.process_index) if first_of_process else "",
        device=str(device.id),
        in_use=_size(entry.bytes_in_use),
        peak=_size(entry.peak_bytes),
        limit=_size(entry.limit_bytes),
        percent=percent,
        live=format_count(entry.live_arrays),
        host_memory=_host_memory(entry) if first_of_process else "",
        note=entry.note,
    )


def _size(size_bytes: int | None) -> str:
    return "–" if size_bytes is None else format_bytes(size_bytes)


def _host_memory(entry: DeviceStats) -> str:
    sizes = [entry.process_pss_bytes, entry.process_rss_bytes]
    return " / ".join(format_bytes(size) for size in sizes if size is not None) or "–"


def _source(stats: Sequence[DeviceStats], pss: bool) -> str:
    parts = [_SOURCES[name] for name in _SOURCES if any(s.source == name for s in stats)]
    if pss:
        parts.append("PSS counts pages that processes share once over all of them, RSS in each.")
    return " ".join(parts)


def _text(rows: Sequence[_Row], host_column: str) -> str:
    with_bar = any(row.percent is not None for row in rows)
    header = ["process", "device", "in use", "peak", "limit", "arrays", host_column]
    table = [header] + [
        [r.process, r.device, r.in_use, r.peak, r.limit, r.live, r.host_memory] for r in rows
    ]
    align = "><>>>>>"
    if with_bar:
        bars = ["", *(_text_bar(row.percent) for row in rows)]
        table = [[*row[:2], bar, *row[2:]] for row, bar in zip(table, bars, strict=True)]
        align = "><<>>>>>"
    notes = dict.fromkeys(f"  {row.note}" for row in rows if row.note)
    return "\n".join([text_table(table, align, gap=1 if with_bar else 2), *notes])


def _text_bar(percent: float | None) -> str:
    if percent is None:
        return ""
    filled = round(percent / 100 * _BAR_WIDTH)
    return "█" * filled + "░" * (_BAR_WIDTH - filled)
