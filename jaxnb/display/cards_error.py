"""The card of what a cell raised."""

from __future__ import annotations

from dataclasses import dataclass

from jaxnb.display._ansi import ansi_runs, strip_ansi
from jaxnb.display.card import Card, render
from jaxnb.display.cards_value import NOTHING
from jaxnb.labels import format_seconds, one_line, processes_label
from jaxnb.model import ProcessError
from jaxnb.result import CellResult


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Processes that raised the same error.

    Attributes:
        processes: The processes, in order.
        error: What they raised.
        seconds: Time from the start of the cell to the first of them.
    """

    processes: tuple[int, ...]
    error: ProcessError
    seconds: float


def error_groups(result: CellResult) -> list[ErrorGroup]:
    """Groups processes by what they raised; the earliest, and so the likely cause, first."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for process, error in sorted(result.errors.items()):
        key = (error.type_name, error.message, error.traceback)
        groups.setdefault(key, []).append(process)
    found = [
        ErrorGroup(
            tuple(processes),
            result.errors[processes[0]],
            min(result.per_process[p].seconds for p in processes),
        )
        for processes in groups.values()
    ]
    return sorted(found, key=lambda group: group.seconds)


def error_card(result: CellResult, *, ansi: bool = False) -> Card:
    """What a cell raised: once per distinct traceback, with the processes that raised it.

    Args:
        result: What the cell did.
        ansi: The text variant keeps the traceback's ANSI colours.
    """
    groups = error_groups(result)
    if not groups:
        return NOTHING
    several = len(groups) > 1
    html_groups = []
    texts = []
    for i, group in enumerate(groups):
        error = group.error
        when = f"after {format_seconds(group.seconds)}" if several else ""
        first = ", first" if several and i == 0 else ""
        who = f"{processes_label(group.processes)}{first}"
        where = f"line {error.line}" if error.line is not None else ""
        details = " · ".join(part for part in (who, where, when) if part)
        coloured = error.traceback_ansi or error.traceback
        html_groups.append(
            {
                "type_name": error.type_name,
                "message": one_line(strip_ansi(error.message), 300),
                "details": details,
                "runs": ansi_runs(coloured),
            }
        )
        body = coloured if ansi else error.traceback or strip_ansi(coloured)
        texts.append(f"{error.type_name} on {details}\n{body or error.message}")
    return Card(render("error", groups=html_groups), "\n\n".join(texts))
