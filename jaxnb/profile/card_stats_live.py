"""The panel of statistics that is updated in place."""

from __future__ import annotations

from collections.abc import Iterable

from jaxnb.display.blocks import Cell, Column, Facts, Note, Table
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import spark
from jaxnb.labels import format_bytes, plural
from jaxnb.profile.card_stats import (
    first_of_process,
    gpu_notes,
    heading,
    load_text,
    notes_below,
    warmth,
)
from jaxnb.profile.stats_history import StatsHistory, Track, Values

HTML_WIDTH = 16
TEXT_WIDTHS = {False: 12, True: 8}
"""How many of the last samples a line shows: in HTML; as text without GPUs, and with."""

MAX_DEVICES = 64
"""How many devices have a row."""

FULL_PERCENT = 100.0


def live_stats_card(
    history: StatsHistory, words: str, *, at: str = "", ended: bool = False
) -> Card:
    """Memory and load of each device over the last seconds, as small lines.

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
    firsts = first_of_process(stats[:MAX_DEVICES])
    rows = [
        _row(track, first, with_gpu, in_use, busiest)
        for track, (_, first) in zip(tracks, firsts, strict=False)
    ]
    facts = filter(None, [at and f"at {at}", "ended" if ended else ""])
    foot = [words, *gpu_notes(stats)]
    if len(tracks) > MAX_DEVICES:
        foot.insert(0, f"{plural(len(tracks) - MAX_DEVICES, 'more device')} not shown.")
    return card_of(
        Facts([*facts], heading(stats), wrap=False),
        Table(_columns(with_gpu), rows, gap=1),
        notes_below(entry.note for entry, first in firsts if first),
        Note(" ".join(foot), "dim"),
    )


def _columns(with_gpu: bool) -> list[Column]:
    number = Column(align=">")
    gpu = [Column("GPU"), number, Column(align=">", short="°C")] if with_gpu else []
    return [
        Column("process", ">"),
        Column("device"),
        Column("in use"),
        number,
        Column("RSS", ">"),
        Column("CPU"),
        number,
        *gpu,
        Column(only="html"),
    ]


def _row(
    track: Track, first: bool, with_gpu: bool, in_use: float, busiest: float
) -> list[str | Cell]:
    """Returns a device's cells; what is its process's only if it is the first of it."""
    last, width = track.last, TEXT_WIDTHS[with_gpu]
    used = "–" if last.bytes_in_use is None else format_bytes(last.bytes_in_use)
    memory = _line(track.in_use, last.limit_bytes or in_use, width, f"memory in use: {used}")
    resident = last.process_rss_bytes if first else None
    cpu: list[str | Cell] = ["", ""]
    if first:
        load = load_text(track.cpu[-1])
        words = f"CPU, % of a core: {load or 'unknown'}"
        cpu = [_line(track.cpu, busiest, width, words), load]
    gpu: list[str | Cell] = []
    if with_gpu:
        load = load_text(track.gpu[-1])
        words = f"GPU busy: {load or 'unknown'}"
        gpu = [_line(track.gpu, FULL_PERCENT, width, words), load, warmth(last)]
    return [
        str(last.device.process_index) if first else "",
        str(last.device.id),
        memory,
        used,
        "" if resident is None else format_bytes(resident),
        *cpu,
        *gpu,
        last.note if first else "",
    ]


def _line(values: Values, top: float, width: int, words: str) -> Cell:
    shown = list(values)
    return Cell(
        spark(shown[-HTML_WIDTH:], top).rjust(HTML_WIDTH, "\N{NO-BREAK SPACE}"),
        "mono",
        short=spark(shown[-width:], top).rjust(width),
        title=f"{words}; the last {HTML_WIDTH} s",
    )


def _highest(series: Iterable[Values]) -> float:
    return max((v for values in series for v in values if v is not None), default=0.0)
