"""What processes could not keep when their group was formed anew, by the user's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from jaxnb.labels import capitalized, paths_label, plural, processes_label
from jaxnb.model import Recovered
from jaxnb.model.dispatches import Processes
from jaxnb.model.origins import Argument, Difference
from jaxnb.provenance import source_text, step_of

MENDS = (
    "Make it again on all processes: run its cell again, from the start or a checkpoint, or push a "
    "value."
)
"""What the user can do about what is lost."""

MOST_KINDS = 6

Sides = tuple[tuple[Processes, Argument | None], ...]


class _Alike(NamedTuple):
    """What is the same of arrays that one sentence tells of."""

    who: frozenset[int]  # has lost them
    why: str
    steps: tuple[tuple[Processes, tuple[object, ...]], ...]  # whose results others still have


def loss_text(recovered: Recovered, differences: Sequence[Difference] = ()) -> str:
    """Returns which arrays are lost on whom, why, who still has older ones, and what to do.

    Args:
        recovered: The group.
        differences: The names under which its processes held parts of different arrays before.

    Returns:
        Sentences; empty if none was lost.
    """
    if not any(process.unkept for process in recovered.processes):
        return ""
    lost: dict[tuple[str, str], set[int]] = {}
    for process in recovered.processes:
        for each in process.unkept:
            if each.name:
                lost.setdefault((each.name, each.why), set()).add(process.process_index)
    everyone = {process.process_index for process in recovered.processes}
    sides = {each.place: each.sides for each in differences}
    groups: dict[_Alike, list[str]] = {}
    left: dict[_Alike, Sides] = {}
    for (name, why), who in lost.items():
        older = _without(sides.get(name, ()), who)
        alike = _Alike(frozenset(who), why, tuple((those, step_of(side)) for those, side in older))
        groups.setdefault(alike, []).append(name)
        left[alike] = older
    told = [_said(names, alike, left[alike], everyone) for alike, names in groups.items()]
    told += _said_of_unnamed(recovered, everyone)
    told.append("Using one raises ArrayGoneError.")
    return " ".join([*told, MENDS] if groups else told)


def lost_names(recovered: Recovered) -> set[str]:
    """Returns the names of the arrays that some process has lost."""
    return {each.name for process in recovered.processes for each in process.unkept}


def _without(sides: Sides, processes: set[int]) -> Sides:
    """Returns who holds what of those that are not among some processes."""
    rest = ((tuple(i for i in those if i not in processes), side) for those, side in sides)
    return tuple((those, side) for those, side in rest if those)


def _said(names: list[str], alike: _Alike, older: Sides, everyone: set[int]) -> str:
    text = f"{paths_label(names)} {_lost_on(len(names), alike.who, alike.why, everyone)}"
    for those, side in older:
        has = "has" if len(those) == 1 else "have"
        label = capitalized(processes_label(those))
        text += f" {label} still {has} {source_text(side)}."
    return text


def _said_of_unnamed(recovered: Recovered, everyone: set[int]) -> list[str]:
    """Returns how many arrays are lost that no name leads to, on the process with most of them."""
    unnamed = {
        process.process_index: [each for each in process.unkept if not each.name]
        for process in recovered.processes
    }
    who = frozenset(index for index, arrays in unnamed.items() if arrays)
    if not who:
        return []
    count = max(map(len, unnamed.values()))
    arrays = [each for those in unnamed.values() for each in those]
    kinds = list(dict.fromkeys(each.type for each in arrays))
    shown = ", ".join(kinds[:MOST_KINDS]) + (", …" if len(kinds) > MOST_KINDS else "")
    text = f"{plural(count, 'array')} that no name leads to ({shown})"
    return [f"{text} {_lost_on(count, who, arrays[0].why, everyone)}"]


def _lost_on(count: int, who: frozenset[int], why: str, everyone: set[int]) -> str:
    """Returns what is said of so many arrays: ``"is lost on process 2: …"``, and why."""
    on = "all processes" if who == everyone and len(who) > 1 else processes_label(who)
    if count == 1:
        return f"is lost on {on}: {why}."
    return f"are lost on {on}: {why.replace('its ', 'their ')}."
