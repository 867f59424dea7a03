"""What became of variables when a group was formed anew, in sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from jaxnb.labels import capitalized, processes_label
from jaxnb.model import Recovered

MAX_NAMES = 12


def recovered_notes(recovered: Recovered) -> list[str]:
    """Returns a sentence for each thing that was lost, refilled, given, or is missing.

    Of arrays that could not be kept :func:`~jaxnb.display._losses.loss_text` tells.
    """
    notes = []
    if recovered.lost_shards:
        notes.append(
            f"These arrays lost shards: {names_label(recovered.lost_shards)}. Nobody else had a "
            "replica. Using one raises an error; run the cells again that made them."
        )
    if others := list(dict.fromkeys(thing for p in recovered.processes for thing in p.lost)):
        notes.append(f"Not kept: {_some(others)}. Using one raises an error; make it again.")
    if recovered.unsettled:
        many = len(recovered.unsettled) > 1
        who = processes_label(recovered.unsettled)
        notes.append(
            f"{capitalized(who)} still {'have' if many else 'has'} computations of before "
            "under way, in a callback that does not return, say. Nobody waits for them; they use "
            "memory until they end."
        )
    for index, why in recovered.given_up.items():
        notes.append(f"Process {index} {why} when it was to leave the group, and was replaced.")
    if recovered.hook_errors:
        notes.append(f"jaxnb.on_reform: {_some(recovered.hook_errors)}.")
    if not recovered.replaced:
        return notes
    if not recovered.processes and not recovered.rescued:
        return [*notes, "No process was left: all variables are lost."]
    who = processes_label(recovered.replaced)
    many = len(recovered.replaced) > 1
    for index, names in recovered.rescued.items():
        if names:
            notes.append(
                f"Read out of process {index} before it was ended, and given back: "
                f"{names_label(names)}."
            )
    given = [name for name in recovered.given if name not in recovered.lost_shards]
    if given:
        notes.append(
            f"Given to {who}, as all others hold them equal: {names_label(given)}. What should "
            f"differ on {'them' if many else 'it'} has to be made anew."
        )
    refilled = [name for name in recovered.refilled if name not in recovered.lost_shards]
    if refilled:
        notes.append(f"Shards filled from replicas: {names_label(refilled)}.")
    if recovered.missing:
        verb = "do not have" if many else "does not have"
        notes.append(f"{capitalized(who)} {verb}: {_missing(recovered)}.")
    return notes


def _missing(recovered: Recovered) -> str:
    counts = Counter(recovered.missing.values())
    parts = []
    for reason, _ in counts.most_common():
        names = [name for name, why in recovered.missing.items() if why == reason]
        parts.append(f"{names_label(names)} ({reason})")
    return _some(parts, "; ")


def names_label(names: Sequence[str]) -> str:
    """Returns names as a list: "`x`, `state['mu']`"; of many the first ones."""
    return _some([f"`{name}`" for name in names])


def _some(things: Sequence[str], separator: str = ", ") -> str:
    shown = separator.join(things[:MAX_NAMES])
    left = len(things) - MAX_NAMES
    return f"{shown} and {left} more" if left > 0 else shown
