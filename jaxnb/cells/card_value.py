"""The card of a cell's last expression."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from jaxnb.arrays.blocks import each_its_own
from jaxnb.arrays.card_array import (
    array_card,
    array_facts,
    array_pictures,
    array_type,
    replicas_differ_card,
)
from jaxnb.arrays.layout import ArrayLayout, joined
from jaxnb.arrays.pictures import preview_text
from jaxnb.cells.result import Agreement, CellResult, ProcessResult
from jaxnb.display.blocks import Either, Facts, Fold, Note, Shown
from jaxnb.display.card import NOTHING, Card, by_process_block, card_of, stacked
from jaxnb.display.markup import Said, View, grouped, is_rich, needs_front_end, shown_alike, view_of
from jaxnb.display.text import labelled
from jaxnb.labels import LOST, Outputs, plural, processes_label, ranks_label
from jaxnb.lockstep.provenance import SAME_SHAPE
from jaxnb.model.arrays import ArrayInfo
from jaxnb.model.cells import RichOutput, ValueInfo


def value_card(result: CellResult, outputs: Outputs = "merged") -> Card:
    """The value of a cell, in the way that its processes' values relate.

    Args:
        result: What the cell did.
        outputs: ``"merged"``: equal values once; ``"all"``: one by one for each process;
            ``"first"``: only the first process's.

    Returns:
        The card; an empty one if the cell has no value.
    """
    agreement, array = result.agreement, result.array
    if agreement is Agreement.NO_VALUE:
        return NOTHING
    if agreement is Agreement.REPLICAS_DIFFER and array is not None:
        return stacked([replicas_differ_card(array), by_process_card(result, outputs)])
    if agreement is Agreement.SHARDED and array is not None:
        return array_card(array, note=_not_run_note(result, array))
    if agreement in (Agreement.SAME, Agreement.SUSPECT, Agreement.UNVERIFIED) and outputs != "all":
        return _same_card(result, array)
    return stacked([by_process_card(result, outputs), _unlike_card(result)])


def _unlike_card(result: CellResult) -> Card:
    """Says of arrays that span processes that they are not one, where their shapes differ."""
    arrays = [_array(ran) for ran in result.per_process.values()]
    shapes = {each.shape for each in arrays if each is not None and not each.fully_addressable}
    if len(shapes) < 2:
        return NOTHING
    return card_of(Note(f"{_UNLIKE} {SAME_SHAPE}"), tone="warn")


_UNLIKE = (
    "This is not one array: it spans the processes, and its shape differs between them. What is "
    "computed with it diverges."
)


def _same_card(result: CellResult, array: ArrayInfo | None) -> Card:
    if array is not None and array.deleted:
        return array_card(array)
    info = next(r.value_info for r in result.per_process.values() if r.value_info is not None)
    view = view_of(info.mimebundle)
    facts: list[str] = []
    picture = NOTHING
    if array is not None:
        if not info.mimebundle:
            view = view_of({"text/plain": preview_text(array)})
        if not array.fully_addressable:
            facts = [array_type(array), *array_facts(array)]
            if array.shape and array.fully_replicated:  # of a number there is nothing to see
                picture = card_of(*array_pictures(array))
        elif len(array.shards) > 1:
            # The values stand above the picture already.
            own = each_its_own([a for each in result.per_process.values() if (a := _array(each))])
            picture = array_card(replace(own, corner=() if view.text else own.corner))
        # What one device holds prints its own type, and has no layout to tell.
    facts.append(_agreement_note(result, array))
    if info.digest and len(result.per_process) > 1:
        facts.append(info.digest_note)
    is_own = array is not None and array.fully_addressable and len(array.shards) == 1
    if is_own and info.array and info.array.shape and len(result.per_process) > 1:
        facts.append("a copy on each process, not sharded")
    facts = [fact for fact in facts if fact]
    value = Shown(replace(view, text=view.text or f"<{info.type_name}>"))
    note = Facts(facts, look="small", before="— ")
    table = _table(result)
    if table is None or is_rich(info.mimebundle):
        return stacked([card_of(value, note), picture])
    # What is no array is in the value's own text only, beside what JAX prints of all arrays.
    is_short = value.view.text.count("\n") < _MAX_BESIDE_TABLE
    shown = [card_of(value)] if table.others and is_short else []
    return stacked([*shown, table._card(), card_of(note)])


_MAX_BESIDE_TABLE = 24
"""Lines of a value's own text that stand above the table of its arrays."""


def _table(result: CellResult) -> ArrayLayout | None:
    """Returns how the arrays of a pytree lie: JAX prints no values of those that are spread."""
    infos = [each.value_info for each in result.per_process.values()]
    layouts = [info.layout for info in infos if info is not None and info.layout is not None]
    found = joined(layouts) if len(layouts) == len(infos) else None
    return found if found is not None and found.entries else None


def _not_run_note(result: CellResult, array: ArrayInfo) -> str:
    """Returns which processes are to hold parts of an array, and have not run the cell."""
    others = {shard.process_index for shard in array.shards} - result.per_process.keys()
    if not others or array.deleted:
        return ""
    have = "has" if len(others) == 1 else "have"
    made = f"as {processes_label(result.per_process)} made it"
    return f"{made}: {processes_label(others)} {have} not run the cell, and were not asked"


def _array(ran: ProcessResult) -> ArrayInfo | None:
    return ran.value_info.array if ran.value_info is not None else None


def _agreement_note(result: CellResult, array: ArrayInfo | None) -> str:
    ran = result.per_process
    if len(ran) == 1:
        return processes_label(ran) if result.num_processes > 1 else ""
    unverified = result.agreement is Agreement.UNVERIFIED
    how = "not compared, too large" if unverified else "byte-compared"
    if array is not None and array.deleted:
        how = "not compared"
    elif any(each.value_info and each.value_info.has_lost for each in ran.values()):
        how = "byte-compared, except for what is lost"
    elif (
        any(each.value_info and each.value_info.arrays for each in ran.values()) and not unverified
    ):
        how = ""  # the value's own note says which arrays in it are not compared by bytes
    if held := _holders_note(result, array):
        return held
    if result.agreement is Agreement.SUSPECT:
        return f"identical on {plural(len(ran), 'process')}, but it {result.suspect}"
    relation = "replicated" if unverified else "identical"
    who = plural(len(ran), "process")
    who = who if len(ran) == result.num_processes else processes_label(ran)
    return f"{relation} on {who}" + (f" ({how})" if how else "")


def _holders_note(result: CellResult, array: ArrayInfo | None) -> str:
    """Returns who holds an array that is not on all processes of the cell; empty for others."""
    if array is None or array.deleted or not array.shards:
        return ""
    holders = {shard.process_index for shard in array.shards}
    here = sorted(holders & result.per_process.keys())
    if len(here) == len(result.per_process) or array.fully_addressable:
        return ""
    on = f"an array on {processes_label(holders)}"
    if not here:
        return f"{on}: none of it is on {processes_label(result.per_process)}"
    if len(here) == 1:
        return f"{on}: here {processes_label(here)} alone holds any"
    compared = all(s.digest for s in array.shards if s.process_index in here)
    return f"{on} ({'byte-compared' if compared else 'not compared'})"


_ALIKE = "look alike but are not identical: their bytes or shardings differ"


def by_process_card(result: CellResult, outputs: Outputs) -> Card:
    """A table of the values by process, equal ones in one row; rich ones a click away."""
    rows: list[Said] = []
    entries = []
    for process, each in sorted(result.per_process.items()):
        if each.value_info is not None:
            # With "all" no two are merged: a digest of their own keeps them apart.
            key = str(process).encode() if outputs == "all" else _digest(process, each.value_info)
            entries.append((process, _bundle(each.value_info), key))
    rows = grouped(entries)
    silent = [
        i for i, r in sorted(result.per_process.items()) if r.value_info is None and not r.error
    ]
    notes = [_difference_note(result, rows, outputs)]
    if outputs == "merged" and len(rows) > 1 and len({row.view.content for row in rows}) == 1:
        who = tuple(sorted(process for row in rows for process in row.processes))
        rows = [Said(who, rows[0].view)]
        notes = ["shown the same" if is_rich(entries[0][1]) else f"they {_ALIKE}"]
    if outputs == "first":
        rows, silent = rows[:1], []
        rows = [Said(rows[0].processes[:1], rows[0].view)]
    rich = any(is_rich(bundle) for _, bundle, _ in entries)
    notes += [f"it {result.suspect}" if result.suspect else ""]
    notes = [note for note in notes if note]
    shown = by_process_block(rows, silent, rich=rich, opened=outputs == "all")
    return card_of(shown, Facts(notes, look="dim", before="— "))


def _digest(process: int, info: ValueInfo) -> bytes:
    """What tells this process's value from another's; empty if there is nothing."""
    if info.digest or info.array is None:
        return info.digest
    return b"".join(s.digest for s in info.array.shards if s.process_index == process)


def _bundle(info: ValueInfo) -> Mapping[str, Any]:
    if info.mimebundle:
        return info.mimebundle
    if info.array is None:
        return {"text/plain": f"<{info.type_name}>"}
    return {"text/plain": " · ".join([array_type(info.array), *array_facts(info.array)])}


def _difference_note(result: CellResult, rows: list[Said], outputs: str) -> str:
    if outputs == "first" and len(result.per_process) > 1:
        first = min(result.per_process)
        if first not in rows[0].processes:
            return f"process {first} has no value: this is another process's"
        return "the first process's value; the others are in `spmd.last_result.per_process`"
    if outputs == "merged" and len({row.view.content for row in rows}) < len(rows):
        return f"some {_ALIKE}"
    all_have_one = all(each.value_info is not None for each in result.per_process.values())
    if result.agreement is Agreement.DIFFERENT and len(rows) == 1 and all_have_one:
        return "shown the same, but they lie differently over the devices"
    if result.agreement is Agreement.UNCOMPARED and outputs == "merged":
        shown = "shown the same" if len(rows) == 1 else "shown by process"
        notes = [r.value_info.digest_note for r in result.per_process.values() if r.value_info]
        if len(rows) == 1 and set(notes) == {LOST}:
            return f"lost on {processes_label(result.per_process)}"
        why = next(filter(None, notes), "objects of this type have no bytes that could be compared")
        return f"{shown}; {why}"
    return ""


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
        for processes, known in groups if outputs != "all" else ():
            if len(known) == len(other) and all(map(_are_alike, known, other)):
                processes.append(process)
                break
        else:
            if other:
                groups.append(([process], other))
    views = _views(own) if with_first else ()
    if not groups and not views:
        return NOTHING
    # What stands above has no label of its own: it is as the process displayed it.
    note = ""
    if own and not views:
        note = f"above: what {processes_label([first])} displayed"
        note += "; below: what others did and it did not" if outputs == "merged" else ""
    text = [view.text for view in views] + ([f"— {note}"] if note else [])
    rows = [(processes, _views(other)) for processes, other in groups]
    text += labelled(
        (f"[{ranks_label(processes)}]", view.text) for processes, seen in rows for view in seen
    )
    folds = [
        # With nothing of the first process to see, the next one stands in for it.
        Fold(
            Facts([processes_label(processes)]),
            [*map(Shown, seen)],
            outputs == "all" or (not own and i == 0),
        )
        for i, (processes, seen) in enumerate(rows)
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


def _views(displays: Sequence[RichOutput]) -> tuple[View, ...]:
    return tuple(view_of(output.data, output.metadata) for output in displays)
