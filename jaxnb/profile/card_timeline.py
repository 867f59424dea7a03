"""The card of a timeline: a bar for each process, and who kept the others waiting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from jaxnb.display import blocks as b
from jaxnb.display.bars import time_ticks
from jaxnb.display.card import Card, card_of
from jaxnb.labels import (
    format_count,
    format_precisely,
    format_seconds,
    plural,
    processes_label,
)
from jaxnb.model.insight import SPAN_KINDS, ProcessTimeline, SpanKind, Straggler, Timeline
from jaxnb.model.scripts import cell_label

KIND_LABELS: dict[SpanKind, str] = {**{kind: kind for kind in SPAN_KINDS}, "python": "other"}

# Of Okabe and Ito's palette, as the processes' own colours: it stands out from white and black.
_COLORS: dict[SpanKind, str] = {
    "python": "#56B4E9",
    "tracing": "#CC79A7",
    "compiling": "#E69F00",
    "dispatching": "#009E73",
    "computing": "#0072B2",
    "waiting": "rgba(136,136,136,.5)",
}

_SYMBOLS = dict(zip(SPAN_KINDS, "█▓▒░#·", strict=True))

_COLUMNS = 680
"""How fine the bars are: there may be thousands of spans."""


def dominant(process: ProcessTimeline, seconds: float, columns: int) -> list[SpanKind | None]:
    """Returns for each of equal columns of time what took most of it; None where it was idle.

    Args:
        process: What one process did.
        seconds: The time that all columns make.
        columns: How many.
    """
    size = seconds / columns
    shares: list[dict[SpanKind, float]] = [{} for _ in range(columns)]
    for span in process.spans:
        first = min(columns - 1, int(span.start / size))
        last = min(columns - 1, int(span.stop / size))
        for column in range(first, last + 1):
            overlap = min(span.stop, (column + 1) * size) - max(span.start, column * size)
            share = shares[column]
            share[span.kind] = share.get(span.kind, 0.0) + overlap
    return [
        max(share, key=lambda kind, of=share: of[kind])  # type: ignore[misc]
        if share and sum(share.values()) >= size / 2
        else None
        for share in shares
    ]


def lanes(timeline: Timeline, shown: Sequence[ProcessTimeline]) -> b.Lanes:
    """Returns the picture of a timeline.

    Args:
        timeline: It.
        shown: The processes that are in the picture.
    """
    kinds = {span.kind for each in shown for span in each.spans}
    return b.Lanes(
        [f"process {each.process_index}" for each in shown],
        [_lengths(each, timeline.seconds) for each in shown],
        [(100 * at / timeline.seconds, label) for at, label in time_ticks(timeline.seconds)],
        [b.Key(KIND_LABELS[k], _COLORS[k], _SYMBOLS[k]) for k in SPAN_KINDS if k in kinds],
    )


def _lengths(process: ProcessTimeline, seconds: float) -> list[b.Length]:
    found: list[b.Length] = []
    start = 0
    for kind, group in groupby(dominant(process, seconds, _COLUMNS)):
        stop = start + len(list(group))
        if kind is not None:
            began, ended = (format_precisely(x * seconds / _COLUMNS) for x in (start, stop))
            title = f"process {process.process_index}: {KIND_LABELS[kind]}, {began} to {ended}"
            place = (100 * start / _COLUMNS, 100 * (stop - start) / _COLUMNS)
            found.append(b.Length(*place, _COLORS[kind], title))
        start = stop
    return found


MAX_PROCESSES = 64
"""So many bars are shown: of more processes the first."""

NOTABLE_SECONDS = 1e-3
"""Nobody is named for whom others waited for less."""


def timeline_card(timeline: Timeline) -> Card:
    """What each process did in a cell, and when; who came last, and for how long others waited."""
    shown = [timeline.processes[i] for i in sorted(timeline.processes)][:MAX_PROCESSES]
    facts = [
        plural(len(timeline.processes), "process"),
        format_seconds(timeline.seconds),
    ]
    if timeline.dispatches:
        facts.append(plural(timeline.dispatches, "dispatch") + " compared")
    verdicts = [*_verdicts(timeline), *_endings(timeline)]
    table = b.Table(
        [
            b.Column("process", ">"),
            *(b.Column(KIND_LABELS[k], ">", optional=True) for k in SPAN_KINDS),
            b.Column("last", ">", optional=True),
            b.Column("delayed", ">", optional=True),
        ],
        [_row(timeline, each) for each in shown],
        more=(len(timeline.processes) - len(shown), "process"),
        gap=1,
    )
    picture = [lanes(timeline, shown)] if timeline.seconds > 0 and shown else []
    return card_of(
        b.Facts(facts, cell_label(timeline.cell)),
        *picture,
        table,
        *map(b.Note, verdicts),
        b.Note(" ".join(_notes(timeline)), "dim"),
    )


def _verdicts(timeline: Timeline) -> list[str]:
    found = [each for each in timeline.stragglers if each.seconds >= NOTABLE_SECONDS]
    if found:
        most = found[0].seconds
        notable = [each for each in found[:3] if each.seconds > most / 3]
        return [_verdict(each, timeline.dispatches) for each in notable]
    if timeline.dispatches:
        return ["No process kept the others waiting for as much as a millisecond."]
    return []


def _verdict(late: Straggler, dispatches: int) -> str:
    others = [index for index, seconds in late.waited.items() if seconds >= late.seconds / 2]
    whom = processes_label(others) if len(others) < len(late.waited) else "the others"
    if len(late.waited) == 1:
        whom = processes_label(late.waited)
    site = late.site
    place = f"line {site.line} (`{site.name}`)" if site.line is not None else f"`{site.name}`"
    return (
        f"Process {late.process_index} was last at {format_count(late.came_last)} of "
        f"{plural(dispatches, 'dispatch')}; {whom} waited up to {format_seconds(late.seconds)} "
        f"for it, most at {place}."
    )


def _endings(timeline: Timeline) -> list[str]:
    ends: dict[str, list[int]] = {}
    for index, each in timeline.processes.items():
        if each.ending:
            ends.setdefault(f" {each.ending}", []).append(index)
    for index, why in timeline.missing.items():
        ends.setdefault(f": no timeline ({why})", []).append(index)
    return [f"{processes_label(who).capitalize()}{end}." for end, who in ends.items()]


def _notes(timeline: Timeline) -> list[str]:
    """Says what was measured, and what is not in it."""
    notes = [
        "Tracing and compiling are from JAX's events; dispatching, waiting for other processes and "
        "who came last from the times of calls that span processes; computing, on CPUs, is what "
        "other threads used of the processor: XLA's, mostly. Other: Python, sleeps, files, and "
        "waiting for results (`block_until_ready`)."
    ]
    if timeline.forgotten:
        notes.append(
            f"Of each process's dispatches the last are known; {format_count(timeline.forgotten)} "
            "earlier ones are not in it."
        )
    dropped = max((each.dropped for each in timeline.processes.values()), default=0)
    if dropped:
        notes.append(
            f"Of a process's events and waits the newest are known; up to {format_count(dropped)} "
            "earlier ones count as other."
        )
    if timeline.hosts > 1:
        notes.append(
            f"The clocks of {timeline.hosts} hosts were aligned by when the cell began on each: "
            "between hosts, differences of milliseconds mean nothing."
        )
    return notes


def _row(timeline: Timeline, process: ProcessTimeline) -> list[str]:
    totals = process.totals
    index = process.process_index
    late = next((each for each in timeline.stragglers if each.process_index == index), None)
    return [
        str(index),
        *(_seconds(totals[kind]) for kind in SPAN_KINDS),
        "" if late is None else format_count(late.came_last),
        "" if late is None else _seconds(late.seconds),
    ]


def _seconds(seconds: float) -> str:
    return format_seconds(seconds) if seconds >= 5e-5 else ""
