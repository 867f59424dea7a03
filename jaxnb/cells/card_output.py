"""What a cell's processes displayed: figures, HTML tables and other rich output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxnb.cells.result import Agreement, CellResult
from jaxnb.display.blocks import Either, Facts, Fold, Note, Shown
from jaxnb.display.card import NOTHING, Card, card_of
from jaxnb.display.rich import View, needs_front_end, shown_alike, view_of
from jaxnb.display.text import labelled
from jaxnb.labels import Outputs, processes_label, ranks_label
from jaxnb.model.cells import RichOutput


class DisplayColumns(dict[int, list[RichOutput]]):
    """What each process of a cell displays now: process index to outputs, in order.

    An update takes the place of what it updates; what a process cleared is gone.
    """

    def __init__(self) -> None:
        super().__init__()
        self._cleared_by_next: set[int] = set()

    def add(self, process: int, output: RichOutput) -> None:
        """Takes an output; an update of a display that is not of this cell counts as new."""
        column = self.setdefault(process, [])
        if process in self._cleared_by_next:
            self._cleared_by_next.discard(process)
            column.clear()
        known = False
        for k, earlier in enumerate(column):
            if output.update and earlier.display_id == output.display_id:
                column[k], known = output, True
        if not known:
            column.append(output)

    def drop(self, process: int, wait: bool) -> None:
        """Takes a ``clear_output``: now, or with ``wait`` when the next output comes."""
        if wait:
            self._cleared_by_next.add(process)
        else:
            self.pop(process, None)


@dataclass(frozen=True, slots=True)
class _Row:
    processes: tuple[int, ...]
    views: tuple[View, ...]
    opened: bool


def displays_card(
    columns: Mapping[int, Sequence[RichOutput]],
    first: int,
    outputs: Outputs = "merged",
    *,
    with_first: bool = False,
) -> Card:
    """What the processes displayed beside the first one, a click away; may be empty.

    An output that the first process displayed too is not shown again.

    Args:
        columns: Process index to outputs.
        first: The process whose outputs are shown as they are.
        outputs: ``"all"`` shows equal outputs of other processes too, and open; ``"first"``
            shows none of theirs.
        with_first: Show the first process's too, above the others'.
    """
    own = columns.get(first, ())
    groups: list[tuple[list[int], list[RichOutput]]] = []
    for process, column in sorted(columns.items()):
        if process == first or outputs == "first":
            continue
        other = list(column) if outputs == "all" else _beside(own, column)
        if other:
            _group(groups, process, other, outputs)
    rows = [
        # With nothing of the first process to see, the next one stands in for it.
        _Row(tuple(processes), _views(other), outputs == "all" or (not own and i == 0))
        for i, (processes, other) in enumerate(groups)
    ]
    views = _views(own) if with_first else ()
    if not rows and not views:
        return NOTHING
    # What stands above has no label of its own: it is as the process displayed it.
    note = ""
    if own and not views:
        note = f"above: what {processes_label([first])} displayed"
        note += "; below: what others did and it did not" if outputs == "merged" else ""
    text = [view.text for view in views] + ([f"— {note}"] if note else [])
    text += labelled(
        (f"[{ranks_label(row.processes)}]", view.text) for row in rows for view in row.views
    )
    folds = [
        Fold(Facts([processes_label(row.processes)]), [*map(Shown, row.views)], row.opened)
        for row in rows
    ]
    return card_of(Either([*map(Shown, views), Note(note, "dim"), *folds], "\n".join(text)))


def native_value(result: CellResult) -> RichOutput | None:
    """Returns the value as an output for the front end where no card can hold it.

    That is a value the processes agree on whose representation only the front end can
    show as it is meant: LaTeX, Markdown, Plotly and the like.
    """
    if result.agreement is not Agreement.SAME or result.array is not None:
        return None
    info = next(r.value_info for r in result.per_process.values() if r.value_info is not None)
    return RichOutput(info.mimebundle) if needs_front_end(info.mimebundle) else None


def _beside(own: Sequence[RichOutput], column: Sequence[RichOutput]) -> list[RichOutput]:
    """Returns the outputs of ``column`` without those that ``own`` has too, in their order."""
    other: list[RichOutput] = []
    after = 0
    for output in column:
        for k in range(after, len(own)):
            if _are_alike(own[k], output):
                after = k + 1
                break
        else:
            other.append(output)
    return other


def _are_alike(one: RichOutput, other: RichOutput) -> bool:
    return one.data == other.data or shown_alike(one.data) == shown_alike(other.data)


def _group(
    groups: list[tuple[list[int], list[RichOutput]]],
    process: int,
    other: list[RichOutput],
    outputs: Outputs,
) -> None:
    for processes, known in groups:
        alike = len(known) == len(other) and all(map(_are_alike, known, other))
        if outputs != "all" and alike:
            processes.append(process)
            return
    groups.append(([process], other))


def _views(displays: Sequence[RichOutput]) -> tuple[View, ...]:
    return tuple(view_of(output.data, output.metadata) for output in displays)
