"""Errors: their family, and what IPython shows for them."""

from __future__ import annotations

import inspect

import pytest

from jaxnb import errors
from jaxnb.cells.outcome import cell_error
from jaxnb.cells.result import CellResult, ProcessResult
from jaxnb.errors import (
    CellError,
    CellTimeoutError,
    JaxnbError,
    ProcessDiedError,
    RecoveryInterrupted,
    SessionBrokenError,
    SessionClosedError,
    UsageError,
)
from jaxnb.model.cells import ProcessError

RESULT = CellResult(3, "1/0", {}, 4, 0.1)


def test_every_error_is_a_jaxnb_error() -> None:
    found = [
        c for _, c in inspect.getmembers(errors, inspect.isclass) if c.__module__ == "jaxnb.errors"
    ]
    warnings = [kind for kind in found if issubclass(kind, Warning)]
    assert (len(found), len(warnings)) == (17, 3)
    others = {*warnings, RecoveryInterrupted}  # which is a KeyboardInterrupt
    assert all(issubclass(kind, JaxnbError) or kind in others for kind in found)
    assert all(kind.__doc__ for kind in found)


def test_closed_by_the_user_is_not_broken_from_outside() -> None:
    assert not issubclass(SessionClosedError, SessionBrokenError)
    assert not issubclass(SessionBrokenError, SessionClosedError)
    assert issubclass(ProcessDiedError, SessionBrokenError)
    assert issubclass(CellTimeoutError, CellError)


def test_shown_without_frames() -> None:
    assert UsageError("no such thing")._render_traceback_() == ["UsageError: no such thing"]


def test_a_dead_process_is_named() -> None:
    error = ProcessDiedError("process 2 died", process_index=2, pid=77)
    assert (error.process_index, error.pid, error.result) == (2, 77, None)
    assert str(error) == "process 2 died"


def test_cell_error_shows_the_processes_tracebacks_first() -> None:
    error = CellError("process 0 raised", result=RESULT, rendering="[0-3]\nValueError: boom")
    assert error.result is RESULT
    assert error._render_traceback_() == [
        "[0-3]",
        "ValueError: boom",
        "",
        "CellError: process 0 raised",
    ]


def test_a_cells_error_says_once_what_several_have_raised_and_where() -> None:
    def raised(index: int, message: str, traceback: str, line: int | None) -> ProcessResult:
        error = ProcessError("Error", message, traceback, "", line)
        return ProcessResult(index, None, "", "", (), error, index / 10, 0.0)

    found = [
        raised(0, "no", "by one way", 3),
        raised(1, "waited at line 4: `f(x)`", "", 4),
        raised(2, "no\nat all", "by another", 3),
        raised(3, "see line 44, at line 44", "", 4),
        raised(4, "It is lost. Make it again.", "", 3),
        raised(5, "outside", "", None),
    ]
    result = CellResult(7, "", dict(enumerate(found)), 5, 0.5)
    assert str(cell_error(result)) == (
        "processes 0,2 raised Error: no at line 3; process 1 raised Error: waited at line 4: "
        "`f(x)`; process 3 raised Error: see line 44, at line 44 at line 4; process 4 raised "
        "Error at line 3: It is lost. Make it again; process 5 raised Error: outside (cell [7])"
    )


def test_below_the_tracebacks_their_messages_and_lines_are_not_said_again() -> None:
    def raised(index: int, kind: str, message: str) -> ProcessResult:
        error = ProcessError(kind, message, f"{kind}: {message}", "", 3)
        return ProcessResult(index, None, "", "", (), error, index / 10, 0.0)

    found = [
        raised(0, "NameError", "name 'x' is not defined"),
        raised(1, "DivergenceError", "they do not agree " * 20),
    ]
    error = cell_error(CellResult(7, "", dict(enumerate(found)), 3, 0.5))
    assert "they do not agree they do not agree" in str(error)
    assert error._render_traceback_()[-1] == (
        "CellError: process 0 raised NameError; process 1 raised DivergenceError (cell [7])"
    )


def test_time_out_is_a_cell_error_with_its_result() -> None:
    with pytest.raises(CellError) as raised:
        raise CellTimeoutError("too long", result=RESULT)
    assert raised.value.result is RESULT
    assert raised.value._render_traceback_()[-1] == "CellTimeoutError: too long"


def test_notes_are_shown_below_the_message() -> None:
    error = UsageError("It cannot be done.")
    error.add_note("Do something else.")
    assert error._render_traceback_() == ["UsageError: It cannot be done.", "Do something else."]
