"""Where the processes of a running cell are: a panel that is shown again while they are there."""

from __future__ import annotations

from collections.abc import Sequence

from jaxnb.display.blocks import Block, Cell, Column, Either, Facts, Note, Row, Table
from jaxnb.display.card import NOTHING, Card, card_of
from jaxnb.display.html import Tone
from jaxnb.labels import capitalized, format_seconds, plural, processes_label
from jaxnb.model.group import AtLine, StackEntry, Waits
from jaxnb.model.scripts import in_notebook, the_cell

INTERRUPT = "Interrupt"
BACKGROUND_INTERRUPT = "`%spmd_interrupt`"


def waits_card(waits: Waits, interrupt: str = INTERRUPT) -> Card:
    """Returns who is where, for how long, for whom it waits, and why, as far as is known.

    Nothing if the processes have gone on, and nothing was wrong; a line if all are at one line.

    Args:
        waits: All that.
        interrupt: How the user interrupts the cell.
    """
    if waits.is_neutral and waits.has_ended:
        return NOTHING
    if waits.is_neutral and len(waits.places) < 2 and not waits.left and not waits.waiting:
        line = _line(waits)
        return card_of(Either([Facts([line])], line))
    html: list[Block] = [
        Facts([_whole(_seconds(waits))], _heading(waits)),
        Note(_silent_text(waits)),
        _table(waits.places),
        Note(_sentences(waits, interrupt)),
    ]
    tone: Tone = "" if waits.is_neutral else "warn"
    return card_of(Either(html, waits_text(waits, interrupt)), tone=tone)


def waits_text(waits: Waits, interrupt: str = INTERRUPT) -> str:
    """Returns the same as sentences."""
    if waits.is_neutral and waits.has_ended:
        return ""
    places = "; ".join(_place_text(each, has_ended=waits.has_ended) for each in waits.places)
    said = f"{capitalized(places)}." if places else ""
    parts = [said, _silent_text(waits), _sentences(waits, interrupt)]
    return " ".join(filter(None, parts))


def _table(places: Sequence[AtLine]) -> Table:
    has_last = any(each.last_dispatch for each in places)
    rows: list[Row] = [
        [
            *_place_cells(each.processes, each.place),
            f"{_doing(each)} {_whole(each.seconds)}",
            *([_last_cell(each)] * has_last),
        ]
        for each in places
    ]
    columns = [Column(), Column("line", ">"), Column(), Column()]
    return Table([*columns, *([Column("last dispatch")] * has_last)], rows)


def _last_cell(each: AtLine) -> str | Cell:
    """Returns what processes have dispatched last; of those that wait, what they ask for."""
    if not each.last_dispatch:
        return "–"
    return Cell(f"asks for {each.last_dispatch}" if each.waits else each.last_dispatch, "code")


def _place_cells(processes: Sequence[int], place: StackEntry | None) -> list[str | Cell]:
    if place is None:
        return [processes_label(processes), "", f"outside {the_cell()}'s lines"]
    return [processes_label(processes), str(place.line), Cell(place.source, "code")]


def _doing(each: AtLine) -> str:
    if not each.waits:
        return f"{each.doing}," if each.doing else "for"
    late = f" for {processes_label(each.late)}," if each.late else ""
    verb = "waits" if len(each.processes) == 1 else "wait"
    return f"{verb}{late or (f' {each.doing},' if each.doing else ' for')}"


def _place_text(each: AtLine, *, has_ended: bool) -> str:
    have = "had" if has_ended else "has" if len(each.processes) == 1 else "have"
    late = f" for {processes_label(each.late)}" if each.late else ""
    place = f"outside {the_cell()}'s lines" if each.place is None else each.place.text
    verb = f"waited{late}" if each.waits else "been"
    doing = f", {each.doing}" if each.doing else ""
    who = processes_label(each.processes)
    return f"{who} {have} {verb} {place} for {_whole(each.seconds)}{doing}"


def _line(waits: Waits) -> str:
    """Returns how many processes are where, for how long: ``"4 processes at line 3 · 12 s"``."""
    count = sum(len(each.processes) for each in waits.places)
    places = [each.place for each in waits.places if each.place is not None]
    at = f" at line {places[0].line}" if places else ""
    doing = [each.doing for each in waits.places if each.doing]
    dispatches = [plural(waits.dispatches, "dispatch")] if waits.dispatches else []
    said = [f"{plural(count, 'process')}{at}", *doing, _whole(waits.seconds), *dispatches]
    return " · ".join(said)


def _seconds(waits: Waits) -> float:
    """Returns how long processes have waited for others; else how long the cell has run."""
    return max((each.seconds for each in waits.places if each.waits), default=waits.seconds)


def _heading(waits: Waits) -> str:
    waiting = waits.waiting
    if not waiting:
        if waits.silent:
            return "No answer" if waits.has_ended else "No answer yet"
        return "Where the processes are"
    verb = "wait" if len(waiting) > 1 else "waits"
    return f"{processes_label(waiting).capitalize()} {'waited' if waits.has_ended else verb}"


def _sentences(waits: Waits, interrupt: str) -> str:
    left = f"{capitalized(waits.left)}." if waits.left else ""
    return " ".join(filter(None, [left, waits.reason, _advice(waits, interrupt)]))


def _silent_text(waits: Waits) -> str:
    """Returns who does not tell where it is, as a sentence; empty if all do."""
    if not waits.silent:
        return ""
    who, is_one = processes_label(waits.silent).capitalize(), len(waits.silent) == 1
    if waits.has_ended:
        return f"{who} had not answered for {_whole(waits.seconds)}."
    if waits.stopped:
        return f"{capitalized(waits.stopped)}."
    have, it_is, it = ("has", "it is", "it") if is_one else ("have", "they are", "them")
    return (
        f"{who} {have} not answered for {_whole(waits.seconds)}: {it_is} stopped, "
        f"or C code in {it} keeps Python from running, which may end."
    )


def _advice(waits: Waits, interrupt: str) -> str:
    if waits.has_ended:
        return ""
    if waits.why == "slow":  # the conductor hears of no interrupt
        return f"{interrupt} says how to go on without it."
    if waits.silent:
        it = "it" if len(waits.silent) == 1 else "them"
        goes_on = in_notebook(f"says how to go on without {it}")  # a script cannot
        return f"{interrupt} {goes_on or 'twice ends the script'}."
    kept = in_notebook(", and variables are kept")
    ends = f"{interrupt} ends {the_cell()} (a second one by force){kept}."
    is_normal = waits.is_neutral and not waits.has_failed
    return f"This may be normal; {ends}" if is_normal else ends


def _whole(seconds: float) -> str:
    """Returns a duration in whole seconds: it is shown again every second."""
    return f"{seconds:.0f} s" if seconds < 60 else format_seconds(seconds)
