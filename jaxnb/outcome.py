"""From what happened in a cell to the error that tells it."""

from __future__ import annotations

import signal

from jaxnb.deaths import Death, describe_death, last_lines
from jaxnb.display.cards_error import error_card, error_groups
from jaxnb.display.labels import processes_label
from jaxnb.errors import (
    CellError,
    CellTimeoutError,
    JaxnbError,
    ProcessDiedError,
    SessionBrokenError,
)
from jaxnb.result import CellResult


def cell_error(result: CellResult) -> CellError:
    """Returns the error for a cell that raised on some process."""
    parts = []
    for group in error_groups(result):
        line = f" at line {group.error.line}" if group.error.line is not None else ""
        first = str(group.error).partition("\n")[0]
        parts.append(f"{processes_label(group.processes)} raised {first}{line}")
    message = f"{'; '.join(parts)} (cell [{result.cell}])"
    return CellError(message, result=result, rendering=error_card(result, ansi=True).text)


def unshown_error(cell: int, cause: Exception) -> JaxnbError:
    """Returns the error for output that could not be shown as it came."""
    error = JaxnbError(
        f"Cell [{cell}] has run, but its output could not be shown: {type(cause).__name__}: {cause}"
    )
    error.__cause__ = cause
    return error


def timeout_error(result: CellResult, timeout: float, state: str) -> CellTimeoutError:
    """Returns the error for a cell that was interrupted at its time-out."""
    return CellTimeoutError(
        f"Cell [{result.cell}] ran longer than its time-out of {timeout:g} s and was interrupted. "
        f"The group is {state}.",
        result=result,
        rendering=error_card(result, ansi=True).text,
    )


def death_error(death: Death, num_processes: int, result: CellResult | None) -> SessionBrokenError:
    """Returns the error for a death.

    Args:
        death: Who died and how.
        num_processes: Size of the group.
        result: The cell that was running, if one was.
    """
    when = ""
    if result is not None:
        when = f" while it ran cell [{result.cell}], {result.seconds:.1f} s after it began"
    hint = ""
    if death.status == -signal.SIGKILL:
        hint = " SIGKILL without a traceback often means that the host ran out of memory."
    message = (
        f"{describe_death(death, num_processes)}{when}.{hint} Type `%spmd_restart` for fresh "
        f"processes; variables are lost.{last_lines(death)}"
    )
    if death.role != "engine":
        return SessionBrokenError(message)
    error = ProcessDiedError(message, process_index=death.index, pid=death.pid)
    error.result = result
    return error
