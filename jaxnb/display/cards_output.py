"""What a cell's processes displayed: figures, HTML tables and other rich output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from jaxnb.display._rich import Said, needs_front_end, view_of
from jaxnb.display._text import labelled
from jaxnb.display.card import Card, render
from jaxnb.display.labels import ranks_label
from jaxnb.model import RichOutput
from jaxnb.result import Agreement, CellResult

Displayed = Card | RichOutput
"""A card, or an output to hand to the front end as it is."""


def displays_cards(
    result: CellResult, outputs: Literal["merged", "all", "first"] = "merged"
) -> list[Displayed]:
    """Returns what the processes displayed, output by output.

    An output that is the same on all processes comes as it is, so that the front end shows
    it as if the notebook kernel had made it. Otherwise a card shows the first process's,
    with the others a click away.
    """
    columns = {
        process: settled(each.displays) for process, each in sorted(result.per_process.items())
    }
    shown: list[Displayed] = []
    for k in range(max(map(len, columns.values()), default=0)):
        said = {p: outputs_of[k] for p, outputs_of in columns.items() if k < len(outputs_of)}
        everyone = len(said) == len(columns)
        shown += _one_output(said, outputs, everyone)
    return shown


def settled(displays: Sequence[RichOutput]) -> list[RichOutput]:
    """Returns outputs with every update put in the place of what it updates."""
    kept: list[RichOutput] = []
    for output in displays:
        if not output.update:
            kept.append(output)
            continue
        for i, earlier in enumerate(kept):
            if earlier.display_id == output.display_id:
                kept[i] = output
    return kept


def native_value(result: CellResult) -> RichOutput | None:
    """Returns the value as an output for the front end where no card can hold it.

    That is a value the processes agree on whose representation only the front end can
    show as it is meant: LaTeX, Markdown, Plotly and the like.
    """
    if result.agreement is not Agreement.SAME or result.array is not None:
        return None
    info = next(r.value_info for r in result.per_process.values() if r.value_info is not None)
    return RichOutput(info.mimebundle) if needs_front_end(info.mimebundle) else None


def _one_output(
    said: Mapping[int, RichOutput], outputs: Literal["merged", "all", "first"], everyone: bool
) -> list[Displayed]:
    groups: list[tuple[list[int], RichOutput]] = []
    for process, output in said.items():
        for processes, known in groups:
            if outputs != "all" and known.data == output.data:
                processes.append(process)
                break
        else:
            groups.append(([process], output))
    first = groups[0][1]
    if outputs == "first" or (len(groups) == 1 and everyone):
        return [first]
    rows = [
        Said(tuple(processes), view_of(output.data, output.metadata))
        for processes, output in groups
    ]
    before: list[Displayed] = []
    if needs_front_end(first.data):
        before, rows = [first], rows[1:]
    html = render("by_process", rows=rows, silent=[], rich=True, note="", opened=outputs == "all")
    text = labelled((f"[{ranks_label(row.processes)}]", row.view.text) for row in rows)
    return [*before, *([Card(html, "\n".join(text))] if rows else [])]
