"""Cards under a cell: the footer strip, and value with footer."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from jaxnb.cells.card_value import value_card
from jaxnb.cells.result import FOLLOW, CellResult
from jaxnb.display.blocks import (
    Block,
    Cell,
    Column,
    Either,
    Facts,
    Fold,
    Note,
    Pre,
    Row,
    Table,
)
from jaxnb.display.card import NOTHING, Card, card_of, stacked
from jaxnb.display.html import Tone
from jaxnb.display.text import middle, text_of
from jaxnb.errors import ProcessDiedError
from jaxnb.labels import (
    Outputs,
    capitalized,
    format_bytes,
    format_precisely,
    format_seconds,
    plural,
    processes_label,
    ranks_label,
)
from jaxnb.lockstep import divergence, provenance
from jaxnb.model.cells import NO_ANSWER, CellTiming
from jaxnb.model.group import AtLine, Waits
from jaxnb.model.scripts import in_notebook, the_cell
from jaxnb.pitfalls.findings import who

INTERRUPT = "Interrupt"
BACKGROUND_INTERRUPT = "`%spmd_interrupt`"


def waits_card(waits: Waits, interrupt: str = INTERRUPT) -> Card:
    """Returns who is where, for how long, for whom it waits, and why, as far as is known.

    Nothing if the processes have gone on, and nothing was wrong; a line if all are at one line.

    Args:
        waits: All that.
        interrupt: How the user interrupts the cell.
    """
    if waits.is_neutral and waits.has_ended:
        return NOTHING
    if waits.is_neutral and len(waits.places) < 2 and not waits.left and not waits.waiting:
        line = _line(waits)
        return card_of(Either([Facts([line])], line))
    # How long processes have waited for others; else how long the cell has run.
    seconds = max((each.seconds for each in waits.places if each.waits), default=waits.seconds)
    html: list[Block] = [
        Facts([_whole(seconds)], _waits_heading(waits)),
        Note(_silent_text(waits)),
        _table(waits.places),
        Note(_sentences(waits, interrupt)),
    ]
    tone: Tone = "" if waits.is_neutral else "warn"
    return card_of(Either(html, waits_text(waits, interrupt)), tone=tone)


def waits_text(waits: Waits, interrupt: str = INTERRUPT) -> str:
    """Returns the same as sentences."""
    if waits.is_neutral and waits.has_ended:
        return ""
    places = "; ".join(_place_text(each, has_ended=waits.has_ended) for each in waits.places)
    said = f"{capitalized(places)}." if places else ""
    parts = [said, _silent_text(waits), _sentences(waits, interrupt)]
    return " ".join(filter(None, parts))


def _table(places: Sequence[AtLine]) -> Table:
    has_last = any(each.last_dispatch for each in places)
    rows: list[Row] = [
        [
            processes_label(each.processes),
            "" if each.place is None else str(each.place.line),
            f"outside {the_cell()}'s lines"
            if each.place is None
            else Cell(each.place.source, "code"),
            f"{_doing(each)} {_whole(each.seconds)}",
            *([_last_cell(each)] * has_last),
        ]
        for each in places
    ]
    columns = [Column(), Column("line", ">"), Column(), Column()]
    return Table([*columns, *([Column("last dispatch")] * has_last)], rows)


def _last_cell(each: AtLine) -> str | Cell:
    """Returns what processes have dispatched last; of those that wait, what they ask for."""
    if not each.last_dispatch:
        return "–"
    return Cell(f"asks for {each.last_dispatch}" if each.waits else each.last_dispatch, "code")


def _doing(each: AtLine) -> str:
    if not each.waits:
        return f"{each.doing}," if each.doing else "for"
    late = f" for {processes_label(each.late)}," if each.late else ""
    verb = "waits" if len(each.processes) == 1 else "wait"
    return f"{verb}{late or (f' {each.doing},' if each.doing else ' for')}"


def _place_text(each: AtLine, *, has_ended: bool) -> str:
    have = "had" if has_ended else "has" if len(each.processes) == 1 else "have"
    late = f" for {processes_label(each.late)}" if each.late else ""
    place = f"outside {the_cell()}'s lines" if each.place is None else each.place.text
    verb = f"waited{late}" if each.waits else "been"
    doing = f", {each.doing}" if each.doing else ""
    who = processes_label(each.processes)
    return f"{who} {have} {verb} {place} for {_whole(each.seconds)}{doing}"


def _line(waits: Waits) -> str:
    """Returns how many processes are where, for how long: ``"4 processes at line 3 · 12 s"``."""
    count = sum(len(each.processes) for each in waits.places)
    places = [each.place for each in waits.places if each.place is not None]
    at = f" at line {places[0].line}" if places else ""
    doing = [each.doing for each in waits.places if each.doing]
    dispatches = [plural(waits.dispatches, "dispatch")] if waits.dispatches else []
    said = [f"{plural(count, 'process')}{at}", *doing, _whole(waits.seconds), *dispatches]
    return " · ".join(said)


def _waits_heading(waits: Waits) -> str:
    waiting = waits.waiting
    if not waiting:
        if waits.silent:
            return "No answer" if waits.has_ended else "No answer yet"
        return "Where the processes are"
    verb = "wait" if len(waiting) > 1 else "waits"
    return f"{processes_label(waiting).capitalize()} {'waited' if waits.has_ended else verb}"


def _sentences(waits: Waits, interrupt: str) -> str:
    left = f"{capitalized(waits.left)}." if waits.left else ""
    return " ".join(filter(None, [left, waits.reason, _advice(waits, interrupt)]))


def _silent_text(waits: Waits) -> str:
    """Returns who does not tell where it is, as a sentence; empty if all do."""
    if not waits.silent:
        return ""
    who, is_one = processes_label(waits.silent).capitalize(), len(waits.silent) == 1
    if waits.has_ended:
        return f"{who} had not answered for {_whole(waits.seconds)}."
    if waits.stopped:
        return f"{capitalized(waits.stopped)}."
    have, it_is, it = ("has", "it is", "it") if is_one else ("have", "they are", "them")
    return (
        f"{who} {have} not answered for {_whole(waits.seconds)}: {it_is} stopped, "
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
    kept = in_notebook(", and variables are kept")
    ends = f"{interrupt} ends {the_cell()} (a second one by force){kept}."
    is_normal = waits.is_neutral and not waits.has_failed
    return f"This may be normal; {ends}" if is_normal else ends


def _whole(seconds: float) -> str:
    """Returns a duration in whole seconds: it is shown again every second."""
    return f"{seconds:.0f} s" if seconds < 60 else format_seconds(seconds)


LEAST_BYTES = 1 << 10
"""Less is not worth a word under each cell; the result has it."""


def memory_text(result: CellResult) -> str:
    """Returns e.g. ``"+64.0 MiB per device, peak 128 MiB"``; empty if little changed."""
    memory = [each for process in result.per_process.values() for each in process.memory]
    parts = []
    changes = [each.change_bytes for each in memory]
    if any(abs(change) >= LEAST_BYTES for change in changes):
        # On the devices of a process that tells nothing, nothing has changed.
        silent = any(not process.memory for process in result.per_process.values())
        parts.append(_range([*changes, 0] if silent else changes))
    for owner, word in (("device", "peak"), ("process", "process peak")):
        peaks = [m.peak_bytes for m in memory if m.peak_of == owner and m.peak_bytes is not None]
        if peaks and (parts or owner == "process" or max(peaks) >= LEAST_BYTES):
            parts.append(f"{word} {format_bytes(max(peaks))}")
    return ", ".join(parts)


def _range(changes: list[int]) -> str:
    least, most = min(changes), max(changes)
    if len(changes) == 1:
        return _signed(most)
    if _signed(least) == _signed(most):  # to the three digits that are shown
        return f"{_signed(most)} per device"
    if 0 in (least, most):
        return f"up to {_signed(least or most)} per device"
    return f"{_signed(least)} to {_signed(most)} per device"


def _signed(nbytes: int) -> str:
    return f"{'+' if nbytes > 0 else '−' if nbytes < 0 else ''}{format_bytes(abs(nbytes))}"


_TITLES = ("process", "first call", "median", "middle half", "fastest", "slowest")
_MAX_ROWS = 64
_COMPILED = "The first call traces and compiles. "
_NOTE = "Middle half: a quarter of the calls after the first was faster, a quarter slower."


def timing_card(timing: CellTiming, *, compiled: bool = True) -> Card:
    """Median and spread of a timed cell's calls on each process, with the first call apart.

    Args:
        timing: The calls.
        compiled: Whether anything was compiled in them.
    """
    known = sorted(timing.per_process.items())
    rows: list[Row] = [
        [
            str(index),
            _time(each.first),
            _time(each.median),
            " – ".join(map(format_precisely, each.spread)) if each.spread is not None else "–",
            _time(each.fastest),
            _time(each.slowest),
        ]
        for index, each in known[:_MAX_ROWS]
    ]
    columns = [Column(title, ">") for title in _TITLES]
    heading = _heading(timing, {len(each.repeats) for each in timing.per_process.values()})
    return card_of(
        Facts([], heading, wrap=False),
        Table(columns, rows, more=(len(known) - _MAX_ROWS, "row")),
        Note(f"{_COMPILED if compiled else ''}{_NOTE}", "dim"),
    )


def _heading(timing: CellTiming, counts: set[int]) -> str:
    if not any(counts):
        return "timed · no call after the first"
    shown = plural(max(counts), "call") + " after the first"
    if len(counts) > 1:
        shown = f"{min(counts)} to {shown}, as not all ended"
    median = timing.median
    return f"timed · {shown}" + (
        f" · {format_precisely(median)} on the slowest process" if median is not None else ""
    )


def _time(seconds: float | None) -> str:
    return "–" if seconds is None else format_precisely(seconds)


_MAX_SOURCE = 60


def pitfalls_card(result: CellResult) -> Card:
    """Pitfalls, each with its line, what it does, what to type instead, and its page."""
    blocks: list[Block] = []
    for each in result.pitfalls:
        place = f"line {each.line}" if each.line is not None else ""
        if source := middle(each.source, _MAX_SOURCE):
            place += f": `{source}`"
        seen_by = who(each, len(result.per_process))
        head = Facts([*filter(None, [seen_by])], place, before="⚠ ")
        more = in_notebook(f"`{each.page}` says more.")
        body = " ".join(filter(None, [each.message, each.advice, more]))
        before = "  " if place or seen_by else "⚠ "
        blocks += [head, Note(body, before=before)]
    return card_of(*blocks, tone="warn") if blocks else NOTHING


def divergence_card(result: CellResult) -> Card:
    """A short diff of the compiled programs, folded; nothing if there is none.

    The error has the first difference as a sentence. Where only constants differ, which its table
    has, the text version is empty.
    """
    program = result.divergence and result.divergence.program
    if not program:
        return NOTHING
    diff = divergence.text_of(program)
    folded = [Fold(Facts(["The compiled programs"]), [Pre(diff)])]
    text = "" if program.constants else f"The compiled programs:\n{diff}"
    return card_of(Either(folded, text))


_MOST_ROWS = 12


def unequal_names_card(result: CellResult) -> Card:
    """Variables that hold parts of different arrays: a table, and how they were made, folded."""
    names = result.unequal_names
    if not names:
        return NOTHING
    alike = not result.errors
    said = provenance.unequal_names_heading(result.cell, names, has_ended_alike=alike)
    rows = provenance.names_rows(result.cell, names)
    columns = [Column("variable", least=8), Column("process"), Column("holds", least=20)]
    return card_of(
        Note(capitalized(said)),
        Table(columns, rows[:_MOST_ROWS], more=(len(rows) - _MOST_ROWS, "row")),
        Note(provenance.how_to_go_on(names).strip()),
        Either([Fold(Facts(["How they were made"]), [Note(provenance.names_text(names))])]),
        tone="warn",
    )


_STRAGGLER_RATIO = 1.5
_STRAGGLER_SECONDS = 0.05
_NEVER_ENDED = {NO_ANSWER: "no end on {}", ProcessDiedError.__name__: "died: {}"}
_ENDS = {"KeyboardInterrupt": "interrupted on {}", **_NEVER_ENDED}


def cell_card(result: CellResult, outputs: Outputs = "merged") -> Card:
    """The value of a cell with what comes below it; that alone if it has no value."""
    return stacked([value_card(result, outputs), below_card(result)])


def below_card(result: CellResult) -> Card:
    """How programs and variables differ, what a cell did of which JAX says nothing, the footer."""
    cards = [divergence_card, unequal_names_card, pitfalls_card, footer_card]
    return stacked([card(result) for card in cards])


def footer_card(result: CellResult) -> Card:
    """How long the cell took per process, who was slow, what was compiled and allocated."""
    parts = [_who(result), format_seconds(result.seconds)]
    slowest = straggler(result)
    if slowest is not None:
        own = result.per_process[slowest].code_seconds
        others = median(r.code_seconds for i, r in result.per_process.items() if i != slowest)
        parts.append(f"slowest {slowest} ({format_seconds(own)}, others {format_seconds(others)})")
    if compiled := _compiled(result):
        parts.append(compiled)
    if changed := memory_text(result):
        parts.append(changed)
    if late := [i for i, each in result.per_process.items() if each.computes]:
        of = "" if len(late) == len(result.per_process) else f" of {ranks_label(late)}"
        parts.append(f"devices{of} still computing")
    ends: dict[str, list[int]] = {"error on {}": []}
    has_cause = any(each.type_name not in FOLLOW for each in result.errors.values())
    for i, error in result.errors.items():
        waited = has_cause and error.type_name == "DivergenceError"
        end = "{} waited" if waited else _ENDS.get(error.type_name, "error on {}")
        ends.setdefault(end, []).append(i)
    parts += [end.format(ranks_label(who)) for end, who in ends.items() if who]
    said = Facts(parts, look="small", wrap=False)
    outputs = _outputs(result)
    footer = card_of(Either([Fold(said, outputs)], text_of([said])) if outputs else said)
    if result.timing is None:
        return footer
    has_compiled = any(each.compiles for each in result.per_process.values())
    return stacked([timing_card(result.timing, compiled=has_compiled), footer])


MOST_PROCESSES = 64
"""The outputs of so many are a click away."""

MOST_LINES, MOST_CHARS, LINE_CHARS = 10, 4000, 200
"""Of each the last lines and characters, and of a line the first."""


def _outputs(result: CellResult) -> list[Block]:
    """Returns what each process has written; nothing if all have written the same."""
    written = {i: (each.stdout, each.stderr) for i, each in sorted(result.per_process.items())}
    if len(set(written.values())) < 2:
        return []
    blocks: list[Block] = []
    for i, texts in [*written.items()][:MOST_PROCESSES]:
        end = "".join(text[-MOST_CHARS:] for text in texts)[-MOST_CHARS:]
        whole = end.rstrip("\n")
        kept = "\n".join(line[:LINE_CHARS] for line in whole.split("\n")[-MOST_LINES:])
        is_all = len(kept) == len(whole) and len(end) == sum(map(len, texts))
        where = f"all in `spmd.results[{result.cell}].per_process[{i}].stdout`"
        blocks += [Facts([] if is_all else [where], f"process {i}", "small"), Pre(kept)]
    return blocks


def straggler(result: CellResult) -> int | None:
    """Returns the process that took clearly longer than the others, if one stands out."""
    ended = {
        i: each
        for i, each in result.per_process.items()
        if each.error is None or each.error.type_name not in _NEVER_ENDED
    }
    seconds = {i: each.code_seconds for i, each in ended.items()}
    if len(seconds) < 2:
        return None
    slowest = max(seconds, key=lambda i: seconds[i])
    others = max(value for i, value in seconds.items() if i != slowest)
    # Compared with the next slowest: with two slow ones neither stands out.
    stands_out = seconds[slowest] > _STRAGGLER_RATIO * others
    return slowest if stands_out and seconds[slowest] - others > _STRAGGLER_SECONDS else None


def _who(result: CellResult) -> str:
    ran = result.per_process
    if len(ran) == result.num_processes:
        return plural(len(ran), "process")
    word = "process" if len(ran) == 1 else "processes"
    return f"{word} {ranks_label(ran)} of {result.num_processes}"


def _compiled(result: CellResult) -> str:
    results = list(result.per_process.values())
    seconds = max((r.compile_seconds for r in results), default=0.0)
    loaded = sum(r.loads for r in results)  # over all processes
    compiled = sum(r.compiles for r in results) - loaded
    if seconds < 0.001 and not compiled + loaded:
        return ""
    counts = (("compiled", compiled), ("loaded", loaded))
    told = ", ".join(f"{what} {count}" for what, count in counts if count)
    return f"{told or 'compiled'} in {format_seconds(seconds)}"
