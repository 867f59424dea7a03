"""From what happened in a cell to the error that tells it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from jaxnb.cells.card_error import (
    WELL_AFTER_SECONDS,
    ErrorGroup,
    error_card,
    error_groups,
    odd_text,
    only_waited,
)
from jaxnb.cells.result import FOLLOW, CellResult, raised
from jaxnb.errors import (
    CellError,
    CellTimeoutError,
    JaxnbError,
    ProcessDiedError,
    SessionBrokenError,
    SessionClosedError,
)
from jaxnb.labels import capitalized, one_line, plural_word, processes_label
from jaxnb.launch.deaths import Death, dead_processes, death_error
from jaxnb.model.cells import NO_ANSWER, CellOutcome, CellReply, ProcessError
from jaxnb.model.dispatches import Dispatch
from jaxnb.model.scripts import cell_label, the_cell

MOST_FIRST_CHARS = 2000
"""Of a longer first line of an error the beginning is said with the cell's error."""


def cell_error(result: CellResult) -> CellError:
    """Returns the error for a cell that raised on some process."""
    groups = error_groups(result)  # which tells those apart, too, that came another way to it
    closing = _joined(
        result,
        [
            (replace(g.error, line=None).ending, g.processes)
            for g in groups
            if not only_waited(g, groups)
        ],
    )
    odd = odd_text(result) if groups and groups[0].is_consequence else ""
    return CellError(
        _joined(result, [(_beginning(said), who) for g in groups for said, who in _said(g)]),
        result=result,
        rendering=error_card(result, ansi=True).text,
        closing=f"the processes diverged: {odd} ({result.label})" if odd else closing,
    )


def _joined(result: CellResult, told: Sequence[tuple[str, tuple[int, ...]]]) -> str:
    """Returns what processes did, each thing once: ``"process 2 raised …; processes 0-1 …"``."""
    who: dict[str, list[int]] = {}
    for what, processes in told:
        who.setdefault(what, []).extend(processes)
    parts = [f"{processes_label(sorted(those))} {what}" for what, those in who.items()]
    parts[:-1] = [each.removesuffix(".") for each in parts[:-1]]
    return f"{'; '.join(parts)} ({result.label})"


def _said(group: ErrorGroup) -> list[tuple[ProcessError, tuple[int, ...]]]:
    """Returns what processes raised, and who; without the line, if they did at several."""
    error = replace(group.error, line=None) if len(group.lines) > 1 else group.error
    said = group.messages or {group.processes: error.message}
    return [(replace(error, message=message), who) for who, message in said.items()]


def _beginning(error: ProcessError) -> str:
    """Returns what is said of an error, in a line."""
    return error.ending if error.type_name == NO_ANSWER else f"raised {_first_line(error)}"


def _first_line(error: ProcessError) -> str:
    """Returns an error's first line, with where it was raised unless it says that itself."""
    first = one_line(str(error).partition("\n")[0], MOST_FIRST_CHARS)
    place = f"at line {error.line}"
    if error.line is None or re.search(rf"\b{place}\b", first):
        return first
    if first.endswith((".", "!", "?")) and first.startswith(f"{error.type_name}: "):
        return f"{error.type_name} {place}{first.removeprefix(error.type_name)}"
    return f"{first} {place}"


def error_of(
    result: CellResult,
    *,
    deaths: Sequence[Death],
    began: float,
    timed_out_after: float | None,
    unshown: Exception | None,
    state: str,
    computed: str,
    raise_on_error: bool,
) -> Exception | None:
    """Returns what to raise after a cell, the cause first; None if nothing went wrong.

    Args:
        result: What the cell did.
        deaths: Who died in it.
        began: When it did, on ``time.monotonic()``.
        timed_out_after: The time-out that it reached.
        unshown: Why its output could not be shown.
        state: The session's state now.
        computed: What it has dispatched that has not ended.
        raise_on_error: Whether what a process raised counts.
    """
    if deaths:
        seconds = max(0.0, deaths[0].at - began)
        died = death_error(
            deaths[0],
            result.num_processes,
            f"it ran {result.label}, {seconds:.1f} s after it began",
            deaths[1:],
            _raised_before(result, dead_processes(deaths), seconds),
            " What it printed last may be missing.",
        )
        if isinstance(died, ProcessDiedError):
            died.result = result
        return died
    if timed_out_after is not None:
        now = (
            "Some processes are still in it: type `%spmd_recover`, which kills them and starts new "
            "processes with the variables, or `%spmd_restart` for fresh processes."
        )
        if state == "ready":
            now = "The group is ready."
        elif computed:
            now = f"Still computing: {computed}. {STILL_COMPUTING}"
        return CellTimeoutError(
            f"{capitalized(result.label)} ran longer than its time-out of {timed_out_after:g} s "
            f"and was interrupted. {_struck_text(result)}{now}",
            result=result,
            rendering=error_card(result, ansi=True).text,
        )
    error = None
    if unshown is not None:
        error = JaxnbError(
            f"{capitalized(cell_label(result.cell))} has run, but its output could not be shown: "
            f"{type(unshown).__name__}: {unshown}"
        )
        error.__cause__ = unshown
    if not (result.errors and raise_on_error):
        return error
    failed = cell_error(result)
    failed.__cause__ = error
    return failed


def stopped_text(last: Dispatch) -> str:
    """Returns that all processes of an interrupted cell have stopped after the same dispatch."""
    line = "" if last.line is None else f" at line {last.line}"
    return (
        f"Stopped cleanly: none of {processes_label(last.processes)} is ahead of another. The last "
        f"dispatch of {the_cell()} was `{last.name}`{line}, number {last.number}."
    )


def caught_text(replies: Mapping[int, CellReply]) -> str:
    """Returns who has caught a refusal to compute and gone on; empty if nobody has."""
    who = [i for i, reply in replies.items() if reply.refused and reply.error is None]
    if not who:
        return ""
    lines = sorted({line for i in who for line in replies[i].refused if line is not None})
    at = f" at {plural_word(len(lines), 'line')} {', '.join(map(str, lines))}" if lines else ""
    return (
        f"{capitalized(processes_label(who))} caught a DivergenceError{at} and continued: the "
        "refused computation ran on no process."
    )


def outcome_of(
    result: CellResult,
    error: object,
    *,
    is_parted: bool,
    was_abandoned: bool,
    was_interrupted: bool,
) -> CellOutcome:
    """Returns how a cell ended, in a word.

    Args:
        result: What it did.
        error: What was raised for it, or by a process in it; None if nothing was.
        is_parted: Whether the processes parted, or were about to.
        was_abandoned: Whether the session was restarted or closed meanwhile.
        was_interrupted: Whether it was interrupted, for whatever reason.
    """
    if was_abandoned:
        return "abandoned"
    if isinstance(error, SessionBrokenError):
        return "died"
    if isinstance(error, CellTimeoutError):
        return "timed out"
    kinds = {each.type_name for each in result.errors.values()}
    was_interrupted |= kinds == {"KeyboardInterrupt"}  # `quit` in a debugger, a handler
    if was_interrupted and not _began_with_an_error(result):
        return "interrupted"
    if is_parted and (kinds == {"DivergenceError"} or error is None):
        return "diverged"
    if error is not None:
        return "error"
    if result.first_nan is not None:
        return "nan"
    return "suspect" if result.suspect else "ok"


def _began_with_an_error(result: CellResult) -> bool:
    """Whether the first process to raise raised something of its own, for which others waited."""
    first = min(result.errors, key=result.raised_at, default=None)
    return first is not None and result.errors[first].type_name not in FOLLOW


def closed_error() -> SessionClosedError:
    """Returns the error for the use of a closed session."""
    return SessionClosedError(
        "This session was closed. Type `%spmd_start` for a new one (in Python: `jaxnb.start()`)."
    )


def out_of_step_text(unended: Collection[int] = (), done: str = "") -> str:
    """Returns what is the matter with a group whose processes did not come back.

    Args:
        unended: Those that did not, as far as that is known.
        done: What has become of what was asked for, as a sentence.
    """
    why = "processes did not answer an interrupt"
    if unended:
        why = f"{processes_label(unended)} did not end what ran before"
    return (
        f"The group is out of step: {why}. {done}Type `%spmd_recover` for new processes that take "
        "the variables over, or `%spmd_restart` for fresh ones."
    )


def not_restarted_text(done: str = "") -> str:
    """Returns what is the matter with a group whose restart was interrupted, or has failed.

    Args:
        done: What has become of what was asked for, as a sentence.
    """
    return (
        f"A restart was interrupted or has failed: the variables are lost, unless its error says "
        f"that they are in files. {done}Type `%spmd_restart` to try again, or `%spmd_stop` and "
        "`%spmd_start` for another group."
    )


STILL_COMPUTING = (
    "It may never end. Cells are refused until it has; `%spmd_recover` ends it: new processes "
    "take over the variables that are computed."
)


def still_computing_error(computed: str) -> SessionBrokenError:
    """Returns the error for a cell on a group that still computes what an earlier one dispatched.

    Args:
        computed: What, and who.
    """
    return SessionBrokenError(
        f"The group still computes what an interrupted cell dispatched: {computed}. Nothing was "
        f"run. {STILL_COMPUTING}"
    )


def restarted_error() -> SessionBrokenError:
    """Returns the error for a cell whose group was restarted before its turn came."""
    return SessionBrokenError(
        "The group was restarted, or given another size, while the cell waited for its turn. "
        "Nothing was run. Run the cell again if it still makes sense."
    )


def restarting_error() -> SessionBrokenError:
    """Returns the error for asking processes that are just being replaced."""
    return SessionBrokenError(
        "The group's processes are being replaced. Try again when `%spmd_status` shows it as ready."
    )


def _struck_text(result: CellResult) -> str:
    """Returns where an interrupt struck processes, as a sentence; empty if it struck none."""
    at: dict[int, list[int]] = {}
    for index, error in sorted(result.errors.items()):
        if error.type_name == "KeyboardInterrupt" and error.line is not None:
            at.setdefault(error.line, []).append(index)
    struck = [f"{processes_label(who)} at line {line}" for line, who in sorted(at.items())]
    return f"The interrupt hit {', '.join(struck)}. " if struck else ""


def _raised_before(result: CellResult, dead: Collection[int], seconds: float) -> str:
    """Returns what processes had raised in the cell well before one died, as a sentence."""
    errors = {
        i: error
        for i, error in result.errors.items()
        if i not in dead and result.per_process[i].code_seconds < seconds - WELL_AFTER_SECONDS
    }
    clauses = "; ".join(f"{processes_label(who)} {what}" for what, who in raised(errors).items())
    return f" Before that, {clauses}." if clauses else ""
