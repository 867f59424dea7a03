"""The card of device and process memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxnb.display.blocks import Cell, Column, Either, Facts, Length, Note, Row, Strip, Table
from jaxnb.display.card import Card, card_of
from jaxnb.display.html import ACCENT
from jaxnb.labels import (
    format_bytes,
    format_count,
    plural,
    plural_word,
    processes_label,
    ranks_label,
)
from jaxnb.profile.statistics import DeviceStats, LargeArray

_SOURCES = {
    "memory_stats": "In use, peak and limit are what the backend's memory_stats() says.",
    "live_arrays": "In use is the sum of the live arrays' shards; this backend has no "
    "memory_stats(), so temporaries and compiled code are not in it.",
}
_BAR_WIDTH = 8
_LARGEST = 5
NO_NAME = "no name"
NOT_FOUND = "name not found"


def stats_card(
    stats: Sequence[DeviceStats], words: str = "", *, at: str = "", ended: bool = False
) -> Card:
    """Memory and load per device, the largest arrays, and resident memory per process.

    Args:
        stats: The statistics.
        words: A sentence to put below.
        at: When they were taken, of those that are taken again: a notebook may be saved, or
            exported, while that goes on. They have the processor time of each process.
        ended: They are not taken again any more.
    """
    ordered = sorted(stats, key=lambda s: (s.device.process_index, s.device.id))
    processes = [entry.device.process_index for entry in ordered]
    pairs = zip(ordered, processes, [None, *processes], strict=False)
    firsts = [(entry, process != before) for entry, process, before in pairs]
    has_pss = any(entry.process_pss_bytes is not None for entry in ordered)
    gpu_notes = dict.fromkeys(entry.gpu_note for entry in ordered)
    source = " ".join(filter(None, [_source(ordered, has_pss), *gpu_notes, words]))
    notes = [entry.note if is_first else "" for entry, is_first in firsts]
    largest = _largest(ordered)
    facts = [*([f"at {at}"] if at else []), *(["ended"] if ended else [])]
    return card_of(
        Facts(facts, heading(ordered), wrap=False),
        _devices(firsts, notes, "PSS / RSS" if has_pss else "RSS", with_cpu=bool(at)),
        # In HTML they stand in their rows.
        Either(text="\n".join(dict.fromkeys(f"  {note}" for note in notes if note))),
        Table(_LARGEST_COLUMNS, largest),
        Note(source, "dim"),
    )


def _devices(
    rows: Sequence[tuple[DeviceStats, bool]],
    notes: Sequence[str],
    host_column: str,
    *,
    with_cpu: bool,
) -> Table:
    has_load = any(load_text(e.utilization_percent) or warmth(e) for e, _ in rows)
    cells = [[*_cells(*row, with_cpu), note] for row, note in zip(rows, notes, strict=True)]
    has_bar = any(isinstance(bar, Cell) for _, _, bar, *_ in cells)
    columns = [
        Column("process", ">"),
        Column("device"),
        # A line of text has no room for both.
        Column(only="html" if has_load else "both", optional=True),
        *(Column(title, ">", optional=True) for title in ("in use", "peak", "limit")),
        Column("live buffers", ">", short="buffers"),
        Column(host_column, ">"),
        Column("CPU time", ">", short="CPU", optional=True),
        Column("GPU", ">", optional=True),
        Column("", ">", short="°C", optional=True),
        Column(only="html", optional=True),
    ]
    return Table(columns, cells, gap=1 if has_bar or has_load else 2)


_LARGEST_COLUMNS = (
    Column("largest arrays", least=16),
    Column(least=12),
    Column("bytes", ">"),
    Column("devices", least=14),
)


def heading(stats: Sequence[DeviceStats]) -> str:
    """Returns how many devices and processes of which kind there are, and what they hold."""
    processes = {entry.device.process_index for entry in stats}
    text = f"{plural(len(stats), 'device')} of {plural(len(processes), 'process')}"
    if kinds := sorted({entry.device.kind for entry in stats}):
        text += f" ({', '.join(kinds)})"
    used = [entry.bytes_in_use for entry in stats if entry.bytes_in_use is not None]
    return f"{text} · {format_bytes(sum(used))} in use" if used else text


def _cells(entry: DeviceStats, first: bool, with_cpu: bool) -> list[str | Cell]:
    cpu = entry.process_cpu_seconds if first and with_cpu else None
    return [
        str(entry.device.process_index) if first else "",
        str(entry.device.id),
        _bar(entry),
        _size(entry.bytes_in_use),
        _size(entry.peak_bytes),
        _size(entry.limit_bytes),
        "–" if entry.source == "none" else format_count(entry.live_arrays),
        _host_memory(entry) if first else "",
        "" if cpu is None else f"{cpu:.1f} s",
        load_text(entry.utilization_percent),
        warmth(entry),
    ]


def _bar(entry: DeviceStats) -> str | Cell:
    """Returns how much of a device's memory is in use; empty if that is not known."""
    if entry.bytes_in_use is None or not entry.limit_bytes:
        return ""
    percent = min(100.0, 100.0 * entry.bytes_in_use / entry.limit_bytes)
    filled = round(percent / 100 * _BAR_WIDTH)
    strip = Strip([Length(0, percent, ACCENT)], f"{percent:.1f} %")
    return Cell(short="█" * filled + "░" * (_BAR_WIDTH - filled), strip=strip)


def warmth(entry: DeviceStats) -> str | Cell:
    """Returns a device's temperature; empty if it is not known."""
    celsius = entry.temperature_celsius
    return "" if celsius is None else Cell(f"{celsius} °C", short=str(celsius))


def load_text(percent: float | None) -> str:
    """Returns ``"97 %"``; empty for None."""
    return "" if percent is None else f"{percent:.0f} %"


def _size(size_bytes: int | None) -> str:
    return "" if size_bytes is None else format_bytes(size_bytes)


def _host_memory(entry: DeviceStats) -> str:
    sizes = [entry.process_pss_bytes, entry.process_rss_bytes]
    return " / ".join(format_bytes(size) for size in sizes if size is not None) or "–"


def _source(stats: Sequence[DeviceStats], pss: bool) -> str:
    parts = [_SOURCES[name] for name in _SOURCES if any(s.source == name for s in stats)]
    if pss:
        parts.append("PSS splits shared pages among processes; RSS counts them in full for each.")
    return " ".join(parts)


def _largest(stats: Sequence[DeviceStats]) -> list[Row]:
    """Returns the largest arrays over all devices; what is alike on several, once.

    Where one is, its sharding says, as it need not be among the largest of each device that has it.
    """
    known = {entry.device.id for entry in stats if entry.source != "none"}
    alike: dict[LargeArray, set[int]] = {}
    for array in (array for entry in stats for array in entry.largest):
        over = {n for first, last in array.devices for n in range(first, last + 1)}
        alike.setdefault(replace(array, devices=()), set()).update(over & known)
    top = sorted(alike, key=LargeArray.rank)[:_LARGEST]
    return [_large_row(array, alike[array], stats) for array in top]


def _large_row(array: LargeArray, held: set[int], stats: Sequence[DeviceStats]) -> list[str | Cell]:
    holders = [entry for entry in stats if entry.device.id in held]
    processes = {entry.device.process_index for entry in holders}
    of_these = [entry for entry in stats if entry.device.process_index in processes]
    if len(holders) == len(stats) > 1:
        where = "each device"
    elif len(holders) == len(of_these) > 1:
        where = processes_label(processes)
    else:
        where = f"{plural_word(len(held), 'device')} {ranks_label(held)}"
    words = NOT_FOUND if array.name is None else NO_NAME
    name = Cell(array.name, "code") if array.name else Cell(words, "dim", short=f"({words})")
    kind = f"{array.dtype}[{', '.join(map(str, array.shape))}]"
    return [name, kind, format_bytes(array.nbytes), where]
