"""Cards of errors: what several processes have raised is said once, and causes come first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jaxnb.cells import card_error
from jaxnb.cells.card_cell import divergence_card
from jaxnb.cells.outcome import cell_error
from jaxnb.cells.result import CellResult, ProcessResult
from jaxnb.errors import by_words
from jaxnb.lockstep.divergence import NOTHING_RAN, STILL_VALID, disagreement, refused
from jaxnb.model import scripts
from jaxnb.model.cells import ProcessError
from jaxnb.model.dispatches import (
    DigestedArray,
    Dispatch,
    Divergence,
    ProgramDifference,
    Shapes,
    UnequalInput,
)
from support.cards import Tags, cell


def test_of_long_messages_what_differs_is_said_of_each_process():
    def raised(size: int) -> ProcessError:
        message = f"{'Before. ' * 20}The size of this dimension is {size} of all.{' After.' * 20}"
        shown = f"Cell In[1], line 2\n\nValueError: {message}"
        return ProcessError("ValueError", message, shown, shown, 2)

    result = cell([None] * 3, errors={i: raised(10 + i) for i in range(3)}, seconds=[0.1] * 3)
    text = card_error.error_card(result).text
    flat = " ".join(text.split())
    for i in range(3):
        size = f"…The size of this dimension is {10 + i} of all. After. After."
        assert f"process {i}: {size}" in flat
    assert flat.count("Before. The size") == 1


def test_one_raise_that_says_something_else_on_each_process_is_one_error():
    def raised(message: str, line: int = 2) -> ProcessError:
        shown = f"Cell In[1], line {line}\n\nValueError: {message}"
        return ProcessError("ValueError", message, shown, shown, line)

    errors = {0: raised("2"), 1: raised("b"), 2: raised("b"), 3: raised("b", 5)}
    result = cell([None] * 4, errors=errors, seconds=[0.1, 0.1, 0.1, 0.3])
    groups = card_error.error_groups(result)
    assert [g.processes for g in groups] == [(0, 1, 2), (3,)]
    text = card_error.error_card(result).text
    assert "ValueError: 2\n\nprocess 0: 2\nprocesses 1-2: b\n\nValueError on process 3" in text
    assert str(cell_error(result)) == (
        "process 0 raised ValueError: 2 at line 2; processes 1-2 raised ValueError: b at line 2; "
        "process 3 raised ValueError: b at line 5 (cell [7])"
    )


def test_long_messages_end_between_words():
    said = f"{'many words ' * 20}\n    {'code ' * 30}\nend"
    error = ProcessError("ValueError", said, f"Traceback\nValueError: {said}", "", 3)
    lines = card_error.error_card(cell([None], errors={0: error})).text.split("\n")
    assert lines[2] == "ValueError:" + " many words" * 5 + " many"
    assert " ".join(lines[2:6]) == f"ValueError: {'many words ' * 20}".rstrip()
    assert lines[6:] == ["    " + "code " * 30, "end"]
    long = f"\x1b[31mValueError\x1b[0m: {'x' * 100}{' y' * 40}"
    fits = f"{'a' * 30} {'b' * 50} {'c' * 21}"  # of which the second line has 72 columns
    assert by_words(fits) == fits.replace(" b", "\nb")
    assert by_words(long).split("\n") == [long[:-80], "y" + " y" * 35, "y y y y"]


def test_lines_of_pythons_own_end_between_words_too():
    code = f"----> 5     {'raise ' * 20}"
    text = (
        f"Cell In[7], line 5\n      4 try:\n{code}\n\nOSError: {'many words ' * 10}\n\n"
        "During handling of the above exception, another exception occurred:\n\n"
        f"\x1b[31mValueError\x1b[39m{' ' * 32}Traceback (most recent call last)\n"
        f"Cell In[7], line 7\n{code}\n\nValueError: no"
    )
    error = ProcessError("ValueError", "no", text, text, 7)
    for ansi in (True, False):
        lines = card_error.error_card(cell([None], errors={0: error}), ansi=ansi).text.split("\n")
        assert [line for line in lines if len(line) > 72] == [code] * 2
        assert not any("Traceback" in line for line in lines)
    said = f"    | ValueError: {'many words ' * 10}\n    +-----\n  |     {'code ' * 20}"
    lines = by_words(said).split("\n")
    many = " many words" * 5
    assert lines[:2] == [f"    | ValueError:{many}", f"    |{many}"]
    assert lines[-1] == f"  |     {'code ' * 20}"


MADE = Dispatch(
    1, "jit(f)", 5, Shapes(("float32[8,4]",), 1), Shapes(("float32[]",), 1), (0, 1, 2), 3, 0.1,
    source="f(x)",
)  # fmt: skip


def diverged(*made: Dispatch) -> CellResult:
    at = dict(enumerate(made))
    found = refused(7, at, {})
    errors = {
        i: ProcessError("DivergenceError", disagreement(found.sides, each), "…", "…", each.line)
        for i, each in at.items()
    }
    return replace(cell([None] * len(at), errors=errors), divergence=found)


def test_processes_that_do_not_agree_are_a_table():
    other = replace(MADE, name="jit(g)", fingerprint=6, line=5, source="g(x)")
    card = card_error.error_card(diverged(MADE, MADE, other))
    assert card.text == (
        "DivergenceError: process 2 differs from the others\n"
        "Dispatch 1 of the cell has run on none, so no process waits, and earlier\n"
        "results are valid.\n"
        "  process  line  was to dispatch  code\n"
        "  0-1         3  jit(f)           f(x)\n"
        "  2           5  jit(g)           g(x)\n"
        "`%spmd_help divergence` says what to do."
    )
    assert "<td" in card.html


def test_a_table_says_which_turn_of_a_loop_it_is():
    other = replace(MADE, name="jit(g)", fingerprint=6, line=5, source="g(x)")
    result = diverged(replace(MADE, times=22), replace(MADE, times=22), other)
    assert (
        "  0-1         3  22nd time  jit(f)           f(x)\n" in card_error.error_card(result).text
    )
    assert "at line 3, 22nd time (`f(x)`)" in result.errors[0].message


def test_a_divergence_over_different_processes_is_told_once(monkeypatch: pytest.MonkeyPatch):
    other = replace(MADE, name="jit(g)", fingerprint=6, line=5, source="g(x)", processes=(0, 1))
    result = diverged(replace(MADE, fingerprint=7, processes=(0, 1)), other, MADE)
    later = replace(result.errors[2], message=f"2: was to dispatch. {NOTHING_RAN}, {STILL_VALID}.")
    result.per_process[2] = replace(result.per_process[2], error=later)
    card = card_error.error_card(result)
    assert card.text.startswith("DivergenceError on processes 0-2 · lines 3, 5\n")
    assert card.text.count("DivergenceError") == 1
    assert [line[2:5].strip() for line in card.text.splitlines()[4:8]] == ["0", "1", "2", ""]
    monkeypatch.setattr(scripts, "_script", "train.py")  # its tracebacks say more than a table
    assert [each.processes for each in card_error.error_groups(result)] == [(0, 1), (2,)]


def test_programs_that_differ_in_a_constant_are_a_table():
    result = diverged(MADE, MADE, replace(MADE, fingerprint=6))
    at = "at line 2 of cell [7]"
    constants = ((0, 1), f"0.2 {at}"), ((2,), f"0.1 {at}")
    program = ProgramDifference(((0, 1), (2,)), ("-a", "+b"), 0, "They differ", constants)
    result = replace(result, divergence=replace(result.divergence, program=program))
    assert (
        "  0-1         3  jit(f) with constant 0.2 at line 2  f(x)\n"
        "  2           3  jit(f) with constant 0.1 at line 2  f(x)\n"
    ) in card_error.error_card(result).text
    folded = divergence_card(result)
    assert folded.text == ""
    assert "<details>" in folded.html
    assert "They differ" not in folded.html


def test_programs_that_differ_otherwise_are_one_row_and_the_first_difference() -> None:
    result = diverged(MADE, MADE, replace(MADE, fingerprint=6))
    program = ProgramDifference(((0, 1), (2,)), ("-a", "+b"), 0, "They differ at `y`.")
    result = replace(result, divergence=replace(result.divergence, program=program))
    text = card_error.error_card(result).text
    assert "They differ at `y`." in " ".join(text.split())
    assert "  0-2         3  jit(f) float32[8,4] -> float32[]  f(x)\n" in text
    assert divergence_card(result).text == "The compiled programs:\n  -a\n  +b"


def test_who_an_interrupt_found_waiting_inside_jax_is_one_line():
    def interrupted(line: int, *inside: str) -> ProcessError:
        frames = "\n\n".join([f"Cell In[7], line {line}\n----> {line} f(x)", *inside])
        shown = f"KeyboardInterrupt  Traceback\n{frames}\n\nKeyboardInterrupt: "
        return ProcessError("KeyboardInterrupt", "", shown, shown, line)

    jax = "File /v/lib/site-packages/jax/_src/pxla.py:13, in call\n----> 13 go()"
    errors = {0: interrupted(6, jax), 1: interrupted(4), 2: interrupted(5, jax)}
    text = card_error.error_card(cell([None] * 3, errors=errors)).text
    assert text.startswith("KeyboardInterrupt on process 1\n")
    assert text.endswith("\n\nProcesses 0,2 were interrupted inside jax at lines 5, 6.")
    assert "pxla.py" not in text
    only = card_error.error_card(cell([None] * 2, errors=dict.fromkeys([0, 1], errors[0]))).text
    assert "pxla.py" in only


def test_errors_that_differ_only_in_ports_and_addresses_are_one():
    def lost(port: int, where: int) -> ProcessError:
        said = f"closed by [127.0.0.1]:{port}, 10.0.0.1:{port}, pid {port}, <f at {where:#x}>"
        return ProcessError("RuntimeError", said, f"File a.py:{1000}\n{said}", "", 5)

    errors = {i: lost(36000 + i, 0x7F0000000000 + i) for i in range(3)}
    result = cell([None] * 4, errors={**errors, 3: lost(1, 2)})
    groups = [g.processes for g in card_error.error_groups(result)]
    assert groups == [(0, 1, 2), (3,)]  # 0x2 is short
    other = replace(errors[1], traceback=errors[1].traceback.replace("py:1000", "py:1001"))
    result = cell([None] * 2, errors={0: errors[0], 1: other})
    assert len(card_error.error_groups(result)) == 2
    short = "Cell In[2], line 3, in R.f\n----> 3 def f(self): raise E\n\nE: no"
    more = short.replace("\n---", "\n      2 class R:\n---").replace(" 3 def", " 3     def")
    for text, count in ((more, 1), (more.replace("R.f", "R.g"), 2)):
        shown = {i: ProcessError("E", "no", each, "", 3) for i, each in enumerate([short, text])}
        assert len(card_error.error_groups(cell([None] * 2, errors=shown))) == count


def test_of_a_long_message_the_beginning_is_shown_once():
    def unequal(i: int) -> ProcessError:
        said = f"not equal. {'expected ' * 300}got {i}"
        return ProcessError("AssertionError", said, f"line 3\nAssertionError: {said}", "", 3)

    text = card_error.error_card(cell([None] * 4, errors={i: unequal(i) for i in range(4)})).text
    assert text.startswith("AssertionError on processes 0-3\nline 3\nAssertionError: not ")
    assert " ".join(text.split()).endswith(
        "… … 216 more characters, in `spmd.last_result.per_process[0].error.message`; the "
        "messages of processes 1-3 differ in what follows"
    )
    assert len(text) < 3000


def test_a_name_that_the_heading_has_is_not_said_again():
    error = ProcessError("DivergenceError", "they part", "DivergenceError: they part", "", 3)
    text = card_error.error_card(cell([None] * 2, errors={0: error, 1: error})).text
    assert text.startswith("DivergenceError on processes 0-1 · line 3\nthey part\n")


def test_of_an_array_in_a_message_the_first_rows_are_shown():
    rows = "\n".join(f" [ {i}.5 -1.2e-0{i}]" for i in range(9))
    said = f"w passed to device_put is not the same on each process: [[0 1]\n{rows}"
    error = ProcessError("AssertionError", said, f"AssertionError: {said}", "", 3)
    text = card_error.error_card(cell([None], errors={0: error})).text
    assert "2.5 -1.2e-02" in text
    assert "3.5" not in text
    assert "more characters, in" in text


def test_who_was_left_behind_comes_last_in_one_line_without_their_error():
    said = f"process 1: raised NameError at line 3. None of it has run, {STILL_VALID}."
    behind = ProcessError("DivergenceError", said, "", "", 4)
    cause = ProcessError("NameError", "name 'x' is not defined", "its traceback", "", 3)
    result = cell([None] * 2, errors={0: behind, 1: cause}, seconds=[1.0, 2.0])
    assert [g.processes for g in card_error.error_groups(result)] == [(1,), (0,)]
    waited = (
        "Process 0 only waited for it at line 4. What they were to compute has run on no process, "
        "and earlier results are valid."
    )
    card = card_error.error_card(result)
    assert " ".join(card.text.split()).endswith(f"its traceback {waited}")
    assert waited in card.html
    assert "DivergenceError" not in card.html
    # One that says more than that is shown whole.
    other = replace(behind, message=said.replace("earlier results are", "nothing is"))
    result = cell([None] * 2, errors={0: other, 1: cause}, seconds=[1.0, 2.0])
    assert "nothing is valid" in card_error.error_card(result).html


def digested(name: str) -> DigestedArray:
    of = ((0, 1), 1, 0, "jit(f)", 5, name, 7, "made at line 1")
    return DigestedArray(*of, "float32[4]", "P()", ())


def test_a_refusal_whose_reason_is_told_above_is_short():
    error = ProcessError("DivergenceError", "They do not agree", "a long story", "", 5)
    found = tuple(UnequalInput(digested(name), (), ((0,), (1,)), False) for name in ("a", "b"))
    result = replace(cell([None] * 2, errors={0: error, 1: error}), unequal=found)
    assert "\na long story\n" in card_error.error_card(result).text  # it may have another reason
    card = card_error.error_card(replace(result, divergence=Divergence(7, 1, "inputs", ())))
    assert card.text == (
        "DivergenceError on processes 0-1 · line 5\n`a`, `b` are not equal on all processes, as "
        "was told above. The\ncomputation has run on none of them, and what was computed before "
        "is\nvalid."
    )
    assert "<pre>" not in card.html


def test_errors_show_once_per_traceback_with_the_cause_first():
    late = ProcessError("RuntimeError", "connection closed", "late traceback", "late traceback", 5)
    cause = ProcessError("ValueError", "boom", "the traceback", "\x1b[31mthe traceback\x1b[0m", 3)
    result = cell(
        [None] * 4, errors={0: late, 1: cause, 2: late, 3: late}, seconds=[2.1, 0.1, 2.2, 2.2]
    )
    groups = card_error.error_groups(result)
    assert [g.processes for g in groups] == [(1,), (0, 2, 3)]
    card = card_error.error_card(result)
    assert card.text == (
        "ValueError on process 1, first · line 3 · after 0.10 s\nthe traceback\n\n"
        "RuntimeError on processes 0,2-3 · line 5 · after 2.1 s\nlate traceback"
    )
    # Of two that raised by themselves the first is who raised first, however long formatting took.
    own = {
        0: replace(cause, seconds=0.5, at=9.5),
        1: replace(cause, type_name="E", seconds=0.1, at=9.1),
    }
    groups = card_error.error_groups(cell([None] * 2, errors=own, seconds=[0.6, 1.5]))
    assert [(g.processes, g.seconds) for g in groups] == [((1,), 0.1), ((0,), 0.5)]
    assert "\x1b[31m" in card_error.error_card(result, ansi=True).text
    assert "\x1b" not in card.html
    assert Tags(card.html).seen.count("details") == 2
    assert card_error.error_card(cell([None])).html == ""


@pytest.mark.parametrize(("interrupted_at", "first"), [(3.0, 0), (1.1, 1)])
def test_an_interrupt_of_what_had_parted_is_not_the_cause(interrupted_at, first):
    parted = ProcessError("DivergenceError", "they do not agree", "", "", 2)
    interrupted = ProcessError("KeyboardInterrupt", "", "", "", 3)
    result = cell([None] * 2, errors={0: parted, 1: interrupted}, seconds=[1.0, interrupted_at])
    assert card_error.error_groups(result)[0].processes == (first,)


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
        "CellError: process 0 raised NameError; process 1 raised DivergenceError\n(cell [7])"
    )
