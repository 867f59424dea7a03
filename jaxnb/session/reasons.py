"""Why a cell waits, and what is told of processes that have not ended it, in words; pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from jaxnb.labels import capitalized, processes_label, ranks_label
from jaxnb.lockstep.messages import Asking
from jaxnb.model.dispatches import Cause
from jaxnb.model.group import StackEntry, Whereabouts
from jaxnb.model.scripts import in_notebook, the_cell


def lost_text(processes: Sequence[int], seconds: float, press: str) -> str:
    """Returns what is said of processes that run no cell, and have not answered.

    Args:
        processes: Their indices.
        seconds: For how long.
        press: How the user interrupts the cell.
    """
    runs, has = ("is running", "has") if len(processes) == 1 else ("are running", "have")
    return (
        f"{processes_label(processes).capitalize()} {runs} no cell and {has} not answered for "
        f"{seconds:g} s: a message was lost. {press} twice to end {the_cell()}"
        f"{in_notebook(': new processes take over the variables')}."
    )


def still_text(
    raised: Sequence[tuple[Sequence[int], str]],
    processes: Sequence[int],
    places: Sequence[StackEntry | None],
    press: str,
) -> str:
    """Returns what is said while a cell goes on that has failed on other processes.

    Args:
        raised: Who raised what, as clauses.
        processes: Who is still in it.
        places: Where those are, as far as they tell.
        press: How the user interrupts the cell.
    """
    said = "; ".join(f"{processes_label(who)} {what}" for who, what in raised)
    are = "is" if len(processes) == 1 else "are"
    (place, *others) = {each and each.text for each in places} or {None}
    at = f", {place}" if place and not others else ""
    who = processes_label(processes).capitalize()
    return f"{capitalized(said)}. {who} {are} still in {the_cell()}{at}; {press} ends it."


def silent_text(
    waiting: Sequence[int],
    found: Mapping[int, Whereabouts],
    seconds: float,
    *,
    caught: bool,
    press: str,
    stopped: str = "",
) -> str:
    """Returns who has not ended after an interrupt, where it is, and what the next one does.

    Args:
        waiting: Who.
        found: Where those are that tell.
        seconds: How long ago the interrupt was.
        caught: They have caught it, and gone on.
        press: How the user interrupts the cell; empty if nobody is there who could.
        stopped: Which of them are stopped, as a clause; empty if none is.
    """
    who, where = processes_label(waiting).capitalize(), _places(waiting, found)
    is_one = len(waiting) == 1
    if caught:
        said = f"{who} caught the interrupt and went on: {where}."
    else:
        said = f"{who} did not answer the interrupt within {seconds:.0f} s: {where}."
    if not press:
        return said
    its = ("it does", "it is") if is_one else ("they do", "they are")
    takes = in_notebook(", and new processes take over the variables")
    if takes and any(i not in found for i in waiting):
        takes += "; a process that stays silent loses its own"
    once = f"{press} again (earlier ones count once)"
    if caught:
        now = in_notebook(
            f"interrupt what {its[0]} now; if that does not end the cell either, {its[1]} ended"
        )
        now = now or f"end the script: {its[1]} ended"  # a second Ctrl-C ends it at once
        return f"{said} This may end by itself. {once} to {now} by force{takes}."
    if all(where.in_cell is None for where in found.values()) and len(found) == len(waiting):
        why = "Threads that they have started may go on."
    else:
        why = (
            "Code that waits in C++, or in a computation's callback, does not see it; XLA sees it "
            "when it has compiled."
        )
    return (
        f"{said} {f'{capitalized(stopped)}.' if stopped else why} "
        f"{once} to end {the_cell()}: {its[1]} ended by force{takes}."
    )


_PLURALS = {"is": "are", "has": "have"}


def _places(waiting: Sequence[int], found: Mapping[int, Whereabouts]) -> str:
    places: dict[str, list[int]] = {}
    for index in waiting:
        places.setdefault(_what_it_does(found.get(index)), []).append(index)
    if len(places) == 1:  # who it is was just said
        (does,) = places
        return f"{'it' if len(waiting) == 1 else 'they'} {_of(len(waiting), does)}"
    return "; ".join(f"{processes_label(who)} {_of(len(who), it)}" for it, who in places.items())


def _of(count: int, does: str) -> str:
    """Returns what one process does, as it is said of so many."""
    verb, rest = does.split(" ", 1)
    return does if count == 1 else f"{_PLURALS[verb]} {rest}"


def _what_it_does(where: Whereabouts | None) -> str:
    if where is None:
        return "is silent"
    if where.fault:
        return f"is at an unknown position: its sentinel failed ({where.fault})"
    if where.cell_seconds is None:
        return f"is not in {the_cell()}"
    if where.compiling is not None and where.compiling.holder is None:
        return f"is compiling `{where.compiling.program}` {line_text(where)}".rstrip()
    return f"is {line_text(where)}" if line_text(where) else f"has left {the_cell()}'s lines"


def line_text(where: Whereabouts) -> str:
    """Returns ``"at line 3: `y = f(x)`"``; empty outside cells."""
    return "" if where.in_cell is None else where.in_cell.text


@dataclass(frozen=True, slots=True)
class Reason:
    """Why processes wait.

    Attributes:
        text: Sentences.
        cause: The same in a word; empty if nothing need be wrong.
    """

    text: str
    cause: Cause | Literal[""] = ""


def awaited(waiters: Collection[int], askings: Sequence[Asking]) -> frozenset[int]:
    """Returns for whom main threads wait: who takes part in what they ask for, and does not ask.

    Who is waited for may wait for somebody else itself.

    Args:
        waiters: The processes in question.
        askings: All threads that wait.
    """
    found: set[int] = set()
    todo = set(waiters)
    while todo:
        process = todo.pop()
        for each in askings:
            if each.lane == "main" and each.process == process:
                new = set(each.late(askings)) - found
                found |= new
                todo |= new
    return frozenset(found)


def threads_reason(askings: Sequence[Asking]) -> Reason | None:
    """Returns what the processes' other threads wait for; None if none of them waits.

    They may come in any order, so that one whose word no other says may still be let go: nobody
    knows what the others will ask for next. Of several threads of a process the last to ask counts.
    """
    last = {
        each.process: each
        for each in sorted(askings, key=attrgetter("token"))
        if each.lane == "other"
    }
    if not last:
        return None
    each_of = "each of " if len(last) > 1 else ""
    text = (
        f"A thread of {each_of}{processes_label(last)} (or a computation's callback) waits for "
        "all processes to dispatch the same computation, but "
    )
    everyone = sorted({q for each in last.values() for q in each.word.participants})
    if missing := [q for q in everyone if q not in last]:
        has = "has" if len(missing) == 1 else "have"
        return Reason(f"{text}{processes_label(missing)} {has} no thread that does.", "missing")
    groups: list[list[Asking]] = []
    for each in last.values():
        alike = [those for those in groups if those[0].word.agrees_with(each.word)]
        alike[0].append(each) if alike else groups.append([each])
    who = " / ".join(ranks_label(sorted(each.process for each in those)) for those in groups)
    if len({each.word.program for each in last.values()}) > 1:
        return Reason(f"{text}programs or shapes differ on processes {who}.", "program")
    return Reason(f"{text}inputs of the one program differ on processes {who}.", "input")


def silent_reason(seconds: float) -> Reason:
    """Returns what is said of a conductor that does not answer."""
    return Reason(
        f"The conductor, which lets processes dispatch, has not answered for {seconds:.0f} s: its "
        "host is too busy, or not reached.",
        "slow",
    )
