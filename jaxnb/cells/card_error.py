"""The card of what a cell raised."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from jaxnb.cells.card_cell import cell_card
from jaxnb.cells.merge_output import MergedLine, bars_as_one
from jaxnb.cells.result import FOLLOW, CellResult
from jaxnb.display.blocks import Block, Column, Either, Facts, Fold, Note, Pre, Table
from jaxnb.display.card import NOTHING, Card, card_of, stacked
from jaxnb.display.markup import strip_ansi
from jaxnb.display.text import middle, table_text
from jaxnb.errors import WIDTH, by_words
from jaxnb.labels import (
    capitalized,
    format_count,
    format_seconds,
    one_line,
    plural_word,
    processes_label,
)
from jaxnb.launch.card_group import progress_card
from jaxnb.lockstep.divergence import (
    NOTHING_RAN,
    STILL_VALID,
    differing_arguments,
    odd_ones,
    rows_of,
)
from jaxnb.model.cells import NO_ANSWER, ProcessError
from jaxnb.model.scripts import in_notebook, the_cell

MOST_CHARS = 2500
MOST_LINES = 36
MOST_ROWS = 3
"""Of a longer message the beginning is shown: an array in full helps nobody."""

SAME_CHARS = 300
"""Longer messages than are shown are taken for the same if they begin alike so far."""

MOST_SAID = 300
"""As much is said of a message in a line."""

WELL_AFTER_SECONDS = 0.5
"""Processes count from when each of them began the cell."""

_MOST_NAMES = 3

_HEADING = re.compile(
    r"^(\S*-{40,}\S*\n.*|\S+ {2,})Traceback \(most recent call last\)\S*\n", re.MULTILINE
)
"""IPython's line over a traceback, and its heading: ours names the error and its processes, and
that of a chained one ends with its name."""

_FLEETING = re.compile(
    r"(?<= at )0x[0-9a-f]{6,}|(?<=\]):\d{2,5}\b|(?<=\d\.\d\.\d\.\d):\d{2,5}\b"
    r"|(?<=localhost):\d{2,5}\b|(?<=\bpid )\d+\b",
    re.IGNORECASE,
)
"""Addresses of objects, ports, process ids: errors that differ in nothing else are one."""


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Processes that raised the same error.

    Attributes:
        processes: The processes, in order.
        error: What they raised: the first one's.
        seconds: Time from the start of the cell on a process to when its first one raised.
        at: What to order them by.
        lines: The lines of the cell at which they did.
        messages: What they said, if they said different things: processes to message.
    """

    processes: tuple[int, ...]
    error: ProcessError
    seconds: float
    at: tuple[float, float]
    lines: tuple[int, ...]
    messages: Mapping[tuple[int, ...], str]

    @property
    def is_consequence(self) -> bool:
        """Whether it followed, as others left these alone; else it may be the cause."""
        return self.error.type_name == "DivergenceError"


_FRAME = re.compile(r"^(?:File|Cell) .*", re.MULTILINE)
_PACKAGE = re.compile(r"(?:site|dist)-packages/(\w+)")

_AROUND = re.compile(r"^ *\d+ .*\n", re.MULTILINE)
_BLANKS = re.compile(r"[ \t]+")
"""The lines around the one that has raised, of which IPython shows now one, now another, and how
far what it shows is indented."""


def error_groups(result: CellResult) -> list[ErrorGroup]:
    """Groups processes by what they raised; the earliest, and so the likely cause, first.

    Those that others left without them, or left behind, come last. Errors of one place are the same
    whatever they say, but for those that follow from others'. Ports, addresses of objects, process
    ids, and what is beyond the shown part of a long message, do not count.
    """
    parted = result.divergence
    # A script's traceback may lead through modules: each is shown.
    sides = parted.sides if parted and in_notebook("a table") and rows_of(parted) else ()
    told = {i for side in sides if side.dispatch is not None for i in side.processes}
    groups: dict[tuple[str, str, str], dict[str, list[int]]] = {}
    for process, error in sorted(result.errors.items()):
        message = _beginning(error.message)
        if message != error.message:
            message = message[:SAME_CHARS]
        message = _FLEETING.sub("", message)
        is_one = False  # with others, whatever it says
        place = _AROUND.sub("", error.traceback or error.traceback_ansi).replace(
            f"{error.type_name}: {error.message}", error.type_name
        )
        if error.type_name == "DivergenceError":  # whose message has the line of each process
            place = ""
            is_one = process in told
        if package := _interrupted_inside(error):
            place = package
        is_one |= bool(place) and error.type_name not in FOLLOW
        key = (
            error.type_name,
            "" if is_one else message,
            _BLANKS.sub(" ", _FLEETING.sub("", place)),
        )
        groups.setdefault(key, {}).setdefault(message, []).append(process)
    found = [
        ErrorGroup(
            processes,
            result.errors[processes[0]],
            min(result.per_process[p].code_seconds for p in processes),
            min(result.raised_at(p) for p in processes),
            tuple(sorted({at for p in processes if (at := result.errors[p].line) is not None})),
            {tuple(who): result.errors[who[0]].message for who in said.values()}
            if len(said) > 1
            else {},
        )
        for said in groups.values()
        for processes in [tuple(sorted(p for who in said.values() for p in who))]
    ]
    return sorted(
        found,
        key=lambda group: (
            group.is_consequence and not _is_cause(group, found),
            _interrupted_inside(group.error),
            group.at,
        ),
    )


def _interrupted_inside(error: ProcessError) -> str:
    """Returns the package in whose code an interrupt struck; empty if that was the user's."""
    if error.type_name != "KeyboardInterrupt":
        return ""
    *_, last = ["", *_FRAME.findall(error.traceback)]
    found = _PACKAGE.search(last)
    return found[1] if found is not None else ""


def _is_cause(group: ErrorGroup, found: Sequence[ErrorGroup]) -> bool:
    """Whether all that others raised is that they were interrupted, well after this."""
    others = [each for each in found if not each.is_consequence]
    return bool(others) and all(
        each.error.type_name in ("KeyboardInterrupt", NO_ANSWER)
        and each.seconds > group.seconds + WELL_AFTER_SECONDS
        for each in others
    )


def _beginning(message: str) -> str:
    """Returns a message, or as much of it as is shown."""
    lines = message.splitlines(keepends=True)[:MOST_LINES]
    is_dump = _DUMPED in message
    rows = [i for i, line in enumerate(lines) if is_dump and _ROW.match(line)][:MOST_ROWS]
    return "".join(lines[: rows[-1] + 1 if len(rows) == MOST_ROWS else None])[:MOST_CHARS]


_DUMPED = "is not the same on each process"
"""In JAX's error of ``device_put``, which prints arrays."""

_ROW = re.compile(r"[-+\s\d.,e\[\]]+$")
"""A line of an array that is printed."""


def _body(
    result: CellResult, group: ErrorGroup, *, ansi: bool = False, is_whole: bool = False
) -> str:
    """Returns a traceback with its message; of a long one the beginning, and where the rest is."""
    error, first = group.error, group.processes[0]
    plain = error.traceback or strip_ansi(error.traceback_ansi)
    text = _HEADING.sub("", (error.traceback_ansi if ansi else "") or plain)
    if not is_whole and text.startswith(name := f"{error.type_name}: "):  # as the heading does
        text = text.removeprefix(name)
    kept = _beginning(error.message)
    if group.messages:
        return f"{text.rstrip()}\n\n{_messages_text(group)}"
    if is_whole or kept == error.message:
        return text or error.message
    more = len(error.message) - len(kept)
    others = [p for p in group.processes if result.errors[p].message != error.message]
    differ = f"; the messages of {processes_label(others)} differ in what follows" if others else ""
    cut = (
        f"{kept.rstrip()}…\n… {format_count(more)} more {plural_word(more, 'character')}, in "
        f"`spmd.last_result.per_process[{first}].error.message`{differ}"
    )
    return (text if error.message in text else plain).replace(error.message, cut) or cut


def _messages_text(group: ErrorGroup) -> str:
    """Returns what each process said, of those that raised at one place."""
    said = list(group.messages)
    more = len(said) - MOST_LINES
    texts = _where_they_differ([*group.messages.values()][:MOST_LINES])
    lines = [f"{processes_label(who)}: {text}" for who, text in zip(said, texts, strict=False)]
    return "\n".join([*lines, *([f"… {format_count(more)} more"] if more > 0 else [])])


def _where_they_differ(messages: Sequence[str]) -> list[str]:
    """Returns messages, each on a line; of long ones what differs, and some words around it."""
    flat = [" ".join(strip_ansi(each).split()) for each in messages]
    if max(map(len, flat)) <= 2 * WIDTH:
        return flat
    same = _alike(flat)
    start = flat[0].rfind(" ", 0, max(0, same - _AROUND_CHARS)) + 1
    after = max(0, _alike([each[same:][::-1] for each in flat]) - _AROUND_CHARS)
    word = flat[0].find(" ", len(flat[0]) - after)
    end = len(flat[0]) - word if word >= 0 else 0
    return [
        middle(f"{'…' * bool(start)}{each[start : len(each) - end]}{'…' * bool(end)}", MOST_SAID)
        for each in flat
    ]


_AROUND_CHARS = 30


def _alike(texts: Sequence[str]) -> int:
    """Returns how many characters at the beginning are the same."""
    columns = zip(*texts, strict=False)
    return next((k for k, each in enumerate(columns) if len({*each}) > 1), min(map(len, texts)))


def refusal_text(result: CellResult, error: ProcessError) -> str:
    """Returns what is said of a refused dispatch if why has been told with the cell's output.

    That is where inputs or their shapes are not equal: the notice names them, with where they
    differ. Empty for other errors.
    """
    if error.type_name != "DivergenceError" or result.divergence is None:
        return ""
    if any(each.is_of_error and each.line == error.line for each in result.pitfalls):
        return f"Why is told above. {_HAS_RUN_ON_NONE}"
    inputs = [each.name for each in result.unequal if each.array.role == "argument"]
    names = list(dict.fromkeys(inputs))
    if result.divergence.cause != "input" or not names:
        return ""
    more = len(names) - _MOST_NAMES
    label = ", ".join(names[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
    are = "are" if len(names) > 1 else "is"
    return f"{label} {are} not equal on all processes, as was told above. {_HAS_RUN_ON_NONE}"


_HAS_RUN_ON_NONE = "The computation has run on none of them, and what was computed before is valid."


def odd_text(result: CellResult) -> str:
    """Returns which processes did something else than the others, and nothing raised before."""
    parted = result.divergence
    is_told = parted is not None and parted.kind in ("missing", "shapes", "computation")
    return odd_ones(parted.sides) if parted is not None and is_told else ""


def error_card(result: CellResult, *, ansi: bool = False, is_whole: bool = False) -> Card:
    """What a cell raised: once per distinct traceback, with the processes that raised it.

    Args:
        result: What the cell did.
        ansi: The text variant keeps the traceback's ANSI colours.
        is_whole: It keeps long messages, too: nobody can look them up afterwards.
    """
    groups = error_groups(result)
    if not groups:
        return NOTHING
    folds: list[Block] = []
    texts: list[str] = []
    for i, group in enumerate(groups):
        if told := _waited_text(group, groups):
            folds.append(Note(told))
            texts.append(by_words(told))
            continue
        error, details = group.error, _details(groups, i)
        name = "Given up" if error.type_name == NO_ANSWER else error.type_name
        odd = odd_text(result) if group.is_consequence and i == 0 else ""
        told = refusal_text(result, error)
        message = told or one_line(strip_ansi(error.message), MOST_SAID)
        message += ", …" if group.messages else ""
        parts = list(filter(None, [odd, message, details]))
        summary = Facts(parts, f"{name}:" if odd or message else name)
        # A script's traceback may lead through modules: a line of the table alone says less.
        said, table = ("", None) if told or i or is_whole else _sides(result, error)
        body: list[Block]
        if told:
            body, text = [], by_words(told)
        elif table is not None:
            body, text = [Note(said), table], f"{by_words(said)}\n{table_text(table, WIDTH)}"
        else:
            body = [Pre(_body(result, group, ansi=True))]
            text = by_words(_body(result, group, ansi=ansi, is_whole=is_whole))
        is_first = name == "DivergenceError" and not (told or i)
        if is_first and (hint := in_notebook(_OF_DIVERGENCE)):
            body.append(Note(hint, "dim"))
            text = f"{text.rstrip()}\n{hint}"
        folds.append(Fold(summary, body, opened=i == 0))
        where = _details(groups, i, told_in=strip_ansi(text))
        at = f" · {_lines(group)}" if told and group.lines else ""
        heading = f"{name}: {odd}{at}" if odd else f"{name} on {where}"
        texts.append(f"{heading}\n{text}")
    return card_of(Either(folds, "\n\n".join(texts)), tone="error")


_OF_DIVERGENCE = "`%spmd_help divergence` says what to do."


def _sides(result: CellResult, error: ProcessError) -> tuple[str, Table | None]:
    """Returns what has not run, and a table of who was about to do what; none if not known."""
    parted = result.divergence
    _, nothing_ran, trust = error.message.rpartition(NOTHING_RAN)
    rows = rows_of(parted) if parted is not None and nothing_ran else []
    if not rows or parted is None:
        return "", None
    differ = "" if parted.kind == "order" else differing_arguments(parted.sides)
    number = f"Dispatch {parted.number} of {the_cell()}" if parted.number else "It"
    numbers = {side.dispatch.number for side in parted.sides if side.dispatch is not None}
    is_one = parted.kind != "order" and len(numbers) == 1
    none = f"{number} has run on none" if is_one else "None of these has run"
    said = f"{none}{trust}{f' {capitalized(differ)}.' if differ else ''}"
    if parted.program is not None and not parted.program.constants:
        said += f" {parted.program.summary}"
    columns = [Column("process"), Column("line", ">"), Column(optional=True),
               Column("was to dispatch", least=20),
               Column("code", least=12, optional=True)]  # fmt: skip
    return said, Table(columns, rows)


def only_waited(group: ErrorGroup, groups: Sequence[ErrorGroup]) -> bool:
    """Whether all that is to be said of an error is that the first one kept these waiting."""
    cause, message = groups[0], group.error.message
    followed = group.is_consequence and not cause.is_consequence
    return followed and f"raised {cause.error.type_name}" in message and STILL_VALID in message


def _waited_text(group: ErrorGroup, groups: Sequence[ErrorGroup]) -> str:
    """Returns what is said of processes that need no traceback of their own, if they need none."""
    who = capitalized(processes_label(group.processes))
    at = f" at {_lines(group)}" if group.lines else ""
    if only_waited(group, groups):
        return (
            f"{who} only waited for it{at}. What they were to compute has run on no process, and "
            "earlier results are valid."
        )
    package = _interrupted_inside(group.error)
    if package and group is not groups[0] and not _interrupted_inside(groups[0].error):
        were = "was" if len(group.processes) == 1 else "were"
        return f"{who} {were} interrupted inside {package}{at}."
    return ""


def _lines(group: ErrorGroup) -> str:
    return f"{plural_word(len(group.lines), 'line')} {', '.join(map(str, group.lines))}"


def _details(groups: list[ErrorGroup], i: int, told_in: str = "") -> str:
    """Returns which processes raised an error, at which line, and when if others raised others.

    Args:
        groups: All that was raised.
        i: Which of it.
        told_in: What stands below: a line that is named there is not named here.
    """
    group = groups[i]
    several = sum(not _waited_text(each, groups) for each in groups) > 1
    is_told = all(re.search(rf"\bline {line}\b", told_in) for line in group.lines)
    parts = (
        processes_label(group.processes) + (", first" if several and i == 0 else ""),
        "" if is_told else _lines(group),
        f"after {format_seconds(group.seconds)}" if several else "",
    )
    return " · ".join(part for part in parts if part)


def live_card(lines: Sequence[MergedLine]) -> Card:
    """Progress bars and unfinished lines, as they are now."""
    lines = bars_as_one(lines)
    # One width for all labels, or bars that should be compared do not begin below each other.
    width = max((len(line.label) for line in lines), default=0)
    return output_card([replace(line, label_width=width) for line in lines])


def output_card(lines: Sequence[MergedLine]) -> Card:
    """Lines of output as a block; nothing at all for no lines."""
    return card_of(Pre("\n".join(line.labelled() for line in lines))) if lines else NOTHING


def background_card(
    cell: int,
    since: str,
    lines: Sequence[MergedLine],
    displays: Card,
    result: CellResult | None,
    trouble: str | None,
) -> Card:
    """A cell that runs in the background, up to its end.

    Args:
        cell: Its number.
        since: When it began, as a time of day.
        lines: The last lines of its output.
        displays: Its rich outputs.
        result: What it did, once it has ended.
        trouble: Why it ended without a result, or beside it.
    """
    parts = [output_card(lines), displays]
    if result is not None:
        parts += [error_card(result), cell_card(result)]
    if trouble is not None:
        parts.append(card_of(Pre(trouble), tone="error"))
    if result is None and trouble is None:
        parts.append(progress_card(f"cell [{cell}]", f"in the background since {since}", None))
    return stacked(parts)
