"""The card of a timeline: a bar for each process, and who kept the others waiting."""

from __future__ import annotations

from collections.abc import Sequence

from jaxnb.display.blocks import Block, Column, Either, Facts, Note, Table
from jaxnb.display.card import Card, card_of
from jaxnb.display.text import WIDTH, wrapped
from jaxnb.labels import format_count, format_seconds, plural, processes_label
from jaxnb.model.insight import SPAN_KINDS, ProcessTimeline, Straggler, Timeline
from jaxnb.model.scripts import cell_label
from jaxnb.profile.draw_bars import KIND_LABELS, dominant, lanes, ticks

MAX_PROCESSES = 64
"""So many bars are shown: of more processes the first, and whom the others waited for."""

NOTABLE_SECONDS = 1e-3
"""Nobody is named for whom others waited for less."""

_BLOCKS = dict(zip(SPAN_KINDS, "█▓▒░·", strict=True))


def timeline_card(timeline: Timeline) -> Card:
    """What each process did in a cell, and when; who came last, and for how long others waited."""
    shown = _shown(timeline)
    facts = [plural(len(timeline.processes), "process"), format_seconds(timeline.seconds)]
    if timeline.dispatches:
        facts.append(plural(timeline.dispatches, "dispatch") + " compared")
    verdicts = [*_verdicts(timeline), *_endings(timeline)]
    titles = ("process", *KIND_LABELS.values(), "came last", "delayed others")
    table = Table(
        [Column(title, ">") for title in titles],
        [_row(timeline, each) for each in shown],
        more=(len(timeline.processes) - len(shown), "process"),
        gap=1,
    )
    has_bars = timeline.seconds > 0 and bool(shown)
    picture: list[Block] = [lanes(timeline, shown)] if has_bars else []
    return card_of(
        Facts(facts, cell_label(timeline.cell)),
        Either([Note(each) for each in verdicts]),
        Either(picture, "\n".join(_text_bars(timeline, shown) if has_bars else [])),
        table,
        Either(text="\n".join(map(wrapped, verdicts))),
        Note(" ".join(_notes(timeline)), "dim"),
    )


def _shown(timeline: Timeline) -> list[ProcessTimeline]:
    known = [timeline.processes[index] for index in sorted(timeline.processes)]
    if len(known) <= MAX_PROCESSES:
        return known
    late = {each.process_index for each in timeline.stragglers[: MAX_PROCESSES // 4]}
    first = [each for each in known if each.process_index not in late]
    kept = {each.process_index for each in first[: MAX_PROCESSES - len(late)]} | late
    return [each for each in known if each.process_index in kept]


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
    return (
        f"Process {late.process_index} was last at {format_count(late.came_last)} of "
        f"{plural(dispatches, 'dispatch')}; {whom} waited up to {format_seconds(late.seconds)} "
        f"for it, most at {_place(late)}."
    )


def _place(late: Straggler) -> str:
    site = late.site
    return f"line {site.line} (`{site.name}`)" if site.line is not None else f"`{site.name}`"


def _endings(timeline: Timeline) -> list[str]:
    ends: dict[str, list[int]] = {}
    for index, each in timeline.processes.items():
        if each.ending:
            ends.setdefault(each.ending, []).append(index)
    found = [f"{processes_label(who).capitalize()} {end}." for end, who in ends.items()]
    gone: dict[str, list[int]] = {}
    for index, why in timeline.missing.items():
        gone.setdefault(why, []).append(index)
    return found + [
        f"{processes_label(who).capitalize()}: no timeline ({why})." for why, who in gone.items()
    ]


def _notes(timeline: Timeline) -> list[str]:
    """Says what was measured and what was sampled."""
    notes = [
        "Tracing and compiling are from JAX's events, dispatching and who came last from the "
        "times of calls that span processes."
    ]
    sampled = [each.sampled_from for each in timeline.processes.values()]
    known = [each for each in sampled if each is not None]
    if known:
        who = "" if len(known) == len(sampled) else f" on {len(known)} of {len(sampled)} processes"
        notes.append(
            f"Other waiting is sampled{who}, from {format_seconds(max(known))} on; "
            "unattributed time counts as Python."
        )
    else:
        notes.append(
            "Other waiting was not looked for (it was short, or timed); "
            "unattributed time counts as Python."
        )
    faults: dict[str, list[int]] = {}
    for process in timeline.processes.values():
        if process.sampling_fault:
            faults.setdefault(process.sampling_fault, []).append(process.process_index)
    for fault, indices in faults.items():
        notes.append(
            f"Sampling failed on {processes_label(indices)} before the cell ended ({fault}): "
            "waiting from then on counts as Python."
        )
    if timeline.forgotten:
        notes.append(
            f"Of each process's dispatches the last are known; {format_count(timeline.forgotten)} "
            "earlier ones are not in it."
        )
    dropped = max((each.dropped for each in timeline.processes.values()), default=0)
    if dropped:
        notes.append(f"Up to {plural(dropped, 'short span')} of a process left out.")
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


def _text_bars(timeline: Timeline, shown: Sequence[ProcessTimeline]) -> list[str]:
    labels = [str(each.process_index) for each in shown]
    indent = max(map(len, labels)) + 4
    width = WIDTH - indent
    lines = [
        f"{label:>{indent - 2}}  "
        + "".join(" " if k is None else _BLOCKS[k] for k in dominant(each, timeline.seconds, width))
        for label, each in zip(labels, shown, strict=True)
    ]
    kinds = {span.kind for each in shown for span in each.spans}
    legend = "   ".join(f"{_BLOCKS[k]} {KIND_LABELS[k]}" for k in SPAN_KINDS if k in kinds)
    axis = [" "] * width
    for at, label in ticks(timeline.seconds, 4):
        start = min(round(at / timeline.seconds * width), width - len(label))
        axis[start : start + len(label)] = label
    return [
        *(line.rstrip() for line in lines),
        (" " * indent + "".join(axis)).rstrip(),
        " " * indent + legend,
    ]
