"""Where all processes of a running cell wait: a panel that is shown anew while they do."""

from __future__ import annotations

from collections.abc import Sequence

from jaxnb.display.blocks import Block, Cell, Column, Either, Facts, Note, Row, Table
from jaxnb.display.card import NOTHING, Card, card_of
from jaxnb.labels import capitalized, format_seconds, plural, processes_label
from jaxnb.model.group import AtWork, StackEntry, Wait, Waits
from jaxnb.model.scripts import in_notebook, the_cell

INTERRUPT = "Interrupt"
BACKGROUND_INTERRUPT = "`%spmd_interrupt`"


def waits_card(waits: Waits, interrupt: str = INTERRUPT) -> Card:
    """Who waits where, for how long, what they dispatched last, and why, if it is known.

    Args:
        waits: All that.
        interrupt: How the user interrupts the cell.
    """
    if waits.is_neutral:
        return _neutral_card(waits, interrupt)
    used = [] if waits.computes or not waits.waits else ["no processor used"]
    rows: list[Row] = [
        [*_place_cells(wait.processes, wait.place), _dispatch_cell(wait)] for wait in waits.waits
    ]
    html: list[Block] = [
        Facts([_whole(waits.seconds), *used], _heading(waits)),
        Note(_silent_text(waits)),
        _table("last dispatched over processes", rows),
        Note(" ".join(filter(None, [waits.reason, _advice(waits, interrupt)]))),
    ]
    return card_of(Either(html, waits_text(waits, interrupt)), tone="warn")


def _dispatch_cell(wait: Wait) -> str | Cell:
    return Cell(wait.last_dispatch, "code") if wait.last_dispatch else "–"


def _table(title: str, rows: Sequence[Row]) -> Table:
    return Table([Column(), Column("line", ">"), Column(), Column(title)], rows)


def _place_cells(processes: Sequence[int], place: StackEntry | None) -> list[str | Cell]:
    if place is None:
        return [processes_label(processes), "", f"outside {the_cell()}'s lines"]
    return [processes_label(processes), str(place.line), Cell(place.source, "code")]


def waits_text(waits: Waits, interrupt: str = INTERRUPT) -> str:
    """The same as sentences."""
    if waits.is_neutral:
        return _neutral_text(waits, interrupt)
    waiting = [index for wait in waits.waits for index in wait.processes]
    verb = "waited" if waits.has_ended else f"{_have(waiting)} waited"
    who = processes_label(waiting) if _are_some(waits) else "all processes"
    places = "; ".join(map(_place_text, waits.waits))
    used = "" if waits.computes else " and used no processor"
    said = capitalized(f"{who} {verb} for {_whole(waits.seconds)}{used}: {places}.")
    parts = [said if waiting else "", _silent_text(waits), waits.reason, _advice(waits, interrupt)]
    return " ".join(part for part in parts if part)


def _neutral_card(waits: Waits, interrupt: str) -> Card:
    """Who is at work, and who waits for that; nothing once they have gone on."""
    if waits.has_ended:
        return NOTHING
    if waits.dispatches is not None:
        return card_of(Either([Facts([waits_text(waits)])], waits_text(waits)))
    rows: list[list[str | Cell]] = []
    for each in waits.at_work:
        who, line, place = _place_cells(each.processes, each.place)
        place = f"has left {the_cell()}" if each.place is None and each.has_left else place
        rows.append([who, line, place, f"{each.doing or 'at work'} for {_whole(each.seconds)}"])
    rows += [[*_place_cells(wait.processes, wait.place), "waits"] for wait in waits.waits]
    heading = f"{_waiters(waits)} for {_workers(waits)}" if waits.waits else "Computing"
    html: list[Block] = [
        Facts([_whole(waits.seconds)], heading),
        _table("", rows),
        Note(_neutral_advice(waits, interrupt)),
    ]
    return card_of(Either(html, waits_text(waits, interrupt)))


def _neutral_text(waits: Waits, interrupt: str) -> str:
    if waits.has_ended:
        return ""
    if waits.dispatches is not None:
        return _quiet_text(waits, waits.dispatches)
    work = "; ".join(map(_work_text, waits.at_work))
    places = "; ".join(map(_place_text, waits.waits))
    it = "it" if sum(len(each.processes) for each in waits.at_work) == 1 else "them"
    said = f"{capitalized(work)}."
    if places:
        said += f" Waiting for {it} for {_whole(waits.seconds)}: {places}."
    return f"{said} {_neutral_advice(waits, interrupt)}"


def _quiet_text(waits: Waits, dispatches: int) -> str:
    """Returns how many processes are where, for how long: ``"4 processes at line 3 · 12 s"``."""
    count = sum(len(each.processes) for each in waits.at_work)
    places = (each.place.line for each in waits.at_work if each.place is not None)
    lines = sorted({line for line in places if line is not None})
    many = len(lines) > 1
    at = f" at line{'s' * many} {lines[0]}{f'-{lines[-1]}' * many}" if lines else ""
    told = [f"{plural(count, 'process')}{at}", _whole(waits.seconds)]
    return " · ".join([*told, *([plural(dispatches, "dispatch")] if dispatches else [])])


def _workers(waits: Waits) -> str:
    return processes_label(sorted(i for each in waits.at_work for i in each.processes))


def _waiters(waits: Waits) -> str:
    waiting = sorted(index for wait in waits.waits for index in wait.processes)
    verb = "waits" if len(waiting) == 1 else "wait"
    return f"{processes_label(waiting).capitalize()} {verb}"


def _work_text(work: AtWork) -> str:
    doing = f", {work.doing}" if work.doing else ""
    who = processes_label(work.processes)
    if work.has_left:
        return f"{who} {_have(work.processes)} left {the_cell()}{doing}"
    place = f"outside {the_cell()}'s lines" if work.place is None else work.place.text
    return f"{who} {_have(work.processes)} been {place} for {_whole(work.seconds)}{doing}"


def _neutral_advice(waits: Waits, interrupt: str) -> str:
    kept = in_notebook(", and variables are kept")
    ends = f"{interrupt} ends {the_cell()} (a second one by force){kept}."
    return ends if waits.has_failed else f"This may be normal; {ends}"


def _are_some(waits: Waits) -> bool:
    """Whether there are other processes than those that wait."""
    return bool(waits.silent) or not waits.is_all


def _have(processes: Sequence[int]) -> str:
    return "has" if len(processes) == 1 else "have"


def _heading(waits: Waits) -> str:
    waiting = sorted(index for wait in waits.waits for index in wait.processes)
    if not waiting:
        return "No answer" if waits.has_ended else "No answer yet"
    who = processes_label(waiting).capitalize() if _are_some(waits) else "All processes"
    if waits.has_ended:
        return f"{who} waited"
    return f"{who} {'waits' if len(waiting) == 1 else 'wait'}"


def _silent_text(waits: Waits) -> str:
    """Returns who does not tell where it is, as a sentence; empty if all do."""
    if not waits.silent:
        return ""
    who = processes_label(waits.silent).capitalize()
    if waits.has_ended:
        return f"{who} had not answered for {_whole(waits.seconds)}."
    if waits.stopped:
        return f"{capitalized(waits.stopped)}."
    it_is, it = ("it is", "it") if len(waits.silent) == 1 else ("they are", "them")
    return (
        f"{who} {_have(waits.silent)} not answered for {_whole(waits.seconds)}: {it_is} stopped, "
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
    new = in_notebook(": new processes take over the variables")
    return (
        f"{interrupt} ends {the_cell()}. If that does not reach those that wait, a second one "
        f"does{new}."
    )


def _place_text(wait: Wait) -> str:
    place = f"outside {the_cell()}'s lines" if wait.place is None else wait.place.text
    return f"{processes_label(wait.processes)} {place}"


def _whole(seconds: float) -> str:
    """Returns a duration in whole seconds: it is shown again every second."""
    return f"{seconds:.0f} s" if seconds < 60 else format_seconds(seconds)
