"""What became of variables when their processes were replaced, for people."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jaxnb.display.card import Card
from jaxnb.labels import capitalized, format_bytes, format_seconds, plural, processes_label
from jaxnb.launch.card_group import group_card
from jaxnb.lockstep.provenance import names_text
from jaxnb.model.dispatches import Difference
from jaxnb.model.group import GroupInfo
from jaxnb.recovery.messages import Recovered


def recovered_card(group: GroupInfo, recovered: Recovered) -> Card:
    """New processes with the variables of the old ones: what was kept, and what is lost."""
    kept = plural(len(recovered.kept), "variable")
    size = f" ({format_bytes(recovered.nbytes)})" if recovered.kept else ""
    tail = f"new processes in {format_seconds(recovered.seconds)} · kept {kept}{size}"
    if recovered.died:
        tail = f"{processes_label(recovered.died)} replaced · {tail}"
    return group_card(group, tail, False, recovered.notes)


def recovered_text(
    recovered: Recovered,
    differences: Sequence[Difference] = (),
    tell: Callable[[Sequence[Difference]], str] = names_text,
) -> str:
    """Returns the same as one paragraph, after a cell.

    Args:
        recovered: The group.
        differences: The names under which its processes held parts of different arrays then.
        tell: Tells of those that none has lost.
    """
    gone = {each.path for each in recovered.lost}
    rest = [each for each in differences if each.place not in gone]
    told = [str(recovered)]
    if rest:
        told.append(capitalized(tell(rest)))
    return " ".join(told)
