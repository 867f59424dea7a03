"""The panel of statistics that is updated in place."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from jaxnb.display.card import Card, render
from jaxnb.display.text import text_table, wrapped
from jaxnb.labels import format_bytes, plural
from jaxnb.profile.card_stats import gpu_notes, heading, load_text
from jaxnb.profile.stats_history import SAMPLES, StatsHistory, Track, Values, blocks, points

WIDTH, HEIGHT = 120, 18
"""Size of a line in pixels."""

TEXT_WIDTHS = {False: 12, True: 8}
"""Width of a line as text: without GPUs, and with."""

MAX_DEVICES = 64
"""How many devices have a row."""

FULL_PERCENT = 100.0


@dataclass(frozen=True, slots=True)
class _Line:
    """A history, and its last value in words."""

    points: list[str]
    values: Values
    top: float
    value: str
    title: str


@dataclass(frozen=True, slots=True)
class _Row:
    process: str
    device: str
    memory: _Line
    resident: str
    cpu: _Line | None
    gpu: _Line
    warmth: str
    note: str


def live_stats_card(
    history: StatsHistory, words: str, *, at: str = "", ended: bool = False
) -> Card:
    """Memory and load of each device over the last minute, as small lines.

    Args:
        history: The samples.
        words: When it stops, or why it has.
        at: When the last sample was taken: a notebook may be saved, or exported, while it goes on.
        ended: It is not updated any more.
    """
    tracks = history.tracks
    stats = [track.last for track in tracks]
    with_gpu = any(value is not None for track in tracks for value in track.gpu)
    in_use = _highest(track.in_use for track in tracks)
    busiest = max(FULL_PERCENT, _highest(track.cpu for track in tracks))
    rows: list[_Row] = []
    shown: set[int] = set()
    for track in tracks[:MAX_DEVICES]:
        index = track.last.device.process_index
        rows.append(_row(track, index not in shown, in_use, busiest))
        shown.add(index)
    top = " · ".join(filter(None, [heading(stats), at and f"at {at}", "ended" if ended else ""]))
    foot = [words, *gpu_notes(stats)]
    if len(tracks) > MAX_DEVICES:
        foot.insert(0, f"{plural(len(tracks) - MAX_DEVICES, 'more device')} not shown.")
    html = render(
        "stats_live",
        heading=top,
        rows=rows,
        foot=" ".join(foot),
        with_gpu=with_gpu,
        ended=ended,
        width=WIDTH,
        height=HEIGHT,
    )
    return Card(html, "\n".join([top, _text(rows, with_gpu), wrapped(" ".join(foot))]))


def _row(track: Track, first_of_process: bool, in_use: float, busiest: float) -> _Row:
    last = track.last
    resident = last.process_rss_bytes if first_of_process else None
    warmth = last.temperature_celsius
    return _Row(
        process=str(last.device.process_index) if first_of_process else "",
        device=str(last.device.id),
        memory=_line(
            track.in_use,
            last.limit_bytes or in_use,
            "–" if last.bytes_in_use is None else format_bytes(last.bytes_in_use),
            "memory in use",
        ),
        resident="" if resident is None else format_bytes(resident),
        cpu=_line(track.cpu, busiest, load_text(track.cpu[-1]), "CPU, % of a core")
        if first_of_process
        else None,
        gpu=_line(track.gpu, FULL_PERCENT, load_text(track.gpu[-1]), "GPU busy"),
        warmth="" if warmth is None else f"{warmth} °C",
        note=last.note if first_of_process else "",
    )


def _line(values: Values, top: float, value: str, what: str) -> _Line:
    return _Line(
        points(values, top, WIDTH, HEIGHT),
        values,
        top,
        value,
        f"{what}: {value or 'unknown'}; the last {SAMPLES} s",
    )


def _highest(series: Iterable[Values]) -> float:
    return max((v for values in series for v in values if v is not None), default=0.0)


def _text(rows: Sequence[_Row], with_gpu: bool) -> str:
    header = ["process", "device", "in use", "", "RSS", "CPU", ""]
    table = [header + (["GPU", "", "°C"] if with_gpu else [])]
    width = TEXT_WIDTHS[with_gpu]
    for row in rows:
        cells = [row.process, row.device, *_cells(row.memory, width), row.resident]
        cells += _cells(row.cpu, width)
        if with_gpu:
            cells += [*_cells(row.gpu, width), row.warmth.removesuffix(" °C")]
        table.append(cells)
    align = "><<>><>" + ("<>>" if with_gpu else "")
    notes = dict.fromkeys(f"  {row.note}" for row in rows if row.note)
    return "\n".join([text_table(table, align, gap=1), *notes])


def _cells(line: _Line | None, width: int) -> list[str]:
    return ["", ""] if line is None else [blocks(line.values, line.top, width), line.value]
