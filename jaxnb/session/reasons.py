"""Pure: who waits by the conductor's knowledge, to why that is, in words."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from jaxnb.labels import capitalized, processes_label, ranks_label
from jaxnb.lockstep.messages import Asking
from jaxnb.model.dispatches import Cause

_OWN = (
    "a computation (a callback in it that waits, say), or the code itself: a lock, a file, a queue"
)


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


def main_reason(askings: Sequence[Asking]) -> Reason:
    """Returns what the processes' main threads wait for, where all of them wait."""
    asking = sorted(each.process for each in askings if each.lane == "main")
    late = sorted(awaited(asking, askings) - set(asking))
    if not late:
        return Reason(
            "No process waits for another's request: all dispatches were granted. What blocks is "
            f"{_OWN}."
        )
    waits, has = ("waits" if len(asking) == 1 else "wait"), ("has" if len(late) == 1 else "have")
    there = "it" if len(late) == 1 else "them"
    return Reason(
        f"{processes_label(asking).capitalize()} {waits} for {processes_label(late)}, which {has} "
        f"had every dispatch granted. What blocks {there} is {_OWN}."
    )


def left_reason(left: str) -> Reason:
    """Returns what is said where nothing is agreed on, and all in the cell wait.

    Args:
        left: How others have left the cell, as a clause; empty if none has.
    """
    if not left:
        return Reason("If they wait for each other this never ends.")
    return Reason(f"{capitalized(left)}. If they wait for that one, this never ends.", "missing")


def threads_reason(askings: Sequence[Asking]) -> Reason | None:
    """Returns what the processes' other threads wait for; None if none of them waits.

    They may come in any order, so that one whose word no other says may still be let go: nobody
    knows what the others will ask for next. Of several threads of a process the last to ask counts.
    """
    last = {each.process: each for each in sorted(askings, key=_token) if each.lane == "other"}
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


def _token(asking: Asking) -> int:
    return asking.token


def silent_reason(seconds: float, pid: int) -> Reason:
    """Returns what is said of a conductor that does not answer."""
    return Reason(
        f"The conductor (pid {pid}), which lets processes dispatch, has not answered for "
        f"{seconds:.0f} s: it is stopped, or the machine is too busy. `kill -CONT {pid}` lets a "
        "stopped one go on.",
        "slow",
    )
