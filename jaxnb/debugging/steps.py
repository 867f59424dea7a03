"""The steps of a cell: what all processes report, as one list."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from typing import Any

from jaxnb.labels import by_text, one_line, processes_label
from jaxnb.model.steps import Step, StepTrail, StepValue


@dataclass(frozen=True)
class Steps:
    """The lines that a cell ran within ``shard_map``, in order, with what each has assigned.

    A notebook shows them as pictures, ``print`` as text.

    Attributes:
        steps: The lines; each value has the blocks of all devices.
        more: How many lines came after these.
        apart: Where processes ran different lines, as a sentence; empty if they did not.
        owners: Device id to the process that has it.
    """

    steps: tuple[Step, ...] = ()
    more: int = 0
    apart: str = ""
    owners: Mapping[int, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return self._repr_mimebundle_()["text/plain"]

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        from jaxnb.debugging.card_steps import steps_card

        return steps_card(self)._repr_mimebundle_()


def joined(trails: Mapping[int, StepTrail]) -> Steps:
    """Returns the steps of processes as one list, as far as these ran the same lines.

    Args:
        trails: Process index to what it reports.
    """
    ran = {i: trail.steps for i, trail in sorted(trails.items()) if trail.steps}
    values = ((i, value) for i, steps in ran.items() for step in steps for value in step.values)
    owners = {device: i for i, value in values for device in value.blocks or ()}
    found: list[Step] = []
    for here in zip_longest(*ran.values()):
        sides: dict[Any, list[int]] = {}
        for i, step in zip(ran, here, strict=True):
            sides.setdefault(_place(step), []).append(i)
        if len(sides) > 1:
            said = "; ".join(f"{processes_label(who)} {side[0]}" for side, who in sides.items())
            return Steps(tuple(found), 0, f"Here processes ran different lines: {said}.", owners)
        assigned = zip(*(step.values for step in here), strict=True)
        joined = tuple(_value(dict(zip(ran, each, strict=True))) for each in assigned)
        found.append(replace(here[0], values=joined))
    more = max((trails[i].more for i in ran), default=0)
    return Steps(tuple(found), more, "", owners)


def _place(step: Step | None) -> tuple[object, ...]:
    """Returns what is the same where processes run one line, and first what this one did."""
    if step is None:
        return ("ran no further line",)
    did = f"raised {step.raised} at" if step.raised else "ran"
    return f"{did} {step.at}", *((each.name, each.type) for each in step.values)


def _value(values: Mapping[int, StepValue]) -> StepValue:
    first = next(iter(values.values()))
    blocks = {d: text for each in values.values() for d, text in (each.blocks or {}).items()}
    text = first.text
    if any(each.text != text for each in values.values()):
        told = by_text({i: each.text or "…" for i, each in values.items()})
        text = "; ".join(f"{each} on {processes_label(who)}" for each, who in told.items())
    return replace(first, blocks=blocks or None, text=one_line(text, 200))
