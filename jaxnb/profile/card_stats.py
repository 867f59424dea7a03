"""The card of device and process memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from jaxnb.display.card import Card, render
from jaxnb.display.text import fitted_table, text_table, wrapped
from jaxnb.labels import (
    format_bytes,
    format_count,
    plural,
    plural_word,
    processes_label,
    ranks_label,
)
from jaxnb.model.statistics import MOST_LARGEST, DeviceStats, LargeArray

_SOURCES = {
    "memory_stats": "In use, peak and limit are what the backend's memory_stats() says.",
    "live_arrays": "In use is the sum of the live arrays' shards; this backend has no "
    "memory_stats(), so temporaries and compiled code are not in it.",
}
_BAR_WIDTH = 8
_LARGEST = 5
NO_NAME = "no name"
NOT_FOUND = "name not found"


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
    load: str
    warmth: str
    note: str


@dataclass(frozen=True, slots=True)
class _Large:
    """One of the largest arrays; ``is_name`` tells a name from words about it."""

    name: str
    is_name: bool
    array: str
    size: str
    where: str


def stats_card(stats: Sequence[DeviceStats], words: str = "") -> Card:
    """Memory and load per device, the largest arrays, and resident memory per process.

    Args:
        stats: The statistics.
        words: A sentence to put below.
    """
    ordered = in_order(stats)
    rows: list[_Row] = []
    shown: set[int] = set()
    for entry in ordered:
        rows.append(_row(entry, entry.device.process_index not in shown))
        shown.add(entry.device.process_index)
    pss = any(entry.process_pss_bytes is not None for entry in ordered)
    host_column = "PSS / RSS" if pss else "RSS"
    source = " ".join(filter(None, [_source(ordered, pss), *gpu_notes(ordered), words]))
    with_load = any(row.load or row.warmth for row in rows)
    with_bar = any(row.percent is not None for row in rows)
    largest = _largest(ordered)
    top = heading(ordered)
    html = render(
        "stats",
        heading=top,
        rows=rows,
        host_column=host_column,
        source=source,
        with_bar=with_bar,
        with_load=with_load,
        largest=largest,
    )
    # A line has no room for both.
    table = _text(rows, host_column, with_bar and not with_load, with_load)
    parts = [top, table, _largest_text(largest), wrapped(source)]
    return Card(html, "\n".join(filter(None, parts)))


def in_order(stats: Iterable[DeviceStats]) -> list[DeviceStats]:
    """Returns rows by process and device."""
    return sorted(stats, key=lambda s: (s.device.process_index, s.device.id))


def heading(stats: Sequence[DeviceStats]) -> str:
    """Returns how many devices and processes of which kind there are, and what they hold."""
    processes = {entry.device.process_index for entry in stats}
    text = f"{plural(len(stats), 'device')} of {plural(len(processes), 'process')}"
    if kinds := sorted({entry.device.kind for entry in stats}):
        text += f" ({', '.join(kinds)})"
    used = [entry.bytes_in_use for entry in stats if entry.bytes_in_use is not None]
    return f"{text} · {format_bytes(sum(used))} in use" if used else text


def gpu_notes(stats: Iterable[DeviceStats]) -> list[str]:
    """Returns why NVML tells nothing of devices, each reason once."""
    return list(dict.fromkeys(entry.gpu_note for entry in stats if entry.gpu_note))


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
        live="–" if entry.source == "none" else format_count(entry.live_arrays),
        host_memory=_host_memory(entry) if first_of_process else "",
        load=load_text(entry.utilization_percent),
        warmth="" if entry.temperature_celsius is None else f"{entry.temperature_celsius} °C",
        note=entry.note if first_of_process else "",
    )


def load_text(percent: float | None) -> str:
    """Returns ``"97 %"``; empty for None."""
    return "" if percent is None else f"{percent:.0f} %"


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


def _largest(stats: Sequence[DeviceStats]) -> list[_Large]:
    """Returns the largest arrays over all devices; what is alike on several, once.

    Where one is, its sharding says, as it need not be among the largest of each device that has
    it; but not on processes that would have told of it, and have not.
    """
    known = {entry.device.id for entry in stats if entry.source != "none"}
    alike: dict[LargeArray, set[int]] = {}
    for entry in stats:
        for array in entry.largest:
            held = {n for first, last in array.devices for n in range(first, last + 1)}
            alike.setdefault(replace(array, devices=()), set()).update(held & known)
    top = sorted(alike, key=LargeArray.rank)[:_LARGEST]
    elsewhere = {
        array: _devices_of_others(array, stats) | _devices_without(array, stats) for array in top
    }
    return [_large(array, alike[array] - elsewhere[array], stats) for array in top]


def _devices_of_others(array: LargeArray, stats: Sequence[DeviceStats]) -> set[int]:
    """Returns the devices of processes that have another array by this one's name."""
    by_process: dict[int, list[LargeArray]] = {}
    for entry in stats:
        named = (each for each in _without_devices(entry) if each.name == array.name)
        by_process.setdefault(entry.device.process_index, []).extend(named)
    others = {i for i, found in by_process.items() if array.name and found and array not in found}
    return {entry.device.id for entry in stats if entry.device.process_index in others}


def _devices_without(array: LargeArray, stats: Sequence[DeviceStats]) -> set[int]:
    """Returns the devices of processes that have told of no such array, and of smaller ones."""
    told = {entry.device.process_index for entry in stats if array in _without_devices(entry)}
    return {
        entry.device.id
        for entry in stats
        if entry.device.process_index not in told
        and (len(entry.largest) < MOST_LARGEST or entry.largest[-1].nbytes < array.nbytes)
    }


def _without_devices(entry: DeviceStats) -> list[LargeArray]:
    return [replace(each, devices=()) for each in entry.largest]


def _large(array: LargeArray, held: set[int], stats: Sequence[DeviceStats]) -> _Large:
    holders = [entry for entry in stats if entry.device.id in held]
    processes = {entry.device.process_index for entry in holders}
    of_these = [entry for entry in stats if entry.device.process_index in processes]
    if len(holders) == len(stats) > 1:
        where = "each device"
    elif len(holders) == len(of_these) > 1:
        where = processes_label(processes)
    else:
        where = f"{plural_word(len(held), 'device')} {ranks_label(held)}"
    return _Large(
        name=array.name or (NOT_FOUND if array.name is None else NO_NAME),
        is_name=bool(array.name),
        array=f"{array.dtype}[{', '.join(map(str, array.shape))}]",
        size=format_bytes(array.nbytes),
        where=where,
    )


def _largest_text(largest: Sequence[_Large]) -> str:
    if not largest:
        return ""
    table = [
        [each.name if each.is_name else f"({each.name})", each.array, each.size, each.where]
        for each in largest
    ]
    return "largest arrays, and who holds them\n" + fitted_table(
        table, "<<><", {0: 16, 1: 12, 3: 14}
    )


def _text(rows: Sequence[_Row], host_column: str, with_bar: bool, with_load: bool) -> str:
    header = ["process", "device", "in use", "peak", "limit", "buffers", host_column]
    table = [header] + [
        [r.process, r.device, r.in_use, r.peak, r.limit, r.live, r.host_memory] for r in rows
    ]
    align = "><>>>>>"
    if with_bar:
        bars = ["", *(_text_bar(row.percent) for row in rows)]
        table = [[*row[:2], bar, *row[2:]] for row, bar in zip(table, bars, strict=True)]
        align = "><<>>>>>"
    if with_load:
        loads = [["GPU", "°C"], *([row.load, row.warmth.removesuffix(" °C")] for row in rows)]
        table = [[*row, *load] for row, load in zip(table, loads, strict=True)]
        align += ">>"
    notes = dict.fromkeys(f"  {row.note}" for row in rows if row.note)
    return "\n".join([text_table(table, align, gap=1 if with_bar or with_load else 2), *notes])


def _text_bar(percent: float | None) -> str:
    if percent is None:
        return ""
    filled = round(percent / 100 * _BAR_WIDTH)
    return "█" * filled + "░" * (_BAR_WIDTH - filled)
